"""Schedules that other systems find for convolutions and products, beside ours and PyTorch, in one run.

    python benchmarks/peers.py [--trials 32] [--small] [--only TEXT] [--json FILE]

    pip install halide==21.0.0                                                      # what is missing is left out
    pip install apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1 psutil xgboost cloudpickle tornado

Each search may measure as many schedules as the others: ours by regression, around the schedule that ships and the
default one; ours in the space of TTiLE's schemes, at random, above a table of micro-kernels; Halide's scheduler of
2019, whose cost model comes trained; TVM's MetaSchedule, which begins with nothing. The fastest that each has found,
the schedule that ships, and PyTorch are then measured in turns, the order turned round each time. What the others
compute is compared with NumPy before. Images lie as each system likes them best: ours as the recipe lays them out,
PyTorch's as they come or with channels innermost, the others' with channels innermost and zeros around. Weights of ours
are packed before, PyTorch packs them in each call, the others read them with filters innermost.

A row has shares of the machine's peak; after ``s`` the seconds of the searches, of which TVM compiles on one core. The
means are over the layers that both have. ``--small`` is three convolutions and two products with 8 trials: half an
hour. Nothing else should run beside.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean
from time import monotonic, sleep

import click
from rich.table import Table
from searched import Bench, Work, asked_of, convolution, environment_of, product
from sides import SideFailed, SideProcess
from ttile import SPACES, schemes

from latte.tools.bench.report import machine, report_console, versions
from latte.tools.net_files import plain_errors
from latte.tools.results import write_results
from latte.tools.tune.session import Machine
from swirl.errors import CommandError, LatteError
from swirl.measure.rates import lower_quartile
from swirl.target.machine import resolve_target
from swirl.tune.candidates import Candidate
from swirl.tune.evaluation import Evaluator
from swirl.tune.log import MEASURED

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
ROUNDS, RUNS = 6, 5
"""Turns of each side, and runs of a turn."""
SETTLE = 0.05
"""Seconds before a side's turn: threads of the one before may spin after its last run."""
SHIPS, REGRESSION, TTILE = "ships", "regression", "TTiLE"
OURS = {REGRESSION: "regression", TTILE: "random"}
"""Our searches, and by which method they go."""
PEERS = {"PyTorch": "searched_torch.py", "Halide": "peers_halide.py", "TVM": "peers_tvm.py"}
"""Side → its script."""
EVERY = (SHIPS, *OURS, *PEERS)
PACKAGES = ("halide", "apache-tvm")


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
    found_on = bench.machine
    made = Row(work.name, work.shape, work.operations, found_on.rates.peak, {}, {}, {}, {})
    own: dict[str, Candidate] = {}
    for side, method in OURS.items():
        start = monotonic()
        try:
            space = work.space if side == REGRESSION else schemes(work, bench, SPACES[0])
            found = bench.searched(work, space, method, trials, seed)
        except CommandError as error:
            made.missing[side] = error.message
            continue
        made.searched[side], made.tried[side] = monotonic() - start, found.tried
        if found.best is None:
            made.missing[side] = f"none of {found.refused} schedules can be measured"
        else:
            own[side] = found.best
    with ExitStack() as running:
        peers: dict[str, SideProcess] = {}
        for side, script in PEERS.items():
            try:
                process = SideProcess(script, asked_of(work, found_on, trials), environment_of(found_on))
            except SideFailed as failed:
                made.missing[side] = str(failed)
                continue
            peers[side] = running.enter_context(process)
            made.searched[side], made.tried[side] = process.search_seconds, process.tried
        evaluator = running.enter_context(bench.evaluator(work))
        for number in range(ROUNDS):
            for side in (SHIPS, *peers)[:: 1 if number % 2 == 0 else -1]:
                sleep(SETTLE)
                if side == SHIPS:
                    _ours(made, work, own, evaluator)
                elif side not in made.missing:
                    try:
                        made.seconds.setdefault(side, []).extend(peers[side].seconds(RUNS))
                    except SideFailed as failed:
                        made.missing[side] = str(failed)
    for side in made.missing:
        made.seconds.pop(side, None)
    return made


def _ours(made: Row, work: Work, own: Mapping[str, Candidate], evaluator: Evaluator) -> None:
    """A turn of our schedules: of those that were found, and of the one that ships beside them.

    Raises:
        LatteError: that one cannot be measured.
    """
    left = {side: found for side, found in own.items() if side not in made.missing}
    timed = evaluator.measure(list(left.values()) or [work.known], RUNS)
    for side, each in zip(left, timed, strict=False):  # of none that is left, the one that ships was timed
        if each.outcome == MEASURED:
            made.seconds.setdefault(side, []).extend(each.seconds)
        else:
            made.missing[side] = each.told
    beside = max((each.beside for each in timed), key=len)
    if not beside:
        raise LatteError(f"nothing can be measured: {timed[0].told}")
    made.seconds.setdefault(SHIPS, []).extend(beside)


def show(rows: Sequence[Row]) -> None:
    """Shares of the peak, and the geometric mean of each side beside the schedule that ships, over what both have."""
    table = Table(box=None)
    table.add_column("layer")
    searching = [side for side in EVERY if any(row.tried.get(side) for row in rows)]
    for heading in (*EVERY, *(f"s {side}" for side in searching)):
        table.add_column(heading, justify="right")
    for each in rows:
        shares = (f"{share:.0%}" if (share := each.share(side)) else "" for side in EVERY)
        taken = (f"{each.searched[side]:.0f}" if side in each.searched else "" for side in searching)
        table.add_row(each.name, *shares, *taken)
    means = []
    for side in EVERY:
        both = [share / ships for row in rows if (ships := row.share(SHIPS)) and (share := row.share(side))]
        means.append(f"{geometric_mean(both):.2f}×" if both else "")
    table.add_row("beside what ships", *means, *("" for _ in searching))
    report_console().print(table)


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
    with plain_errors():
        if resolve_target(target).name == "portable":
            raise CommandError("the others have no portable form", way_out="--target avx2")
        bench = Bench.of(target, threads, out)
    count = trials or (SMALL_TRIALS if small else TRIALS)
    found_on = bench.machine
    how = f"{found_on.target.name}, {found_on.threads} threads, {count} trials"
    rows: list[Row] = []
    told: set[str] = set()
    for work in works(found_on, small, only):
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
        if json_file is not None:  # what was measured is kept, whatever comes after it
            values = {"machine": machine(), "peers": versions(*PACKAGES), "how": how}
            write_results(json_file, json.dumps({**values, "rows": [asdict(each) for each in rows]}, indent=1) + "\n")
    report_console().print(f"{machine()}, {versions(*PACKAGES)}\n{how}")
    if rows:
        show(rows)


if __name__ == "__main__":
    main()
