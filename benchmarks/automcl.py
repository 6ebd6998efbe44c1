"""AutoMCL's figures: its schedules for products, the choice among them, its tile sizes, its search beside AutoTVM's.

    python benchmarks/tuning.py automcl measure           # 80 sizes × 8 schedules × 16 trials: about five hours
    python benchmarks/tuning.py automcl measure --small   # 16 sizes × 4 schedules × 8 trials: half an hour at the most
    python benchmarks/tuning.py automcl spaces            # figures 4 and 5; --small: half an hour at the most
    python benchmarks/tuning.py automcl choose            # trains the choice of schedules: automcl_avx512.json
    python benchmarks/tuning.py automcl figures           # tables and pictures of what was measured
    python benchmarks/tuning.py automcl record 256,256,256   # a log of random draws, for replay
    python benchmarks/tuning.py automcl replay            # AutoMCL's search beside AutoTVM's on the logs
    python benchmarks/tuning.py automcl ideal-cache       # theorems 1 and 2 beside a simulated ideal cache

What is measured is in ``benchmarks/tuning/automcl_TARGET.jsonl``, a line a search; a search that is there is not done
again, so that an interrupted command goes on. Nothing else should run beside ``measure``, ``spaces`` and ``record``.
"""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import geometric_mean, mean
from time import monotonic
from zlib import crc32

import click
from ideal_cache import convolution_trace, misses, product_trace
from rich.console import Console
from rich.table import Table

from latte.profiling.roofline import check_plot
from latte.tools.net_files import plain_errors
from latte.tools.tune.choice import (
    ALL,
    FACTORS,
    FILTERED,
    POWERS,
    Row,
    Size,
    add_row,
    by_size,
    qualities,
    read_rows,
    shares_best,
    sizes,
    trained,
)
from latte.tools.tune.session import Machine
from swirl.config import settings
from swirl.errors import CommandError, LatteError
from swirl.measure.rates import lower_quartile
from swirl.schedule.recipe import Schedule
from swirl.schedule.rules.schedule import default_schedule
from swirl.target.machine import resolve_target
from swirl.target.targets import Target
from swirl.tune.automcl.choice import choice_file
from swirl.tune.automcl.complexity import (
    CONV,
    CONVOPT,
    DNMM,
    DPMM,
    LPMM,
    PRODUCTS,
    RPMM,
    RPMMV,
    TMM,
    TTMM,
    ConvTile,
    Tile,
    c_c,
    c_m,
    t_c,
    t_m,
)
from swirl.tune.automcl.factors import (
    MOST,
    Filter,
    Tiling,
    factor_space,
    initial_space,
    kept_space,
    power_space,
)
from swirl.tune.automcl.products import product_subject
from swirl.tune.automcl.search import AUTOTVM, annealing_search, configuration_search
from swirl.tune.automcl.space import CHOSEN_AMONG, Configurations, configuration_of
from swirl.tune.candidates import Subject
from swirl.tune.divisors import divisors
from swirl.tune.evaluation import Evaluator, Timed, line_of
from swirl.tune.log import CandidateLine, Log, read_log
from swirl.tune.replay import best_after, replayed
from swirl.tune.searches import random_search, regression_search, run_search
from swirl.tune.spaces import Draw, ListedPool

FOLDER = Path(__file__).with_name("tuning")
TRIALS, SMALL_TRIALS = 16, 8
SMALL = 16
"""Sizes of the small form."""
BUDGETS, SEEDS = (8, 16, 32, 64, 128), 10
"""Trials of the replay, and seeds of each search."""
NEAR = (0.9, 0.95)
"""Shares of the best speed whose budgets are compared."""
POWERS_OF_2 = ((16, 256, 1024), (64, 1024, 256), (256, 256, 256), (1024, 1024, 1024), (8, 4096, 1024), (1024, 64, 1024))
PRIMES = ((13, 257, 1021), (61, 1021, 251), (251, 257, 263), (1019, 1021, 1031), (7, 4093, 1021), (1019, 61, 1031))
"""M, K and N of figure 4; those of :data:`POWERS_OF_2`, and primes near them."""
SEARCHES = {
    "random": random_search,
    "regression": regression_search,
    "AutoMCL": configuration_search,
    "AutoTVM, every 8": annealing_search,
    f"AutoTVM, every {AUTOTVM}": lambda pool, random: annealing_search(pool, random, AUTOTVM),
}
"""What ``replay`` compares: AutoMCL's and AutoTVM's searches, both fitted after as many trials, and after AutoTVM's."""


