"""PolyDL's tables: variants of convolutions and products, ranked before they are measured, and measured.

    python benchmarks/polydl.py convolutions [--net resnet-50] [--small] [--json FILE]    # a row a layer
    python benchmarks/polydl.py products [--small] [--json FILE]                          # table 1 below 68 GFLOP
    python benchmarks/polydl.py train FOLDER --weights FILE                               # the ranker, from these logs
    python benchmarks/polydl.py compare FOLDER [--weights FILE]                           # it, equation 1, and chance

A row has, as shares of the speed of the fastest variant (1.00): the slowest one; the default order of loops; the
micro-kernel alone (of products: blocks of 16 in the default order; of convolutions that is the default order); what
equation 1 picks, and what the trained ranker picks, where there is one: their first choice, of products the fastest
of the best 5 %; then the schedule that ships (the default schedule, of products), the best of all these, and
PyTorch; last the milliseconds of the analysis of a variant. ``--small`` is a few layers with few variants: about half
an hour for both tables.

Each variant is a line of a log (``--out``), with the statistics that rankers read; ``--resume`` measures what is
missing. Convolutions have one image for each thread. Sizes are those of the published nets, as in the experiments
that the paper's authors have released; layers whose channels are not multiples of 16 are left out, as in the paper.
Nothing else should run beside.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from time import perf_counter

import click
from rich.table import Table
from searched import Bench, Work, by_pytorch, convolution, product

from latte.tools.bench.report import machine, report_console
from latte.tools.results import write_results
from latte.tools.tune.ranker import Layer, compared, layers_of, read_layers, trained
from latte.tools.tune.schemes import hierarchy_of
from latte.tools.tune.session import Machine
from swirl.build.cache import cache_folder
from swirl.errors import LatteError
from swirl.tune.polydl.caches import Hierarchy
from swirl.tune.polydl.ranker import Ranker, load_ranker
from swirl.tune.polydl.variants import Variants
from swirl.tune.spaces import Point
from swirl.tune.ttile.microkernels import fitting
from swirl.tune.ttile.schemes import Scheme

NETS: dict[str, tuple[tuple[int, int, int, int, int, int, int], ...]] = {
    "resnet-50": (
        (56, 56, 64, 256, 1, 0, 1),
        (56, 56, 64, 64, 1, 0, 1),
        (56, 56, 64, 64, 3, 1, 1),
        (56, 56, 256, 64, 1, 0, 1),
        (56, 56, 256, 512, 1, 0, 2),
        (56, 56, 256, 128, 1, 0, 2),
        (28, 28, 128, 128, 3, 1, 1),
        (28, 28, 128, 512, 1, 0, 1),
        (28, 28, 512, 128, 1, 0, 1),
        (28, 28, 512, 1024, 1, 0, 2),
        (28, 28, 512, 256, 1, 0, 2),
        (14, 14, 256, 256, 3, 1, 1),
        (14, 14, 256, 1024, 1, 0, 1),
        (14, 14, 1024, 256, 1, 0, 1),
        (14, 14, 1024, 2048, 1, 0, 2),
        (14, 14, 1024, 512, 1, 0, 2),
        (7, 7, 512, 512, 3, 1, 1),
        (7, 7, 512, 2048, 1, 0, 1),
        (7, 7, 2048, 512, 1, 0, 1),
    ),
    "fastrcnn": (
        (150, 188, 64, 64, 1, 0, 1),
        (150, 188, 64, 64, 3, 1, 1),
        (150, 188, 64, 256, 1, 0, 1),
        (150, 188, 256, 64, 1, 0, 1),
        (152, 190, 64, 64, 3, 0, 2),
        (75, 94, 64, 256, 1, 0, 1),
        (75, 94, 256, 128, 1, 0, 1),
        (75, 94, 256, 512, 1, 0, 1),
        (75, 94, 128, 128, 3, 1, 1),
        (75, 94, 128, 512, 1, 0, 1),
        (75, 94, 512, 128, 1, 0, 1),
        (77, 96, 128, 128, 3, 0, 2),
        (38, 47, 128, 512, 1, 0, 1),
        (38, 47, 512, 256, 1, 0, 1),
        (38, 47, 256, 256, 3, 1, 1),
        (38, 47, 256, 1024, 1, 0, 1),
        (38, 47, 512, 1024, 1, 0, 1),
        (38, 47, 1024, 256, 1, 0, 1),
        (38, 47, 1024, 512, 3, 1, 1),
        (38, 47, 512, 48, 1, 0, 1),
        (7, 7, 1024, 512, 1, 0, 1),
        (7, 7, 512, 512, 3, 1, 1),
        (7, 7, 512, 2048, 1, 0, 1),
        (7, 7, 1024, 2048, 1, 0, 1),
        (7, 7, 2048, 512, 1, 0, 1),
    ),
    "maskrcnn": (
        (256, 256, 64, 256, 1, 0, 1),
        (256, 256, 64, 64, 1, 0, 1),
        (256, 256, 64, 64, 3, 1, 1),
        (256, 256, 256, 64, 1, 0, 1),
        (256, 256, 256, 128, 1, 0, 2),
        (256, 256, 256, 256, 1, 0, 1),
        (256, 256, 256, 512, 1, 0, 2),
        (128, 128, 128, 128, 3, 1, 1),
        (128, 128, 128, 512, 1, 0, 1),
        (128, 128, 512, 128, 1, 0, 1),
        (128, 128, 512, 256, 1, 0, 2),
        (64, 64, 256, 256, 3, 1, 1),
        (64, 64, 256, 1024, 1, 0, 1),
        (128, 128, 512, 256, 1, 0, 1),
        (128, 128, 512, 1024, 1, 0, 2),
        (64, 64, 1024, 256, 1, 0, 1),
        (64, 64, 1024, 2048, 1, 0, 2),
        (64, 64, 1024, 512, 1, 0, 2),
        (32, 32, 512, 512, 3, 1, 1),
        (32, 32, 512, 2048, 1, 0, 1),
        (32, 32, 2048, 512, 1, 0, 1),
        (32, 32, 2048, 256, 1, 0, 1),
        (32, 32, 256, 256, 3, 1, 1),
        (32, 32, 256, 512, 3, 1, 1),
        (16, 16, 256, 512, 3, 1, 1),
        (64, 64, 256, 512, 3, 1, 1),
        (128, 128, 256, 256, 3, 1, 1),
        (128, 128, 256, 512, 3, 1, 1),
        (256, 256, 256, 256, 3, 1, 1),
        (256, 256, 256, 512, 3, 1, 1),
        (7, 7, 256, 1024, 7, 0, 1),
        (1, 1, 1024, 1024, 1, 0, 1),
        (14, 14, 256, 256, 3, 1, 1),
        (28, 28, 256, 256, 2, 0, 2),
    ),
}
"""Height, width, channels, filters, kernel, padding, stride of each convolution."""
PRODUCTS: dict[str, tuple[int, int, int]] = {
    "GNMT 128": (128, 2048, 4096),
    "GNMT 320": (320, 3072, 4096),
    "GNMT 2048": (2048, 4096, 32),
    "DeepBench": (1024, 16, 500000),
}
"""Rows, columns and length: those of table 1 below 68 GFLOP; with 50000, as its text has it, DeepBench's is a tenth."""
SMALL_LAYERS, SMALL_VARIANTS = 4, 20
"""Of each net, and of each layer, with ``--small``."""
TOP = 0.05
"""Share of the ranking of a product's variants of which the fastest counts."""
BLOCK = 16
"""Size of the micro-kernel's blocks where it is alone."""


