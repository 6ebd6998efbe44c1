"""Schedules that other systems find for convolutions and products, beside ours and oneDNN, in one run.

    python benchmarks/peers.py [--trials 32] [--small] [--only TEXT] [--json FILE]

    pip install halide==21.0.0                                                      # what is missing is left out
    pip install apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1 psutil xgboost cloudpickle tornado

Each system may measure as many schedules as the others, in its own way: ``latte tune`` by regression, and in the space
of TTiLE's schemes; Halide's scheduler of 2019, whose first schedule is its model's and the others of random beams;
TVM's MetaSchedule. Then the fastest that each has found, the schedule that ships, and oneDNN in PyTorch are measured in
turns, without operands in the caches; what the others compute has been compared with plain NumPy before. Images are
stored as each system likes them best: ours as the recipe lays them out, PyTorch's as they come or with channels
innermost, the others' with channels innermost.

A row has shares of the machine's peak; after ``s`` the seconds of the searches. ``--small`` is three convolutions and
two products with 8 trials: half an hour. Nothing else should run beside.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from statistics import geometric_mean
from time import monotonic

import click
from rich.table import Table
from searched import Bench, Work, convolution, product
from sides import Asked, SideFailed, SideProcess
from ttile import SPACES, schemes

from latte.tools.bench.report import machine, report_console
from latte.tools.results import write_results
from latte.tools.tune.session import Machine
from swirl.config import child_environment
from swirl.errors import CommandError, LatteError
from swirl.measure.rates import lower_quartile
from swirl.tune.candidates import Candidate

CONVOLUTIONS: dict[str, tuple[int, int, int, int, int, int]] = {
    "resnet stem": (3, 224, 64, 7, 2, 3),
    "resnet 56": (64, 56, 64, 3, 1, 1),
    "resnet 56, 1 × 1": (64, 56, 256, 1, 1, 0),
    "resnet 28, stride 2": (128, 56, 128, 3, 2, 1),
    "resnet 14": (256, 14, 256, 3, 1, 1),
    "resnet 7, 1 × 1": (512, 7, 2048, 1, 1, 0),
    "yolo 68": (128, 68, 256, 3, 1, 1),
    "yolo 17": (512, 17, 1024, 3, 1, 1),
    "googlenet 5 × 5": (32, 14, 96, 5, 1, 2),
    "odd": (33, 47, 29, 3, 1, 1),
}
"""Channels, height and width, filters, kernel, stride, padding; one image for each thread."""
PRODUCTS: dict[str, tuple[int, int, int]] = {
    "fully connected": (64, 1000, 2048),
    "square": (1024, 1024, 1024),
    "GNMT": (128, 2048, 4096),
    "attention": (512, 512, 64),
    "odd": (333, 1001, 257),
}
"""Rows, columns, length."""
SMALL = ("resnet 56", "resnet 56, 1 × 1", "yolo 17", "square product", "odd product")
TRIALS, SMALL_TRIALS = 32, 8
ROUNDS, RUNS = 5, 5
"""Turns of each side, and runs of a turn."""
SHIPS, SEARCHED, TTILE = "ships", "latte tune", "TTiLE"
OURS = (SHIPS, SEARCHED, TTILE)
PEERS = {"oneDNN": "searched_torch.py", "Halide": "peers_halide.py", "TVM": "peers_tvm.py"}
"""Side → its script."""
PACKAGES = ("torch", "halide", "apache-tvm")


@dataclass(frozen=True)
class Row:
    """What was measured of a layer.

    Args:
        name, shape: of it.
        operations: floating-point operations.
        peak: floating-point operations a second of the machine.
        seconds: side → of each run of its fastest schedule.
        searched: side → seconds of its search.
        tried: side → schedules that it has measured.
        missing: side → why there is none.
    """

    name: str
    shape: tuple[int, ...]
    operations: int
    peak: float
    seconds: dict[str, list[float]]
    searched: dict[str, float]
    tried: dict[str, int]
    missing: dict[str, str]

    def share(self, side: str) -> float:
        """Of the peak, by the lower quartile; 0 where the side was not measured."""
        return self.operations / lower_quartile(self.seconds[side]) / self.peak if side in self.seconds else 0.0


def works(found_on: Machine, small: bool, only: str) -> Iterator[Work]:
    """The layers, one by one."""
    for name, (channels, extent, filters, kernel, stride, pad) in CONVOLUTIONS.items():
        if only in name and (not small or name in SMALL):
            shape = found_on.threads, channels, extent, extent, filters, kernel, stride, pad
            yield convolution("conv", name, shape, found_on)
    for name, lengths in PRODUCTS.items():
        name = f"{name} product"
        if only in name and (not small or name in SMALL):
            yield product(name, lengths, found_on)


def row(work: Work, bench: Bench, trials: int, seed: int) -> Row:
    """A layer, searched by each side, then measured in turns.

    Raises:
        LatteError: the schedule that ships cannot be measured.
    """
    found_on, searched, missing = bench.machine, dict[str, float](), dict[str, str]()
    tried = {SHIPS: 0, SEARCHED: trials, TTILE: trials}
    own: dict[str, Candidate] = {}
    for side in (SEARCHED, TTILE):
        start = monotonic()
        try:
            space = work.space if side == SEARCHED else schemes(work, bench, SPACES[0])
            own[side] = bench.found(work, space, "regression" if side == SEARCHED else "random", trials, seed)
        except CommandError as error:
            missing[side] = error.message
        searched[side] = monotonic() - start
    asked = Asked(work.kind, work.shape, found_on.threads, found_on.target.simd_width > 8, trials)
    threads = str(found_on.threads)
    told = dict.fromkeys(("OMP_NUM_THREADS", "HL_NUM_THREADS", "TVM_NUM_THREADS"), threads)
    seconds: dict[str, list[float]] = {}
    with ExitStack() as running:
        peers = {}
        for side, script in PEERS.items():
            try:
                peers[side] = running.enter_context(SideProcess(script, asked, {**child_environment(), **told}))
                searched[side], tried[side] = peers[side].search_seconds, peers[side].tried
            except SideFailed as failed:
                missing[side] = str(failed)
        evaluator = running.enter_context(bench.evaluator(work))
        different = {side: found for side, found in own.items() if found.key != work.known.key}
        ours = different or {SHIPS: work.known}
        for _ in range(ROUNDS):
            # Ours runs in a process of its own, too: the schedule that ships is timed beside each one that was found.
            for side, timed in zip(ours, evaluator.measure(list(ours.values()), RUNS), strict=True):
                seconds.setdefault(side, []).extend(timed.seconds)
                seconds.setdefault(SHIPS, []).extend(timed.beside)
            for side, process in list(peers.items()):
                try:
                    seconds.setdefault(side, []).extend(process.seconds(RUNS))
                except SideFailed as failed:
                    missing[side] = str(failed)
                    del peers[side]
    seconds |= {side: seconds[SHIPS] for side in own if side not in different}
    seconds = {side: times for side, times in seconds.items() if side not in missing}
    return Row(work.name, work.shape, work.operations, found_on.rates.peak, seconds, searched, tried, missing)


def show(rows: Sequence[Row]) -> None:
    """Shares of the peak, and the geometric mean of each side beside the schedule that ships, over what both have."""
    table = Table(box=None)
    table.add_column("layer")
    every = (*OURS, *PEERS)
    searching = [side for side in every if any(row.searched.get(side) for row in rows)]
    for heading in (*every, *(f"s {side}" for side in searching)):
        table.add_column(heading, justify="right")
    for each in rows:
        shares = (f"{share:.0%}" if (share := each.share(side)) else "" for side in every)
        taken = (f"{seconds:.0f}" if (seconds := each.searched.get(side)) else "" for side in searching)
        table.add_row(each.name, *shares, *taken)
    means = []
    for side in every:
        both = [share / ships for row in rows if (ships := row.share(SHIPS)) and (share := row.share(side))]
        means.append(f"{geometric_mean(both):.2f}×" if both else "")
    table.add_row("beside what ships", *means, *("" for _ in searching))
    report_console().print(table)


def versions() -> str:
    """Of the other systems."""
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            found.append(f"no {package}")
    return ", ".join(found)


@click.command(help=__doc__)
@click.option("--trials", type=click.IntRange(1), help=f"schedules that each may measure; by default {TRIALS}")
@click.option("--small", is_flag=True, help=f"few layers, {SMALL_TRIALS} trials")
@click.option("--only", default="", help="layers with this in their names")
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("peers"), help="folder of the log")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="write the rows there as well")
@click.option("--target", help="by default the best that this machine runs")
@click.option("--threads", type=int, help="by default all cores")
def main(
    trials: int | None,
    small: bool,
    only: str,
    seed: int,
    out: Path,
    json_file: Path | None,
    target: str | None,
    threads: int | None,
) -> None:
    """See the module."""
    bench = Bench.of(target, threads, out)
    count = trials or (SMALL_TRIALS if small else TRIALS)
    rows: list[Row] = []
    told: set[str] = set()
    for work in works(bench.machine, small, only):
        try:
            rows.append(row(work, bench, count, seed))
        except LatteError as error:
            click.echo(f"{work.name}: {error}", err=True)
            continue
        for side, why in rows[-1].missing.items():
            if why not in told:
                click.echo(f"{work.name}: no {side}: {why}", err=True)
                told.add(why)
        shares = ", ".join(f"{side} {rows[-1].share(side):.0%}" for side in rows[-1].seconds)
        click.echo(f"{work.name}: {shares}", err=True)
    found_on = bench.machine
    report_console().print(
        f"{machine()}, {versions()}\n{found_on.target.name}, {found_on.threads} threads, {count} trials"
    )
    if rows:
        show(rows)
    if json_file is not None:
        values = {"machine": machine(), "peers": versions(), "target": found_on.target.name, "trials": count}
        write_results(json_file, json.dumps({**values, "rows": [asdict(each) for each in rows]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