@click.group(help=__doc__)
def automcl() -> None:
    """See the module."""


_TARGET = click.option("--target", help="by default the best that this machine runs")
_THREADS = click.option("--threads", type=int, help="by default all cores")
_FILE = click.option("--file", type=click.Path(dir_okay=False, path_type=Path), help="of what is measured")
_SMALL = click.option("--small", is_flag=True, help="half an hour at the most")


def _file(file: Path | None, target: Target) -> Path:
    return file or FOLDER / f"automcl_{target.name}.jsonl"


def _rows(file: Path | None, target: str | None, threads: int | None) -> list[Row]:
    """What was measured with so many threads."""
    found = read_rows(_file(file, resolve_target(target)))
    return [row for row in found if row.threads == (threads or settings().threads)]


# --- measuring ----------------------------------------------------------------------------------------------
@automcl.command()
@click.option("--sizes", "count", default=80, show_default=True, help="of products")
@click.option("--trials", default=TRIALS, show_default=True, help="measurements of each search")
@_SMALL
@_FILE
@_TARGET
@_THREADS
def measure(count: int, trials: int, small: bool, file: Path | None, target: str | None, threads: int | None) -> None:
    """Search each schedule on each size (figures 2 and 3)."""
    if small:
        count, trials = min(count, SMALL), min(trials, SMALL_TRIALS)
    names = CHOSEN_AMONG if small else PRODUCTS
    asked = [(size, name, FILTERED) for size in sizes(count) for name in names]
    with plain_errors():
        _measured(asked, trials, file, target, threads)


@automcl.command()
@click.option("--trials", default=TRIALS, show_default=True, help="measurements of each search")
@_SMALL
@_FILE
@_TARGET
@_THREADS
def spaces(trials: int, small: bool, file: Path | None, target: str | None, threads: int | None) -> None:
    """Search in the paper's spaces of tile sizes and in TVM's (figures 4 and 5): DNMM for few rows, RPMM for others."""
    some = 3 if small else len(PRIMES)
    wanted = (*POWERS_OF_2[:some], *PRIMES[:some])
    kinds = (FILTERED, ALL, FACTORS, POWERS)
    asked = [(size, DNMM if size[0] <= 16 else RPMM, kind) for size in wanted for kind in kinds]
    with plain_errors():
        _measured(asked, min(trials, SMALL_TRIALS) if small else trials, file, target, threads)


def _measured(
    asked: Sequence[tuple[Size, str, str]], trials: int, file: Path | None, target: str | None, threads: int | None
) -> None:
    machine = Machine.measured(resolve_target(target), threads or settings().threads)
    path = _file(file, machine.target)
    done = {(row.extents, row.schedule, row.space) for row in read_rows(path) if row.threads == machine.threads}
    left: dict[Size, list[tuple[str, str]]] = {}
    for size, schedule, kind in asked:
        if (size, schedule, kind) not in done:
            left.setdefault(size, []).append((schedule, kind))
    searches, start, finished = sum(map(len, left.values())), monotonic(), 0
    for size, several in left.items():
        subject = product_subject(*size, machine.target)
        try:
            evaluator = Evaluator(subject, subject.by(_by_default), machine.threads, 1, click.echo)
        except LatteError as error:
            click.echo(f"{size}: {error}", err=True)
            continue
        with evaluator:
            for schedule, kind in several:
                finished += 1
                row = _searched(size, schedule, kind, subject, evaluator, machine, trials)
                if row is None:
                    click.echo(f"{size} {schedule} {kind}: nothing can be measured", err=True)
                    continue
                add_row(path, row)
                rest = (monotonic() - start) / finished * (searches - finished)
                told = f"{1 / row.ratio:.2f} times as fast as the default, {row.tried} of {row.size}"
                click.echo(f"{size} {schedule} {kind}: {told}; {rest / 60:.0f} min left", err=True)


