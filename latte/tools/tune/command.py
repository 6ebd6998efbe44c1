"""``latte tune``."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import monotonic

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from latte.tools.net_files import SET, Source, load_net, plain_errors
from latte.tools.tune.automcl import AUTOMCL
from latte.tools.tune.files import write_entries
from latte.tools.tune.kernels import measure_kernels, plot_table
from latte.tools.tune.plot import plot
from latte.tools.tune.schemes import POLYDL, TTILE
from latte.tools.tune.session import Found, Known, Machine
from latte.tools.tune.verify import verify
from latte.tools.tune.whole import Options, Slice, accepted, entries_of, planned, searched
from swirl.build.cache import folder_lock
from swirl.build.jit import progress_console
from swirl.config import settings
from swirl.errors import CommandError
from swirl.target.machine import resolve_target
from swirl.target.targets import TARGETS, Target
from swirl.tune.log import FILE, Log, ResultLine, read_log
from swirl.tune.searches import SEARCHES
from swirl.tune.ttile.microkernels import KernelTable, table_file

_UNITS = {"s": 1, "m": 60, "h": 3600}


class Duration(click.ParamType):
    """``90s``, ``20m`` or ``1h``, in seconds."""

    name = "time"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", value.strip())
        if not found or not float(found[1]):
            self.fail(f"{value!r} is not a time such as 60s, 20m or 1h", param, ctx)
        return float(found[1]) * _UNITS[found[2] or "s"]


@click.command("tune")
@click.argument("file", type=Source, required=False)
@click.option("--layer", "layers", multiple=True, help="name of a layer or chain; repeatable; by default the whole net")
@click.option("--phase", "phases", multiple=True, help="forward, backward or update; repeatable; by default all")
@click.option("--budget", type=Duration(), default="10m", show_default=True, help="time for all: 60s, 20m, 1h")
@click.option(
    "--method", type=click.Choice([*SEARCHES, TTILE, POLYDL, AUTOMCL]), default="regression", show_default=True
)
@click.option("--top", type=click.IntRange(1), help="with --method polydl: measure only so many of the ranking")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="of the draws")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("tuned"),
    show_default=True,
    help="folder for the recipes and the log",
)
@click.option("--resume", is_flag=True, help="do not measure again what the log has")
@click.option("--dry-run", is_flag=True, help="show what would be searched, and for how long")
@click.option(
    "--verify",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="measure the entries of this folder again; exit status 1 if one fails",
)
@click.option("--drop", is_flag=True, help="with --verify: remove entries that fail; the file as it was is kept")
@click.option(
    "--plot",
    "plotted",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="draw what the log of this folder has into tune.png there; needs matplotlib",
)
@click.option(
    "--micro-kernels",
    "kernels",
    is_flag=True,
    help="measure this machine's micro-kernels for --method ttile; minutes; needs no FILE",
)
@click.option("--target", type=click.Choice(list(TARGETS)), help="by default the best that this machine runs")
@click.option("--threads", type=click.IntRange(1, 4096), help="by default all cores")
@SET
def tune(
    file: Path | None,
    layers: tuple[str, ...],
    phases: tuple[str, ...],
    budget: float,
    method: str,
    top: int | None,
    seed: int,
    out: Path,
    resume: bool,
    dry_run: bool,
    folder: Path | None,
    drop: bool,
    plotted: Path | None,
    kernels: bool,
    target: str | None,
    threads: int | None,
    choices: dict[str, object],
) -> None:
    """Search for faster schedules of the net of FILE, and write those that make the whole net faster as recipes.

    Time goes to the phases that lose most against the machine's limit. Each candidate is compared with the schedule
    that the phase has before it is timed, in a process of its own, in turns with it; the best ones are measured again
    in another process. A result is kept if a step of the whole net gains.

    The recipes are for Net(…, recipes="tuned"), or LATTE_RECIPES=tuned. Nothing else uses them. Ctrl-C ends the search:
    what was measured is in the log, and --resume goes on from there.
    """
    with plain_errors():
        if drop and folder is None:
            raise CommandError("--drop is for --verify", way_out=f"latte tune --verify {out} --drop")
        if top is not None and method != POLYDL:
            raise CommandError(
                f"--top is for --method {POLYDL}", way_out=f"latte tune {file} --method {POLYDL} --top {top}"
            )
        if folder is not None:
            with _writing(folder) if drop else nullcontext():
                verified = verify(folder, file, target, drop, click.echo)
            if not verified:
                raise SystemExit(1)
            return
        if plotted is not None:
            _plot(plotted)
            return
        if kernels:
            with _writing(out):
                _measure_kernels(resolve_target(target), out, resume)
            return
        if file is None:
            raise CommandError("name the file of a net", way_out="latte tune net.py --budget 20m")
        options = Options(file, layers, phases, budget, method, seed, out, resume, target, threads, choices, top or 0)
        try:
            _searched(options, dry_run)
        except KeyboardInterrupt:
            click.echo(f"stopped; latte tune {file} --resume goes on from {out}")
            raise SystemExit(130) from None


def _searched(options: Options, dry_run: bool) -> None:
    """Plan a search, and do it."""
    with nullcontext() if dry_run else _writing(options.out):
        net, made_for = load_net(options.file, options.choices), resolve_target(options.target)
        machine = Machine.measured(made_for, options.threads or settings().threads)
        slices, left = planned(net, options, machine, click.echo)
        for each in left:
            click.echo(f"left: {each.name}: {each.reason}")
        if not slices:
            click.echo("there is nothing to search: no file is written")
        elif dry_run:
            _show_plan(slices)
        else:
            _tune(slices, options, machine, net.batch_size)


def _writing(folder: Path) -> AbstractContextManager[None]:
    """Nobody else may write there: files are read, and what is found is added."""
    return folder_lock(folder, "latte tune", "wait for it; another search may have a folder of its own: --out")


def _plot(folder: Path) -> None:
    tables = [path for name in TARGETS if (path := table_file(folder, name)).exists()]
    for path in tables:
        plot_table(KernelTable.read(path.read_text(encoding="utf-8"), str(path)), path.with_suffix(".png"))
        click.echo(f"micro-kernels drawn in {path.with_suffix('.png')}")
    picture = folder / "tune.png"
    if not tables or (folder / FILE).exists():
        click.echo(f"{plot(folder, picture)} phases drawn in {picture}")


def _measure_kernels(target: Target, out: Path, resume: bool) -> None:
    with Progress(*_COLUMNS, console=progress_console()) as bar:
        task = bar.add_task("micro-kernels", total=None, told=target.name)

        def show(done: int, every: int) -> None:
            bar.update(task, completed=done, total=every, told=f"{target.name}: {done} of {every}")

        try:
            path = measure_kernels(target, out, resume, bar.console.print, show)
        except KeyboardInterrupt:
            click.echo(f"stopped; --micro-kernels --resume goes on from {out}")
            raise SystemExit(130) from None
    click.echo(f"wrote {path}")


_COLUMNS = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"), TimeElapsedColumn()


def _tune(slices: list[Slice], options: Options, machine: Machine, items: int) -> None:
    earlier = list(read_log(options.out)) if options.resume else []
    known, log = Known.of(earlier, machine), Log(options.out)
    found: list[Found] = []
    start = monotonic()
    with Progress(*_COLUMNS, console=progress_console()) as bar:
        task = bar.add_task("tuning", total=sum(each.seconds for each in slices), told="")

        def show(name: str, tried: int, refused: int, share: float) -> None:
            told = f"{tried} tried, {refused} refused, best {share:.0%} of limit"
            bar.update(task, description=name, completed=monotonic() - start, told=told)

        for each in searched(slices, options, machine, items, log, known, bar.console.print, show):
            found.append(each)
            bar.console.print(_line(each))
    entries = entries_of(found, options, machine, click.echo)
    if not entries:
        click.echo("nothing gains: no file is written")
        return
    kept, measured = accepted(entries, options, machine, click.echo)
    for each in found:
        if each.best is not None:
            told = any(entry.phase == each.tunable.phase and entry.kinds == each.tunable.kinds for entry in kept)
            log.tell(
                ResultLine(each.tunable.key, each.best.key, each.ratio, "kept" if told else "the net does not gain")
            )
    log.close()
    if not kept:
        click.echo("the whole net does not gain: no file is written")
        return
    paths = write_entries(options.out, kept, click.echo)
    click.echo(f"{', '.join(map(str, measured))}; wrote {', '.join(map(str, paths))}")
    click.echo(f'use them with Net(…, recipes="{options.out}"), or LATTE_RECIPES={options.out}')


def _line(found: Found) -> str:
    name, counts = found.tunable.name, f"{found.tried} tried, {found.refused} refused"
    if found.best is None:
        return f"{name}: {counts}: {found.told}"
    default = f", {found.default / found.tuned:.2f} times as the default" if found.default else ""
    share = found.limit / found.tuned
    return f"{name}: {counts}: {found.ratio:.2f} times as fast{default}, {share:.0%} of the machine's limit"


def _show_plan(slices: list[Slice]) -> None:
    table = Table(box=None)
    for heading in ("phase", "like it", "of limit", "space", "seconds"):
        table.add_column(heading, justify="left" if heading == "phase" else "right")
    for each in slices:
        size = each.tunable.space.size()
        table.add_row(
            each.tunable.name,
            str(len(each.tunable.alike)),
            f"{each.share:.0%}" if each.share else "",
            "not counted" if size == float("inf") else f"{size:.0f}",
            f"{each.seconds:.0f}",
        )
    progress_console().print(table)
