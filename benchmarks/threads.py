"""Threads: steps after pauses, steps beside busy programs, and steps of two revisions in turns.

    python benchmarks/threads.py pauses [--quick]
    python benchmarks/threads.py busy [--busy 1 --busy 5] [--only small]
    python benchmarks/threads.py revisions --before FOLDER

``pauses``: a side waits 0 to 500 ms before each of its steps, as training does that waits for data, or for another
program; the means of ours, of ours with ``OMP_PROC_BIND=true``, and of PyTorch. ``busy``: the mean of many steps beside
programs that never wait, over that of the quiet machine, in turns. ``revisions``: ours, and what is in another
checkout, in turns. Nothing else may run on the machine.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import geometric_mean, mean, median
from time import perf_counter, sleep

import click
import numpy as np
from rich.table import Table

from latte import FullyConnectedLayer, MemoryDataLayer, Net, ReLULayer, SoftmaxLossLayer
from latte.solver import SGD
from latte.tools.bench.alternate import SETTLE, WARM, run_count, write_data
from latte.tools.bench.cases import parsed
from latte.tools.bench.digits import digits_net
from latte.tools.bench.published import NETS
from latte.tools.bench.report import machine, report_console
from latte.tools.bench.workers import OURS, Side, Turn, Workers, sides
from swirl.config import available_cores
from swirl.target.machine import resolve_target

PAUSED = (("net", "16"), ("cbr", "10,64,64,14"), ("cbr", "9,64,64,28"), ("cbr", "16,64,64,56"))
"""Training steps of about 0.2, 2, 7 and 50 ms on two cores of Zen 4."""
PAUSES = (0.0, 0.005, 0.05, 0.5)
"""Seconds."""
TURN_SECONDS, LEAST_RUNS, MOST_RUNS = 2.5, 5, 200
"""Of a turn."""
ROUNDS = 3
COMPARED = (
    ("net", "64"),
    ("net", "256"),
    ("cbr", "10,64,64,14"),
    ("cbr", "9,64,64,28"),
    ("cbr", "16,64,64,56"),
    ("cbr", "64,512,512,7"),
    ("bn", "64,64,56"),
    ("bn", "64,512,7"),
    ("fc", "64,2048,1000"),
    ("pool", "64,64,56"),
    ("layer", "layer-norm,16,64,56"),
    ("layer", "lstm,16,64,64"),
    ("own", "gelu,16,64,56"),
)
"""What two revisions are compared by."""


@click.group()
def main() -> None:
    """Threads: pauses, busy machines, revisions."""
    report_console().print(machine())


# --- pauses -------------------------------------------------------------------------------------------------
@main.command()
@click.option("--quick", is_flag=True, help="A tenth of the time.")
@click.option("--only", default="", help="Cases whose name has this.")
def pauses(quick: bool, only: str) -> None:
    """Steps after pauses: ours, ours bound to cores, PyTorch."""
    bound = Side("bound", peer=False, environment=(("OMP_PROC_BIND", "true"),))
    ours, *peers = sides(resolve_target().name, compile_peer=False)
    tuned = next(peer for peer in peers if peer.channels_last)
    console = report_console()
    made = Table("case", "pause", OURS, "bound", "PyTorch tuned", f"{OURS} / bound", "shared a core")
    for case in [case for case in (parsed(*each) for each in PAUSED) if only in str(case)]:
        with Workers(case, available_cores(), None, case.comes_in_blocks and case.kind != "net") as workers:
            for side in (ours, bound, tuned):
                workers.start(side)
            data = workers.path("data.npz")
            _write(workers, data)
            (step,) = workers.running[OURS].turn("step", 1, WARM).seconds
            for pause in PAUSES:
                seconds = TURN_SECONDS / 10 if quick else TURN_SECONDS
                count = min(max(round(seconds / (pause + step)), LEAST_RUNS), MOST_RUNS)
                turns: dict[str, list[Turn]] = {name: [] for name in workers.running}
                for _ in range(ROUNDS):
                    for name, worker in workers.running.items():
                        sleep(SETTLE)
                        turns[name].append(worker.turn("step", count, WARM, pause))
                means = {name: mean(second for turn in own for second in turn.seconds) for name, own in turns.items()}
                shared = sum(turn.shared for turn in turns[OURS]), sum(turn.regions for turn in turns[OURS])
                cells = [f"{means[name] * 1e3:.3f} ms" for name in (OURS, "bound", tuned.name)]
                ratio = f"{means[OURS] / means['bound']:.2f}"
                made.add_row(str(case), f"{pause * 1e3:g} ms", *cells, ratio, f"{shared[0]} of {shared[1]}")
                console.print(str(case), f"{pause * 1e3:g} ms", *cells, ratio, f"{shared[0]} of {shared[1]}")
    console.print(made)


def _write(workers: Workers, path: Path) -> None:
    """Random data, and one run of each side on them."""
    write_data(workers.case, workers.running[OURS].about["value"], path)
    for worker in workers.running.values():
        worker.results(path)


# --- a busy machine -----------------------------------------------------------------------------------------
Declare = Callable[[], tuple[Net, tuple[int, ...]]]
"""Makes a net that is not compiled; the shape of its data, too."""


def small_net() -> tuple[Net, tuple[int, ...]]:
    """Three layers: a step of 0.1 ms."""
    net = Net(32, seed=1)
    data, labels = MemoryDataLayer(net, (64,)), MemoryDataLayer(net, (1,))
    hidden = ReLULayer(net, FullyConnectedLayer(net, data, 128))
    hidden = ReLULayer(net, FullyConnectedLayer(net, hidden, 64))
    SoftmaxLossLayer(net, FullyConnectedLayer(net, hidden, 10), labels)
    return net, (64,)


def digits(batch: int) -> Declare:
    """The net of the first example."""
    return lambda: (digits_net(batch), (1, 8, 8))


def resnet18() -> tuple[Net, tuple[int, ...]]:
    """Four images of 224 × 224."""
    return NETS["resnet18"].declared(4, 224), (3, 224, 224)


BUSY: dict[str, tuple[Declare, int, int]] = {
    "small": (small_net, 4000, 3),
    "digits, 16": (digits(16), 2000, 3),
    "digits, 64": (digits(64), 1000, 3),
    "digits, 512": (digits(512), 200, 3),
    "ResNet-18": (resnet18, 6, 2),
}
"""Name → the net, its steps in a turn, and turns."""


@main.command()
@click.option("--busy", "counts", multiple=True, type=click.IntRange(1), default=(1, 5), show_default=True)
@click.option("--only", default="", help="Nets whose name has this.")
@click.option("--threads", type=click.IntRange(1))
def busy(counts: Sequence[int], only: str, threads: int | None) -> None:
    """Steps beside busy programs, and on the quiet machine, in turns."""
    made = Table("net", "quiet", *(f"beside {count}" for count in counts), "alone")
    for name, (declare, steps, rounds) in BUSY.items():
        if only not in name:
            continue
        step, net = _training(declare, threads)
        found: dict[int, list[float]] = {count: [] for count in (0, *counts)}
        for _ in range(rounds):
            for count, seconds in found.items():
                with _busy_programs(count):
                    for _ in range(2):
                        step()
                    start = perf_counter()
                    for _ in range(steps):
                        step()
                    seconds.append((perf_counter() - start) / steps)
        quiet = mean(found[0])
        beside = (f"{mean(found[count]) * 1e3:.3f} ms, {mean(found[count]) / quiet:.2f}×" for count in counts)
        made.add_row(name, f"{quiet * 1e3:.3f} ms", *beside, str(net.session.runner.seen))
    report_console().print(made)


def _training(declare: Declare, threads: int | None) -> tuple[Callable[[], None], Net]:
    net, shape = declare()
    net.compile(threads=threads)
    solver = SGD(net, learning_rate=0.01, momentum=0.9)
    generator, items = np.random.default_rng(0), net.batch_size
    net.set_batch(generator.random((items, *shape), np.float32), generator.integers(0, 10, items))

    def step() -> None:
        net.forward()
        net.clear_grad()
        net.backward()
        solver.step()

    for _ in range(3):
        step()
    return step, net


@contextmanager
def _busy_programs(count: int) -> Iterator[None]:
    """So many programs that never wait."""
    command = [sys.executable, "-c", "while True: pass"]
    programs = [subprocess.Popen(command) for _ in range(count)]
    try:
        sleep(0.5)
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


# --- two revisions ------------------------------------------------------------------------------------------
@main.command()
@click.option("--before", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1))
@click.option("--only", default="", help="Cases whose name has this.")
def revisions(before: Path, rounds: int, only: str) -> None:
    """Steps of this checkout and of another one, in turns."""
    other = Side("before", peer=False, environment=(("PYTHONPATH", str(before.resolve())),))
    console, ratios = report_console(), []
    made = Table("case", "before", "now", "now / before")
    for case in [case for case in (parsed(*each) for each in COMPARED) if only in str(case)]:
        with Workers(case, available_cores(), None, case.comes_in_blocks and case.kind != "net") as workers:
            for side in (Side(OURS, peer=False), other):
                workers.start(side)
            _write(workers, workers.path("data.npz"))
            runs = {name: run_count(worker, "step") for name, worker in workers.running.items()}
            seconds: dict[str, list[float]] = {name: [] for name in workers.running}
            for _ in range(rounds):
                for name, worker in workers.running.items():
                    sleep(SETTLE)
                    worker.turn("step", WARM)
                    seconds[name] += worker.turn("step", max(runs.values())).seconds
        middle = {name: median(own) for name, own in seconds.items()}
        ratios.append(middle[OURS] / middle["before"])
        cells = [f"{middle[name] * 1e3:.3f} ms" for name in ("before", OURS)]
        made.add_row(str(case), *cells, f"{ratios[-1]:.3f}")
        console.print(str(case), *cells, f"{ratios[-1]:.3f}")
    made.add_section()
    made.add_row("geometric mean", "", "", f"{geometric_mean(ratios):.3f}")
    console.print(made)


if __name__ == "__main__":
    main()