def _by_default(s: Schedule, target: Target) -> None:
    default_schedule(s, target, "forward", {})


def tilings(kind: str, schedule: str, size: Size, threads: int, filtered: Filter) -> list[Tiling]:
    """A space of tile sizes, each once; see :data:`latte.tools.tune.choice.SPACES`."""
    if kind == FILTERED:
        return kept_space(schedule, *size, threads, filtered)
    every = {
        ALL: lambda: initial_space(schedule, *size, threads),
        FACTORS: lambda: factor_space(schedule, *size),
        POWERS: lambda: power_space(schedule, *size),
    }[kind]
    return list(every())


def _searched(
    size: Size, schedule: str, kind: str, subject: Subject, evaluator: Evaluator, machine: Machine, trials: int
) -> Row | None:
    """The best of so many trials; None where none could be measured."""
    filtered = Filter.of(machine.target)
    every = tilings(kind, schedule, size, machine.threads, filtered)
    some = Random(0).sample(every, MOST) if len(every) > MOST else every
    try:
        listed = [configuration_of(schedule, each) for each in some]
        space = Configurations(subject, (), machine.threads, (schedule,), filtered, listed)
    except CommandError:
        return None
    pool = ListedPool(space, *machine.made_for)
    steps = configuration_search(pool, Random(crc32(f"{size} {schedule} {kind}".encode())))
    found: list[Timed] = []

    def measured(batch: Sequence[Draw]) -> list[float | None]:
        timed = evaluator.measure([draw.point.candidate for draw in batch[: trials - len(found)]])
        found.extend(timed)
        return [each.ratio for each in timed]

    run_search(steps, measured, lambda: len(found) < trials)
    ratios = [(each.ratio, number) for number, each in enumerate(found) if each.ratio is not None]
    if not ratios:
        return None
    best = found[min(ratios)[1]]
    m, k, n = size
    misses = min(c_m(schedule, each.tile(m, k, n, filtered.line)) for each in some)
    seconds = lower_quartile(best.seconds), lower_quartile(best.beside)
    made = machine.target.name, machine.name, machine.threads
    return Row(m, k, n, schedule, kind, *seconds, len(found), len(every), misses, *made)


# --- figures ------------------------------------------------------------------------------------------------
@automcl.command()
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("tuned"), show_default=True)
@click.option("--seed", default=0, show_default=True, help="of the split")
@_FILE
@_TARGET
@_THREADS
def choose(out: Path, seed: int, file: Path | None, target: str | None, threads: int | None) -> None:
    """Train the choice of schedules on what was measured; latte tune --method automcl reads it."""
    with plain_errors():
        choice, _ = trained(by_size(_rows(file, target, threads)), CHOSEN_AMONG, seed)
        out.mkdir(parents=True, exist_ok=True)
        path = choice_file(out, choice.target)
        path.write_text(choice.written(), encoding="utf-8")
    click.echo(f"wrote {path}: {', '.join(f'{name}: {value}' for name, value in choice.card.items())}")


@automcl.command()
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="folder for pictures; needs matplotlib")
@click.option("--seed", default=0, show_default=True, help="of the split")
@_FILE
@_TARGET
@_THREADS
def figures(out: Path | None, seed: int, file: Path | None, target: str | None, threads: int | None) -> None:
    """Figures 2 to 5 as tables, and as pictures."""
    rows = _rows(file, target, threads)
    with plain_errors():
        if not rows:
            raise LatteError("nothing was measured", way_out="python benchmarks/tuning.py automcl measure --small")
        drawn = {"schedules": figure_2(rows), "choice": figure_3(rows, seed), "spaces": figures_4_and_5(rows)}
        for table in drawn.values():
            Console().print(table)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            for name, table in drawn.items():
                _draw(table, out / f"automcl_{name}.png")


