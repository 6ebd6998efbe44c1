"""The command line: ``latte show``, ``explain``, ``bisect``, ``compare``, ``time``, ``profile``, ``tune-by-hand``,
``tune``, ``bench``, ``cache``, ``doctor``, ``export``.

A FILE defines a net: a function ``net()`` that returns one, or a module-level net. It is run as a module, up to the
first call that would run a net, such as ``fit``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.status import Status

import latte
from latte.net import Net
from latte.profiling.roofline import check_plot
from latte.tools.bench.command import bench
from latte.tools.doctor import doctor
from latte.tools.export.command import export
from latte.tools.net_files import SET, Source, compiled_net, computed_phases, load_net, plain_errors
from latte.tools.results import ResultFile, write_results
from latte.tools.show import explain, show
from latte.tools.starting_recipe import begin_recipe, default_file
from latte.tools.synthetic_data import synthetic_batch
from latte.tools.tune.command import tune
from latte.tools.tune_by_hand import Bench, NoRecipeFile
from latte.tools.tuning_session import scheduled_phases, tries
from swirl.build.cache import cache_contents, cache_folder, clear_cache
from swirl.build.jit import progress_console
from swirl.dump.bisect import bisect_stages, dumped_layers, stage_folders
from swirl.dump.compare import compare_stages
from swirl.dump.write import dump_stages
from swirl.errors import CommandError
from swirl.ir.phases import PHASE_ALIASES
from swirl.target.machine import resolve_target
from swirl.target.targets import TARGETS, Target


@click.group()
@click.version_option(latte.__version__, prog_name="latte")
def main() -> None:
    """Latte: see what the compiler makes of a net.

    A FILE is a script with a net at module level, or a function net() that returns one. It is run up to the first call
    that would run a net (fit, evaluate, forward, save, ...): fit does not train, save writes nothing. The net
    is the one called net, or else the one of that call.
    """


@main.command("time")
@click.argument("file", type=Source)
@click.option("--phase", default="forward", show_default=True, help="forward, inference or backward")
@click.option("--repeat", default=10, show_default=True, help="number of runs; times are medians")
@click.option("--target", type=click.Choice(list(TARGETS)), help="by default the best that this machine runs")
@SET
def time_command(file: Path, phase: str, repeat: int, target: str | None, choices: dict[str, Any]) -> None:
    """Compile the net of FILE, and show the share of time in each layer."""
    with plain_errors():
        compiled_net(file, target, choices).timings(phase, repeat).print()


@main.command("profile")
@click.argument("file", type=Source)
@click.option("--repeat", default=10, show_default=True, help="number of rounds; times are medians")
@click.option("--json", "json_file", type=ResultFile(), help="write the profile there as well")
@click.option("--plot", type=ResultFile(), help="draw the roofline there (.png, .svg, .pdf); needs matplotlib")
@click.option("--target", type=click.Choice(list(TARGETS)), help="by default the best that this machine runs")
@SET
def profile_command(
    file: Path, repeat: int, json_file: Path | None, plot: Path | None, target: str | None, choices: dict[str, Any]
) -> None:
    """Compile the net of FILE, and show where the time of a training step goes: for each layer and loop nest its time,
    Gflop/s, GB/s, and share of what the machine can do at the best, measured in the same seconds.

    The batch is the one that FILE has set, or made-up data.
    """
    with plain_errors():
        if plot is not None:
            check_plot(plot)
        net = compiled_net(file, target, choices)
        if not net.session.given:
            net.set_batch(*synthetic_batch(net))
        found = net.profile(repeat)
        found.print()
        if json_file is not None:
            write_results(json_file, found.to_json() + "\n")
        if plot is not None:
            found.plot(plot)


@main.command("tune-by-hand")
@click.argument("file", type=Source)
@click.argument("layer", required=False)
@click.option("--layer", "named", help="the same as LAYER: name of an ensemble, or of a chain (conv1_relu1)")
@click.option(
    "--phase",
    "phases",
    multiple=True,
    help="forward, inference, backward or update; repeatable; by default those of the recipe, and those that touch "
    "what it lays out",
)
@click.option(
    "--recipe",
    type=click.Path(dir_okay=False, path_type=Path),
    help="in place of the layer's own file; a new one begins with the commands that the layer has now",
)
@click.option("--beside", type=Source, metavar="OTHER", help="another recipe, measured in turn with this one")
@click.option("--target", type=click.Choice(list(TARGETS)), help="by default the best that this machine runs")
@click.option("--threads", type=click.IntRange(1, 4096), help="by default all cores")
@click.option("--once", is_flag=True, help="do not watch: compile, time, and end (exit status 1 if that fails)")
@SET
def tune_by_hand(
    file: Path,
    layer: str | None,
    named: str | None,
    phases: tuple[str, ...],
    recipe: Path | None,
    beside: Path | None,
    target: str | None,
    threads: int | None,
    once: bool,
    choices: dict[str, Any],
) -> None:
    """Watch the recipe file of a layer: after each save, compile that layer alone, and time each phase.

    Of a layer without a recipe file, the default schedule is written to LAYER_recipe.py, or to the new file that
    --recipe names, to begin from. A file that exists is never written over.

    Shows minimum, quartiles and median beside those of the version before and of the first one (measured in turn), and
    the shares of what the machine can do at the best, measured in the same seconds. With --beside, two recipes take
    turns, on the same threads, after their results have been compared. What is wrong with the function of a phase is
    shown, the other phases are measured, and watching goes on. Ctrl-C ends it.
    """
    with plain_errors():
        if (layer is None) == (named is None):
            raise CommandError("name one layer", way_out="latte tune-by-hand net.py conv1")
        name = layer if layer is not None else str(named)
        net, made_for = load_net(file, choices), resolve_target(target)
        first = phases[0] if phases else None
        if recipe is not None and not recipe.exists():
            _begin(net, name, made_for, recipe)
        try:
            bench = Bench(net, name, first, made_for, recipe, threads)
        except NoRecipeFile:
            recipe = default_file(name)
            _begin(net, name, made_for, recipe)
            bench = Bench(net, name, first, made_for, recipe, threads)
        asked = [bench.of(phase).phase for phase in phases]  # all of them exist
        known = [recipe] if recipe is not None else map(bench.file_for, asked or scheduled_phases(bench))
        files = ", ".join(dict.fromkeys(map(str, known)))
    click.echo(f"{name} for {bench.target.name}, recipe {files}{f', beside {beside}' if beside else ''}")
    try:
        for well in tries(bench, click.echo, lambda: asked or scheduled_phases(bench), beside, laid_out=not asked):
            if once:
                sys.exit(0 if well else 1)
            click.echo(f"── watching {', '.join(path.name for path in bench.watched)} " + "─" * 40)
    except KeyboardInterrupt:
        click.echo("")


def _begin(net: Net, layer: str, target: Target, recipe: Path) -> None:
    """Write a recipe to begin from, and say so."""
    begin_recipe(net, layer, target, recipe)
    click.echo(f"wrote {recipe}: the commands that {layer} has by itself, to begin from")


_TOLERANCE = click.option(
    "--tolerance",
    type=float,
    help="relative to the largest value of a buffer; by default 1e-5, more where sums have more than 280 terms",
)


# --- stages -------------------------------------------------------------------------------------------------
@main.command()
@click.argument("first", type=Source)
@click.argument("second", type=Source)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="of the data")
@_TOLERANCE
@click.option("--compiled", type=click.Choice(list(TARGETS)), help="compile both for a target, in place of Python")
def compare(first: Path, second: Path, seed: int, tolerance: float | None, compiled: str | None) -> None:
    """Run two stages that SWIRL_DUMP wrote on the same data.

    Names the first buffer and element that differ; the exit status is 1 then.
    """
    with plain_errors():
        found = compare_stages(first, second, seed=seed, tolerance=tolerance, target=compiled)
    click.echo(found)
    if not found.agree:
        sys.exit(1)


@main.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--layer", help="only this ensemble, or chain (conv1_relu1)")
@click.option("--phase", help="only this phase")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="of the data")
@_TOLERANCE
@click.option(
    "--compiled",
    type=click.Choice(list(TARGETS)),
    help="run the stages compiled for a target; by default Python runs them, or, for large layers, the portable target",
)
@click.option("--target", type=click.Choice(list(TARGETS)), help="of the C++; by default the best that runs here")
def bisect(
    file: Path,
    layer: str | None,
    phase: str | None,
    seed: int,
    tolerance: float | None,
    compiled: str | None,
    target: str | None,
) -> None:
    """Find the first stage of the compiler that computes something else than the stage before.

    FILE defines a net, or is a folder that SWIRL_DUMP wrote (its stages may have been edited since). At the end, the
    C++ of the last stage is compared too. Exit status 1 if anything differs. Stages run in Python, which shows a wrong
    one as it is; those of layers that Python would take minutes for are compiled for the portable target, and it is
    said. A defect that is in the C++ of all targets alike is then found at the first stage that brings it out.
    """
    wrong = False
    with plain_errors(), tempfile.TemporaryDirectory() as scratch:
        if file.is_dir():
            wanted = _dumped(file, layer, phase)
        else:
            net = compiled_net(file, compiled or target)
            for item in net.executable.compiled if layer is None else computed_phases(net, layer):
                dump_stages(Path(scratch, item.unit.name, item.phase), item.stages)
            wanted = _dumped(Path(scratch), layer, phase)
        code = None if compiled else resolve_target(target).name
        for found in wanted:
            name = f"{found.parent.name}.{found.name}"
            with progress_console().status(name) as status:

                def tell(step: str, name: str = name, status: Status = status) -> None:
                    status.update(f"{name}: {step}")

                result = bisect_stages(found, seed=seed, tolerance=tolerance, target=compiled, code=code, progress=tell)
            click.echo(result)
            wrong = wrong or result.wrong is not None
    if wrong:
        sys.exit(1)


def _dumped(folder: Path, layer: str | None, phase: str | None) -> list[Path]:
    """The folders of a dump with the stages of a layer (alone or in a chain) or chain, and of a phase; None is any.

    Raises:
        LatteError: there are none; the message lists those that there are.
    """
    there = stage_folders(folder)
    asked = PHASE_ALIASES.get(phase, phase) if phase else None
    found = [f for f in there if asked in (None, f.name) and (layer is None or layer in dumped_layers(f))]
    if not found:
        names = ", ".join(f"{found.parent.name}.{found.name}" for found in there)
        raise CommandError(f"no stages of {layer or 'any layer'}, {phase or 'any phase'}", way_out=f"there are {names}")
    return found


for command in (show, explain, bench, tune, doctor, export):
    main.add_command(command)


# --- cache --------------------------------------------------------------------------------------------------
@main.command()
@click.option("--clear", is_flag=True, help="remove the entries")
def cache(clear: bool) -> None:
    """Where compiled kernels and results of passes are kept, and how much room they take."""
    with plain_errors():
        folder = cache_folder()
        if clear:
            count, size = clear_cache()
            click.echo(f"{folder}: {count} entries removed, {size / 1e6:.1f} MB")
        else:
            count, size = cache_contents()
            click.echo(f"{folder}: {count} entries, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
