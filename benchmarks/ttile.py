"""TTiLE's tables: schemes of the convolutions of Yolo9000 and ResNet-18 (thesis, figure 6.1), one image.

    python benchmarks/ttile.py layers [--net yolo9000] [--threads 1] [--small] [--json FILE]    # a row a layer
    python benchmarks/ttile.py ablations [--small] [--json FILE]    # a row a layer and space

A row of ``layers`` has, as shares of the peak: the best of 30 random draws; the best of the 30 of a thousand draws that
move least data by the metric of section 5.4.3; the schedule that ships; and PyTorch. A row of ``ablations``,
on one thread, has the best and the median of 30 draws from a space: all of it; tiles in the order of Ioopt's objective
alone; micro-kernels that divide the extents alone, without pairs; and with tiles whose sizes need not divide
(``Texct`` and ``Tvar``, of one dimension of each scheme). ``--small`` is four layers of each net, or two, with 10
draws.

Draws are measured beside the schedule that ships, in turns; a draw that is refused, or has too few iterations for the
threads, is drawn again. Nothing else should run beside.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import geometric_mean, median

import click
from rich.table import Table
from searched import Bench, Work, by_pytorch, convolution

from latte.tools.bench.report import machine, report_console
from latte.tools.results import write_results
from swirl.errors import LatteError
from swirl.tune.spaces import Point
from swirl.tune.ttile.metric import caches_of
from swirl.tune.ttile.schemes import Scheme, T, Texct, Tvar
from swirl.tune.ttile.space import FREE, RANDOM, REUSE, Schemes

NETS: dict[str, dict[str, tuple[int, int, int, int, int]]] = {
    "yolo9000": {
        "0": (32, 3, 544, 3, 1),
        "2": (64, 32, 272, 3, 1),
        "4": (128, 64, 136, 3, 1),
        "5": (64, 128, 136, 1, 1),
        "8": (256, 128, 68, 3, 1),
        "9": (128, 256, 68, 1, 1),
        "12": (512, 256, 34, 3, 1),
        "13": (256, 512, 34, 1, 1),
        "18": (1024, 512, 17, 3, 1),
        "19": (512, 1024, 17, 1, 1),
        "23": (28272, 1024, 17, 1, 1),
    },
    "resnet18": {
        "1": (64, 3, 224, 7, 2),
        "2": (64, 64, 56, 3, 1),
        "3": (64, 64, 56, 1, 1),
        "4": (128, 64, 56, 3, 2),
        "5": (128, 64, 56, 1, 2),
        "6": (128, 128, 28, 3, 1),
        "7": (256, 128, 28, 3, 2),
        "8": (256, 128, 28, 3, 1),
        "9": (256, 256, 14, 3, 1),
        "10": (512, 512, 14, 3, 2),
        "11": (512, 256, 14, 1, 2),
        "12": (512, 512, 7, 3, 1),
    },
}
"""Filters, channels, height and width, kernel, stride. Filters of Yolo9000's last one are padded to whole vectors, as
in the thesis."""
SMALL = {"yolo9000": ("4", "9", "12", "18"), "resnet18": ("2", "5", "9", "12")}
ABLATED = {"yolo9000": ("4", "8", "12", "18"), "resnet18": ("9",)}
"""The layers of ``ablations``; the first two of Yolo9000 with ``--small``."""
DRAWS, SMALL_DRAWS = 30, 10
RANKED = 1000
"""Draws of which those with the least metric are measured."""
TRIES = 50
"""Draws for each that is measured, before a space counts as empty."""
SPACES = ("all", "Ioopt's order", "one micro-kernel", "sizes that do not divide")


@dataclass(frozen=True)
class Row:
    """What was measured of a layer.

    Args:
        net, name, shape: of it.
        operations: floating-point operations.
        threads: that ran it.
        peak: floating-point operations a second of the machine with them.
        space: of :data:`SPACES`.
        drawn: seconds of each random draw.
        ranked: seconds of each of those with the least metric.
        shipped: seconds of the schedule that the layer has.
        pytorch: seconds of PyTorch; 0 where PyTorch is missing, or was not asked.
    """

    net: str
    name: str
    shape: tuple[int, ...]
    operations: int
    threads: int
    peak: float
    space: str
    drawn: tuple[float, ...]
    ranked: tuple[float, ...]
    shipped: float
    pytorch: float

    def share(self, seconds: float) -> float:
        """Of the peak; 0 where nothing was measured."""
        return self.operations / seconds / self.peak if seconds else 0.0


# --- draws --------------------------------------------------------------------------------------------------
def schemes(work: Work, bench: Bench, space: str) -> Schemes:
    """The space of a layer.

    Raises:
        CommandError: it has none.
    """
    found_on = bench.machine
    caches = caches_of(found_on.target, found_on.rates, found_on.level3_bytes)
    order = REUSE if space == SPACES[1] else FREE
    pairs = space != SPACES[2]
    return Schemes(
        work.subject,
        work.known.commands,
        bench.table,
        found_on.threads,
        caches,
        order,
        ways=(RANDOM,),
        pairs=pairs,
    )


def random_points(space: Schemes, count: int, random: Random, divide: bool = True) -> list[Point]:
    """So many different random draws, or fewer where there are hardly more."""
    found: dict[str, Point] = {}
    for _ in range(TRIES * count):
        if len(found) == count or not space.kernels:
            break
        drawn = space.draw(random)
        scheme = drawn if divide else undivided(drawn, space, random)
        point = space.point(scheme) if scheme is not None else None
        if point is not None:
            found.setdefault(point.key, point)
    return list(found.values())


def ranked_points(space: Schemes, count: int, random: Random) -> list[Point]:
    """Of many draws, so many that move least data by the metric."""
    drawn = dict.fromkeys(space.draw(random) for _ in range(RANKED))
    found: dict[str, Point] = {}
    for scheme in sorted(drawn, key=space.metric):
        if len(found) == count:
            break
        if (point := space.point(scheme)) is not None:
            found.setdefault(point.key, point)
    return list(found.values())


def undivided(scheme: Scheme, space: Schemes, random: Random) -> Scheme | None:
    """A scheme whose tiles of one dimension have any size, the last one what is left; None where it has no dimension
    with two tiles above the kernel."""
    places: dict[str, list[int]] = {}
    for place, atom in enumerate(scheme.atoms):
        if isinstance(atom, T):
            places.setdefault(atom.dimension, []).append(place)
    several = [d for d, own in places.items() if len(own) == 2]
    if not several:
        return None
    dimension = random.choice(several)
    outer, inner = places[dimension]
    atoms = list(scheme.atoms)
    counts = [atom.count for atom in (atoms[outer], atoms[inner]) if isinstance(atom, T)]
    extent = space.problem.extents[dimension]
    each = extent // (counts[0] * counts[1])
    atoms[outer] = Texct(extent, dimension)
    atoms[inner] = Tvar(each * random.randrange(2, counts[0] * counts[1]), dimension)
    return Scheme(tuple(atoms))


# --- tables -------------------------------------------------------------------------------------------------
def works(bench: Bench, chosen: dict[str, Sequence[str]], only: str) -> Iterator[Work]:
    """The layers, one image each."""
    for net, names in chosen.items():
        for name in names:
            if only in ("", name):
                filters, channels, extent, kernel, stride = NETS[net][name]
                shape = 1, channels, extent, extent, filters, kernel, stride, kernel // 2
                yield convolution(net, name, shape, bench.machine)


def measured(work: Work, bench: Bench, space: str, draws: int, seed: int, whole: bool) -> Row:
    """A row.

    Args:
        work: the layer.
        bench: what it is measured with.
        space: of :data:`SPACES`.
        draws: of each way.
        seed: of the draws.
        whole: whether the metric's draws and PyTorch are measured, too.

    Raises:
        LatteError: it has no schemes, or none can be measured.
    """
    made, random = schemes(work, bench, space), Random(seed)
    drawn = random_points(made, draws, random, divide=space != SPACES[3])
    ranked = ranked_points(made, draws, random) if whole else []
    found = bench.measured(work, made, [*drawn, *ranked], "ttile")
    ratios, shipped = found.ratios, found.seconds
    own = [tuple(shipped * ratios[p.key] for p in points if p.key in ratios) for points in (drawn, ranked)]
    if not own[0]:
        raise LatteError(f"{work.net} {work.name}: no scheme of {space} can be measured")
    threads, peak = bench.machine.threads, bench.machine.rates.peak
    peer = by_pytorch(work, bench.machine) if whole else 0.0
    return Row(work.net, work.name, work.shape, work.operations, threads, peak, space, *own, shipped, peer)


def show_layers(rows: Sequence[Row]) -> None:
    """The best of each way as shares of the peak, and how many times as fast the best of all is."""
    table = Table(box=None)
    table.add_column("layer")
    for heading in ("random", "metric", "shipped", "PyTorch", "best ÷ shipped", "best ÷ PyTorch"):
        table.add_column(heading, justify="right")
    gains: list[tuple[float, float]] = []
    for row in rows:
        best = min((*row.drawn, *row.ranked))
        gains.append((row.shipped / best, row.pytorch / best))
        found = (min(row.drawn), min(row.ranked, default=0.0), row.shipped, row.pytorch)
        shares = (f"{row.share(each):.0%}" if each else "" for each in found)
        table.add_row(f"{row.net} {row.name}", *shares, *(f"{each:.2f}×" if each else "" for each in gains[-1]))
    means = [[each for each in column if each] for column in zip(*gains, strict=True)]
    shown = (f"{geometric_mean(column):.2f}×" if column else "" for column in means)
    table.add_row("geometric mean", "", "", "", "", *shown)
    report_console().print(table)


def show_spaces(rows: Sequence[Row]) -> None:
    """Best and median of each space as shares of the peak."""
    table = Table(box=None)
    table.add_column("layer")
    for space in SPACES:
        table.add_column(space, justify="right")
    for net, name in dict.fromkeys((row.net, row.name) for row in rows):
        own = {row.space: row for row in rows if (row.net, row.name) == (net, name)}
        cells = (own.get(space) for space in SPACES)
        shown = (f"{r.share(min(r.drawn)):.0%}, {r.share(median(r.drawn)):.0%}" if r else "none" for r in cells)
        table.add_row(f"{net} {name}", *shown)
    report_console().print(table)


def _written(rows: Sequence[Row], bench: Bench, json_file: Path | None) -> None:
    if json_file is not None:
        values = {"machine": machine(), "target": bench.machine.target.name, "threads": bench.machine.threads}
        write_results(json_file, json.dumps({**values, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")


def _rows(found: Iterator[tuple[Work, str]], bench: Bench, draws: int, seed: int, whole: bool) -> list[Row]:
    rows: list[Row] = []
    for work, space in found:
        try:
            rows.append(measured(work, bench, space, draws, seed, whole))
        except LatteError as error:
            click.echo(f"{work.net} {work.name}, {space}: {error}", err=True)
            continue
        click.echo(json.dumps(asdict(rows[-1])), err=True)
    console = report_console()
    console.print(f"{machine()}\n{bench.machine.target.name}, {bench.machine.threads} threads, {draws} draws")
    return rows


@click.group(help=__doc__)
def main() -> None:
    """See the module."""


_OUT = click.option("--out", type=click.Path(path_type=Path), default=Path("ttile"), help="folder of the log")
_SMALL = click.option("--small", is_flag=True, help="few layers and draws")
_ONLY = click.option("--only", default="", help="layers of this number")
_SEED = click.option("--seed", default=0, show_default=True)
_JSON = click.option("--json", "json_file", type=click.Path(path_type=Path), help="write the rows there as well")
_TARGET = click.option("--target", help="by default the best that this machine runs")


@main.command()
@click.option("--net", "nets", type=click.Choice(list(NETS)), multiple=True, help="by default both")
@click.option("--threads", type=int, help="by default all cores")
@_ONLY
@_SMALL
@_SEED
@_OUT
@_JSON
@_TARGET
def layers(
    nets: Sequence[str],
    threads: int | None,
    only: str,
    small: bool,
    seed: int,
    out: Path,
    json_file: Path | None,
    target: str | None,
) -> None:
    """Schemes beside the schedule that ships and PyTorch."""
    bench = Bench.of(target, threads, out)
    chosen: dict[str, Sequence[str]] = {net: SMALL[net] if small else list(NETS[net]) for net in nets or NETS}
    found = ((work, SPACES[0]) for work in works(bench, chosen, only))
    rows = _rows(found, bench, SMALL_DRAWS if small else DRAWS, seed, whole=True)
    if rows:
        show_layers(rows)
    _written(rows, bench, json_file)


@main.command()
@_ONLY
@_SMALL
@_SEED
@_OUT
@_JSON
@_TARGET
def ablations(only: str, small: bool, seed: int, out: Path, json_file: Path | None, target: str | None) -> None:
    """Spaces with less freedom, and with more, on one thread."""
    bench = Bench.of(target, 1, out)
    chosen: dict[str, Sequence[str]] = {"yolo9000": ABLATED["yolo9000"][:2]} if small else {**ABLATED}
    found = ((work, space) for work in works(bench, chosen, only) for space in SPACES)
    rows = _rows(found, bench, SMALL_DRAWS if small else DRAWS, seed, whole=False)
    if rows:
        show_spaces(rows)
    _written(rows, bench, json_file)


if __name__ == "__main__":
    main()