def figure_2(rows: Sequence[Row]) -> Table:
    """Schedule → share of the sizes for which it is the best, by time and by theorem 1: of sizes that have at least the
    four among which one chooses."""
    own = {size: several for size, several in by_size(rows).items() if set(CHOSEN_AMONG) <= set(several)}
    table = Table("schedule", "by time", "by theorem 1", box=None, title=f"figure 2: best, of {len(own)} sizes")
    if own:
        by_time, by_misses = shares_best(own), shares_best(own, misses=True)
        for name in PRODUCTS:
            if name in by_time:
                table.add_row(name, f"{by_time[name]:.0%}", f"{by_misses[name]:.0%}")
    return table


def figure_3(rows: Sequence[Row], seed: int) -> Table:
    """Size of the test → speed beside the best schedule's, of the learned choice and of the static one."""
    own = {size: several for size, several in by_size(rows).items() if set(CHOSEN_AMONG) <= set(several)}
    table = Table("M, K, N", "AutoSchedule", "", "OptSchedule", "", box=None, title="figure 3: speed beside the best")
    try:
        choice, test = trained(own, CHOSEN_AMONG, seed)
    except LatteError as error:
        table.add_row(str(error))
        return table
    both = [list(qualities(own, test, each)) for each in (choice, None)]
    for (size, *learned), (_, *static) in zip(*both, strict=True):
        shown = [text for name, share in (learned, static) for text in (f"{share:.3f}", name)]
        table.add_row(", ".join(map(str, size)), *shown)
    means = [f"{geometric_mean(share for *_, share in each):.3f}" for each in both]
    table.add_row("geometric mean", means[0], "", means[1], "")
    return table


def figures_4_and_5(rows: Sequence[Row]) -> Table:
    """Space of tile sizes → its speed beside that of factors, and how many times as large it is, for sizes that are
    powers of 2, and for primes."""
    headings = ("space", "speed, powers of 2", "size", "speed, primes", "size")
    table = Table(*headings, box=None, title="figures 4 and 5: beside TVM's factors (geometric means)")
    found = {kind: by_size(rows, kind) for kind in (FACTORS, POWERS, ALL, FILTERED)}
    for kind, own in found.items():
        cells = []
        for some in (POWERS_OF_2, PRIMES):
            pairs = [
                (base, own[size][name])
                for size in some
                for name, base in found[FACTORS].get(size, {}).items()
                if name in own.get(size, {})
            ]
            speed = geometric_mean(base.ratio / row.ratio for base, row in pairs) if pairs else 0.0
            swell = geometric_mean(row.size / base.size for base, row in pairs) if pairs else 0.0
            cells += [f"{speed:.3f}", f"{swell:.2f}"] if pairs else ["", ""]
        table.add_row(kind, *cells)
    return table


def _draw(table: Table, path: Path) -> None:
    """Draw the numbers of a table as bars, a group a row.

    Raises:
        CommandError: matplotlib is missing.
    """
    check_plot(path)
    from matplotlib.figure import Figure

    names, *columns = [[str(cell) for cell in column.cells] for column in table.columns]
    headed = zip((str(each.header) for each in table.columns[1:]), columns, strict=True)
    numbers = {heading: cells for heading, cells in headed if any(cells) and all(map(_is_number, cells))}
    if not names or not numbers:
        return
    figure = Figure(figsize=(2 + 0.8 * len(names), 4))
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    width = 0.8 / len(numbers)
    for place, (heading, cells) in enumerate(numbers.items()):
        heights = [float(cell.rstrip("%")) if cell else 0.0 for cell in cells]
        axes.bar([n + place * width for n in range(len(names))], heights, width, label=heading)
    axes.set_xticks([n + 0.4 - width / 2 for n in range(len(names))], names, rotation=45, ha="right")
    axes.set_title(str(table.title))
    axes.legend()
    figure.savefig(path, dpi=120)


def _is_number(cell: str) -> bool:
    return cell.rstrip("%").replace(".", "", 1).isdigit() or not cell