@dataclass(frozen=True)
class Row:
    """What was measured of a layer: seconds, but for what says otherwise.

    Args:
        net, name, shape: of it.
        operations: floating-point operations.
        best, worst: of the variants.
        default: of the default order; 0 where it could not be measured.
        alone: of the micro-kernel alone; 0 as before.
        picked, ranked: by equation 1, and by the ranker; 0 where there is none.
        shipped: of the schedule that the layer has.
        pytorch: of PyTorch; 0 where PyTorch is missing.
        analysis: of a variant.
        variants, refused: numbers of those that were measured, and could not be.
    """

    net: str
    name: str
    shape: tuple[int, ...]
    operations: int
    best: float
    worst: float
    default: float
    alone: float
    picked: float
    ranked: float
    shipped: float
    pytorch: float
    analysis: float
    variants: int
    refused: int

    @property
    def found(self) -> float:
        """Of the fastest schedule of all."""
        return min(each for each in (self.best, self.default, self.alone, self.shipped) if each)


# --- layers -------------------------------------------------------------------------------------------------
def convolutions(nets: Sequence[str], only: str, every: int, found_on: Machine) -> Iterator[Work]:
    """The convolutions of nets, ``every`` of them each (0 is all); one image for each thread."""
    for net_name in nets:
        layers = list(enumerate(NETS[net_name], 1))
        chosen = layers[:: max(1, len(layers) // every)][:every] if every else layers
        for number, (height, width, channels, filters, kernel, pad, stride) in chosen:
            name = f"{number:02}"
            if only and only != name:
                continue
            shape = found_on.threads, channels, height, width, filters, kernel, stride, pad
            yield convolution(net_name, name, shape, found_on)


def products(only: str, found_on: Machine) -> Iterator[Work]:
    """Those of table 1; the schedule that they have is the default one."""
    for name, shape in PRODUCTS.items():
        if only in name:
            yield product(name, shape, found_on)


# --- measuring ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Tables:
    """What rows are measured with.

    Args:
        bench: see there.
        hierarchy: the caches of its machine.
        variants: that are analysed and measured, of each layer.
        ranker: of the target; None where none was trained.
    """

    bench: Bench
    hierarchy: Hierarchy
    variants: int
    ranker: Ranker | None

    def row(self, work: Work) -> Row:
        """A layer, measured.

        Raises:
            LatteError: it has no variants, or none can be measured.
        """
        table, threads = self.bench.table, self.bench.machine.threads
        space = Variants(work.subject, work.known.commands, table, threads, self.hierarchy, most=self.variants)
        start = perf_counter()
        analysed = space.drawn
        analysis = (perf_counter() - start) / max(1, len(analysed))
        points = {each.scheme: space.point(each, rank) for rank, each in enumerate(space.ranking)}
        alone = self._alone(space) if work.kind == "product" else None
        every = [*points.values(), *([alone] if work.kind == "product" else [])]
        found = self.bench.measured(work, space, every, "polydl")
        ratios, seconds = found.ratios, found.seconds
        own = {scheme: ratios[point.key] for scheme, point in points.items() if point and point.key in ratios}
        if not own:
            raise LatteError(f"{work.net} {work.name}: no variant can be measured")
        order = [each.scheme for each in space.ranking if each.scheme in own]
        default = own.get(space.scheme(space.default) or Scheme(()), 0.0)
        ranked = 0.0
        if self.ranker is not None:
            by_cost = [each for each in space.ranking if each.scheme in own]
            numbers = self.ranker.order([each.statistics for each in by_cost])
            ranked = self._picked(work, [own[by_cost[number].scheme] for number in numbers])
        only = default if work.kind == "conv" else ratios.get(alone.key, 0.0) if alone is not None else 0.0
        return Row(
            work.net,
            work.name,
            work.shape,
            work.operations,
            seconds * min(own.values()),
            seconds * max(own.values()),
            seconds * default,
            seconds * only,
            seconds * self._picked(work, [own[scheme] for scheme in order]),
            seconds * ranked,
            seconds,
            by_pytorch(work, self.bench.machine),
            analysis,
            len(own),
            found.refused,
        )

    @staticmethod
    def _picked(work: Work, ordered: Sequence[float]) -> float:
        """Of a convolution the first choice, of a product the fastest of the best 5 %."""
        return min(ordered[: max(1, round(TOP * len(ordered)))] if work.kind == "product" else ordered[:1])

    def _alone(self, space: Variants) -> Point | None:
        """The micro-kernel in blocks of 16 in the default order; it is the best one that fits them."""
        lanes = self.bench.machine.target.simd_width
        small = [each for each in fitting(self.bench.machine.target.registers) if BLOCK % (each.w * each.h) == 0]
        try:
            blocks = replace(space, table=tuple(each for each in small if BLOCK % (each.k * lanes) == 0))
        except LatteError:
            return None
        analysed = blocks.analysed(blocks.in_blocks(BLOCK))
        point = None if analysed is None else blocks.point(analysed)
        return None if point is None else replace(point, knobs={"alone": True})  # it is not one that is ranked


# --- tables -------------------------------------------------------------------------------------------------
COLUMNS = ("worst", "default", "alone", "picked", "ranked", "shipped", "found", "pytorch")
HEADINGS = ("least", "default order", "micro-kernel", "equation 1", "ranker", "shipped", "best found", "PyTorch")


def shares(row: Row) -> list[float]:
    """The speeds of a row, beside that of its fastest variant; 0 for what was not measured."""
    return [row.best / seconds if (seconds := getattr(row, name)) else 0.0 for name in COLUMNS]


def show(rows: Sequence[Row], told: str) -> None:
    """The table, with the geometric mean of each column over the layers that have it."""
    console = report_console()
    console.print(told)
    table = Table(box=None)
    table.add_column("layer")
    for heading in ("GFLOP/s at most", *HEADINGS, "ms a variant", "variants", "refused"):
        table.add_column(heading, justify="right")
    for row in rows:
        cells = [f"{each:.2f}" if each else "" for each in shares(row)]
        speed, analysis = f"{row.operations / row.best / 1e9:.0f}", f"{row.analysis * 1e3:.0f}"
        table.add_row(f"{row.net} {row.name}", speed, *cells, analysis, str(row.variants), str(row.refused))
    columns = [[each for each in column if each] for column in zip(*map(shares, rows), strict=True)]
    means = [f"{geometric_mean(column):.2f}" if column else "" for column in columns]
    table.add_row("geometric mean", "", *means, "", "", "")
    console.print(table)


def _run(works: Iterator[Work], tables: Tables, json_file: Path | None) -> None:
    rows: list[Row] = []
    for work in works:
        try:
            rows.append(tables.row(work))
        except LatteError as error:
            click.echo(f"{work.net} {work.name}: {error}", err=True)
            continue
        click.echo(json.dumps(asdict(rows[-1])), err=True)
    found_on, most = tables.bench.machine, tables.variants
    told = f"{machine()}\n{found_on.target.name}, {found_on.threads} threads, {most} variants a layer at most"
    if rows:
        show(rows, told)
    if json_file is not None:
        values = {"machine": machine(), "target": found_on.target.name, "threads": found_on.threads}
        write_results(json_file, json.dumps({**values, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")


def _tables(target: str | None, threads: int | None, variants: int, out: Path, resume: bool) -> Tables:
    bench = Bench.of(target, threads, out, resume)
    ranker = load_ranker(bench.machine.target, (out, cache_folder()))
    return Tables(bench, hierarchy_of(bench.machine), variants, ranker)


@click.group(help=__doc__)
def main() -> None:
    """See the module."""


def _options(command: object) -> object:
    for option in (
        click.option("--only", default="", help="a layer with this name"),
        click.option("--small", is_flag=True, help="few layers and variants"),
        click.option("--variants", type=click.IntRange(1), default=128, show_default=True, help="of a layer"),
        click.option("--out", type=click.Path(path_type=Path), default=Path("polydl"), help="folder of the log"),
        click.option("--resume", is_flag=True, help="do not measure again what the log has"),
        click.option("--json", "json_file", type=click.Path(path_type=Path), help="write the rows there as well"),
        click.option("--target", help="by default the best that this machine runs"),
        click.option("--threads", type=int, help="by default all cores"),
    ):
        command = option(command)  # type: ignore[arg-type]
    return command


@main.command("convolutions")
@click.option("--net", "nets", type=click.Choice(list(NETS)), multiple=True, help="by default all three")
@_options
def convolutions_command(
    nets: Sequence[str],
    only: str,
    small: bool,
    variants: int,
    out: Path,
    resume: bool,
    json_file: Path | None,
    target: str | None,
    threads: int | None,
) -> None:
    """The table of convolutions."""
    tables = _tables(target, threads, min(variants, SMALL_VARIANTS) if small else variants, out, resume)
    found = convolutions(nets or list(NETS), only, SMALL_LAYERS if small else 0, tables.bench.machine)
    _run(found, tables, json_file)


@main.command("products")
@_options
def products_command(
    only: str,
    small: bool,
    variants: int,
    out: Path,
    resume: bool,
    json_file: Path | None,
    target: str | None,
    threads: int | None,
) -> None:
    """The table of products."""
    tables = _tables(target, threads, min(variants, SMALL_VARIANTS) if small else variants, out, resume)
    _run(products(only, tables.bench.machine), tables, json_file)


_LOGS = click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))


@main.command()
@_LOGS
@click.option("--weights", "file", type=click.Path(dir_okay=False, path_type=Path), required=True)
@click.option("--epochs", default=40, show_default=True)
@click.option("--seed", default=0, show_default=True)
def train(folders: Sequence[Path], file: Path, epochs: int, seed: int) -> None:
    """Train the ranker on logs, and write its weights with a card."""
    layers = [layer for folder in folders for layer in read_layers(folder)]
    ranker = trained(layers, epochs, seed, click.echo)
    write_results(file, ranker.written())
    click.echo(json.dumps(dict(ranker.card), indent=1))


@main.command()
@_LOGS
@click.option("--weights", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def compare(folders: Sequence[Path], file: Path | None) -> None:
    """What each ranking picks in logs, beside chance and the default order."""
    layers: list[Layer] = [layer for folder in folders for layer in read_layers(folder)]
    ranker = Ranker.read(file.read_text(), str(file)) if file is not None else None
    table = Table(box=None)
    for heading in ("net", "layers", "chance", "default order", "equation 1", "ranker"):
        table.add_column(heading, justify="left" if heading == "net" else "right")
    for name, found in compared(layers_of(layers), ranker).items():
        shown = [f"{each:.3f}" if each else "" for each in (found.chance, found.default, found.equation, found.ranker)]
        table.add_row(name, str(found.layers), *shown)
    report_console().print(table)


if __name__ == "__main__":
    main()