# --- AutoTVM's search ---------------------------------------------------------------------------------------
@automcl.command()
@click.argument("size")
@click.option("--schedule", type=click.Choice(PRODUCTS), default=RPMMV, show_default=True)
@click.option("--draws", default=300, show_default=True)
@_TARGET
@_THREADS
def record(size: str, schedule: str, draws: int, target: str | None, threads: int | None) -> None:
    """Measure random configurations of a product, M,K,N; what the file has already is not measured again."""
    with plain_errors():
        try:
            m, k, n = (int(each) for each in size.split(","))
        except ValueError:
            raise CommandError(f"{size!r} is not M,K,N", way_out="256,256,256") from None
        machine = Machine.measured(resolve_target(target), threads or settings().threads)
        path = FOLDER / "automcl" / f"{schedule}-{m}x{k}x{n}-{machine.target.name}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        subject = product_subject(m, k, n, machine.target)
        space = Configurations(subject, (), machine.threads, (schedule,))
        known = {line.key for line in logged(path)}
        random, start = Random(len(known)), monotonic()
        pool = ListedPool(space, *machine.made_for, seen=known)
        with (
            tempfile.TemporaryDirectory() as scratch,
            Evaluator(subject, subject.by(_by_default), machine.threads, 1, click.echo) as evaluator,
        ):
            if path.exists():
                (Path(scratch) / "log.jsonl").write_bytes(gzip.decompress(path.read_bytes()))
            log = Log(Path(scratch))
            for batch in random_search(pool, random):
                for draw, timed in zip(batch, evaluator.measure([d.point.candidate for d in batch]), strict=True):
                    log.tell(line_of(draw, timed, "product", "random", 0))
                path.write_bytes(gzip.compress(log.path.read_bytes(), mtime=0))
                click.echo(f"{len(pool.seen)} of {draws}, {monotonic() - start:.0f} s", err=True)
                if len(pool.seen) >= draws:
                    break


def logged(path: Path) -> list[CandidateLine]:
    """The candidates of a log."""
    return [line for line in read_log(path) if isinstance(line, CandidateLine)]


@automcl.command()
@click.option("--seeds", default=SEEDS, show_default=True, help="of each search")
def replay(seeds: int) -> None:
    """Searches on the logs that are kept: the best speed at equal budgets, and the budgets at equal speed."""
    paths = sorted((FOLDER / "automcl").glob("*.jsonl.gz"))
    with plain_errors():
        if not paths:
            raise LatteError("no logs are kept", way_out="python benchmarks/tuning.py automcl record 256,256,256")
    for path in paths:
        Console().print(compared(path.name.partition(".")[0], logged(path), seeds))


def compared(name: str, lines: Sequence[CandidateLine], seeds: int) -> Table:
    """Search → the mean speed beside the best of the log after so many trials, and the mean number of trials to
    come near it.

    Args:
        name: of the log.
        lines: of it.
        seeds: of each search.
    """
    counts = [count for count in BUDGETS if count < len(lines)] or [len(lines)]
    found = best_after(lines, counts, seeds, SEARCHES)
    headings = [*(f"after {count}" for count in counts), *(f"to {share:.0%}" for share in NEAR)]
    table = Table("search", *headings, box=None, title=f"{name}, {len(lines)} configurations")
    for search, values in found.items():
        budgets = [budget(search, lines, share, seeds) for share in NEAR]
        table.add_row(search, *(f"{value:.3f}" for value in values), *(f"{each:.0f}" for each in budgets))
    return table


def budget(search: str, lines: Sequence[CandidateLine], share: float, seeds: int) -> float:
    """The mean number of trials after which a search has come so near to the best of a log."""
    best = min(line.ratio for line in lines if line.ratio is not None)
    needed = []
    for seed in range(seeds):
        found = replayed(SEARCHES[search], lines, seed, enough=best / share)
        needed.append(next(n + 1 for n, ratio in enumerate(found) if ratio <= best / share))
    return mean(needed)


# --- theorems 1 and 2 ---------------------------------------------------------------------------------------
@automcl.command("ideal-cache")
@click.option("--sizes", "count", default=25, show_default=True, help="of each row")
def ideal_cache(count: int) -> None:
    """The misses of theorems 1 and 2 beside those of a simulated ideal cache that has a line more than a tile needs:
    how often they are fewer, or more than twice as many."""
    headings = ("schedule", "sizes", "fewer", "above twice", "least ratio", "greatest")
    table = Table(*headings, box=None, title=f"formula / simulation, lines of {LINE_WORDS} words")
    for kind, drawn in (("any", _any_tile), ("large", _large_tile)):
        for schedule in DIFFERENT:
            table.add_row(schedule, kind, *_beside(schedule, drawn, count))
    for kind, drawn_conv in (("any", _any_conv), ("large", _large_conv)):
        for schedule in (CONV, CONVOPT):
            table.add_row(schedule, kind, *_beside_conv(schedule, drawn_conv, max(1, count // 2)))
    Console().print(table)


DIFFERENT = (TMM, TTMM, DNMM, LPMM, RPMM, DPMM)
"""Schedules with formulas of their own."""
LINE_WORDS = 4
"""Words of a simulated line: small, so that small arrays have many."""


def _any_tile(schedule: str, random: Random) -> Tile:
    extents = [random.randint(4, 24) for _ in range(3)]
    return Tile(*extents, *(random.choice(divisors(size)) for size in extents), LINE_WORDS)


def _large_tile(schedule: str, random: Random) -> Tile:
    """Rows of a tile have two lines or more, and the sum six tiles or more."""
    mt = 8 if schedule in (LPMM, DPMM) else random.choice((4, 6, 8))
    kt, nt = (8 if schedule == DNMM else random.choice((8, 12))), random.choice((8, 12))
    counts = random.choice((2, 3)), random.choice((6, 8)), random.choice((2, 3))
    return Tile(mt * counts[0], kt * counts[1], nt * counts[2], mt, kt, nt, LINE_WORDS)


def _beside(schedule: str, drawn: Callable[[str, Random], Tile], count: int) -> list[str]:
    random = Random(schedule)
    ratios = []
    for _ in range(count):
        tile = drawn(schedule, random)
        trace = product_trace(schedule, tile, random.randrange(LINE_WORDS))
        ratios.append(c_m(schedule, tile) / misses(trace, t_m(schedule, tile) + 1))
    return _told(ratios)


def _any_conv(random: Random) -> ConvTile:
    ic, oc, kernel = random.choice((4, 6, 8)), random.choice((4, 6, 8)), random.choice((1, 2, 3))
    pad, stride, size = random.randint(0, kernel // 2), random.choice((1, 2)), random.randint(kernel + 2, 9)
    blocks = random.choice(divisors(ic)), random.choice(divisors(oc))
    found = ConvTile(1, ic, size, size, oc, kernel, kernel, 1, *blocks, LINE_WORDS, pad, pad, stride, stride)
    return replace(found, owt=random.choice(divisors(found.ow)))


def _large_conv(random: Random) -> ConvTile:
    kernel, ow, oh = random.choice((2, 3)), random.choice((16, 24)), random.choice((6, 8))
    high, wide = oh + kernel - 1, ow + kernel - 1
    return ConvTile(1, 16, high, wide, 16, kernel, kernel, 8, random.choice((4, 8)), 8, LINE_WORDS)


def _beside_conv(schedule: str, drawn: Callable[[Random], ConvTile], count: int) -> list[str]:
    random = Random(schedule)
    ratios = []
    for _ in range(count):
        tile = drawn(random)
        trace = convolution_trace(schedule, tile, random.randrange(LINE_WORDS))
        ratios.append(c_c(schedule, tile) / misses(trace, t_c(schedule, tile) + 1))
    return _told(ratios)


def _told(ratios: Sequence[float]) -> list[str]:
    below, above = sum(each < 1 for each in ratios), sum(each > 2 for each in ratios)
    return [f"{below} of {len(ratios)}", f"{above} of {len(ratios)}", f"{min(ratios):.2f}", f"{max(ratios):.1f}"]
