"""The command line: ``latte show``, ``bisect``, ``compare``, ``time``, ``profile``, ``tune-by-hand``, ``bench``,
``cache``.

A FILE defines a net: a function ``net()`` that returns one, or a module-level ``net``. It is run as a module,
so what it does under ``if __name__ == "__main__"`` (training, say) is not done here.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

import latte
from latte.explain.explanation import phases_of
from latte.net import Net
from latte.profiling.roofline import check_plot
from latte.runtime.kernels import CompiledPhase
from latte.runtime.session import NotTuned
from latte.tools.bench.command import bench
from latte.tools.made_up import made_up_batch
from swirl.cache import cache_contents, cache_folder, clear_cache
from swirl.codegen.emit import listing
from swirl.dump.bisect import bisect_stages, dumped_layers, stage_folders
from swirl.dump.compare import TOLERANCE, compare_stages
from swirl.dump.write import dump_stages
from swirl.errors import CommandError, LatteError, nearest
from swirl.phases import PHASE_ALIASES
from swirl.pipeline import Stage
from swirl.target import TARGETS, resolve_target

CPP = "c++"
Source = click.Path(exists=True, dir_okay=False, path_type=Path)
Written = click.Path(dir_okay=False, writable=True, path_type=Path)


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Our own errors are shown without a traceback."""
    try:
        yield
    except LatteError as error:
        raise click.ClickException(str(error)) from error


@click.group()
@click.version_option(latte.__version__, prog_name="latte")
def main() -> None:
    """Latte: see what the compiler makes of a net."""


# --- nets ---------------------------------------------------------------------------------------------------
def load_net(path: Path) -> Net:
    """The net that a file defines, as ``net`` or by a function ``net()``.

    Raises:
        LatteError: the file defines none, or running it fails.
    """
    name = f"latte_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LatteError("is not Python file", location=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where inspect looks for the source of the file's own layers
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
        found = getattr(module, "net", None)
        if callable(found):
            found = found()
    except LatteError:
        raise
    except Exception as error:  # whatever the user's file raises
        raise LatteError(f"does not run: {type(error).__name__}: {error}", location=str(path)) from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    if not isinstance(found, Net):
        raise LatteError(
            "defines no net",
            location=str(path),
            way_out='def net(): … return net, or a module-level net; training belongs under if __name__ == "__main__"',
        )
    return found


def _compiled(path: Path, target: str | None) -> Net:
    net = load_net(path)
    if not net.compiled:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotTuned)  # an explanation's notes say it, of each phase
            net.compile(target=target)
    elif target not in (None, net.executable.plan.target.name):
        raise CommandError(
            f"{path} compiles its net for {net.executable.plan.target.name}", way_out="leave out --target"
        )
    return net


def find_stage(stages: Sequence[Stage], wanted: str) -> Stage:
    """A stage by number or by name (the last one of that name).

    Raises:
        CommandError: there is none; the message lists those that there are.
    """
    names = [stage.name for stage in stages]
    if wanted.isdigit() and int(wanted) < len(stages):
        return stages[int(wanted)]
    if wanted in names:
        return stages[len(names) - 1 - names[::-1].index(wanted)]
    numbered = ", ".join(f"{number} {name}" for number, name in enumerate(names))
    hint = nearest(wanted, [*names, CPP])
    raise CommandError(f"no stage {wanted!r}", way_out=f"{hint}the stages are {numbered}, and {CPP}")


@main.command()
@click.argument("file", type=Source)
@click.option("--layer", help="name of an ensemble, or of a chain (conv1_relu1); without it, all are listed")
@click.option("--phase", help="forward, inference, backward or update")
@click.option("--stage", help=f"number or name of a stage, or {CPP}")
@click.option("--list", "as_list", is_flag=True, help="list the stages of the layer, with the commands that made them")
@click.option(
    "--recipe", "as_recipe", is_flag=True, help="the commands that were applied, as a recipe to copy and edit"
)
@click.option("--target", type=click.Choice(list(TARGETS)), help="by default the best that this machine runs")
@click.option("--json", "as_json", is_flag=True, help="print the explanation as JSON")
def show(
    file: Path,
    layer: str | None,
    phase: str | None,
    stage: str | None,
    as_list: bool,
    as_recipe: bool,
    target: str | None,
    as_json: bool,
) -> None:
    """Compile the net of FILE, and show what became of a layer or a chain: one stage, or the whole explanation.

    FILE has a function net() or a module-level net; training in it belongs under if __name__ == "__main__".
    """
    with _plain_errors():
        net = _compiled(file, target)
        if layer is None and (stage is not None or as_list or phase is not None or as_json or as_recipe):
            raise CommandError(
                "--phase, --stage, --list, --recipe and --json are about one layer", way_out="name it: --layer conv1"
            )
        if layer is None:
            for ensemble in net.ensembles:
                phases = ", ".join(
                    f"{item.phase} in {item.unit.name}" if item.unit.joined else item.phase
                    for item in phases_of(net.executable, ensemble)
                )
                click.echo(f"{ensemble.name:24} {ensemble.kind:16} {ensemble.shape!s:20} {phases}")
        elif as_recipe:
            if phase is not None:
                raise CommandError("--recipe is about all phases, which share layouts", way_out="leave out --phase")
            click.echo(net.explain(layer).as_recipe(), nl=False)
        elif as_list:
            for item in _computed(net, layer, phase):
                click.echo(_stage_list(item))
        elif stage is None:
            explanation = net.explain(layer, phase)
            click.echo(explanation.to_json() if as_json else explanation)
        else:
            for item in _computed(net, layer, phase):
                click.echo(_stage_text(net, item, stage))


def _computed(net: Net, layer: str, phase: str | None = None) -> list[CompiledPhase]:
    """The compiled phases of a layer or a chain, at least one.

    Raises:
        CommandError: there is no such layer or phase, or it is a data layer.
    """
    found = phases_of(net.executable, layer, phase)
    if not found:
        raise CommandError(f"{layer} computes nothing: it has no stages", way_out="name another layer")
    return found


def _stage_list(item: CompiledPhase) -> str:
    """Number and name of each stage; ``=`` marks those that changed nothing."""
    lines = [f"{item.unit.name}.{item.phase}"]
    for number, stage in enumerate(item.stages):
        same = number > 0 and stage.program.nests == item.stages[number - 1].program.nests
        lines.append(f"  {number:>2} {'=' if same else ' '} {stage.name:16} {stage.command}".rstrip())
    return "\n".join([*lines, f"       {CPP}"])


def _stage_text(net: Net, item: CompiledPhase, wanted: str) -> str:
    if wanted.lower() in (CPP, "cpp"):
        return listing(item.program, net.executable.plan.target)
    stage = find_stage(item.stages, wanted)
    title = f"# {stage.program.name}, {stage.command or stage.name}"
    return f"{title}\n{stage.program.text}\n"


@main.command("time")
@click.argument("file", type=Source)
@click.option("--phase", default="forward", show_default=True, help="forward, inference or backward")
@click.option("--repeat", default=10, show_default=True, help="number of runs; times are medians")
@click.option("--target", type=click.Choice(list(TARGETS)), help="by default the best that this machine runs")
def time_command(file: Path, phase: str, repeat: int, target: str | None) -> None:
    """Compile the net of FILE, and show the share of time in each layer."""
    with _plain_errors():
        _compiled(file, target).timings(phase, repeat).print()


@main.command("profile")
@click.argument("file", type=Source)
@click.option("--repeat", default=10, show_default=True, help="number of rounds; times are medians")
@click.option("--json", "json_file", type=Written, help="write the profile there as well")
@click.option("--plot", type=Written, help="draw the roofline there (.png, .svg, .pdf); needs matplotlib")
@click.option("--target", type=click.Choice(list(TARGETS)), help="by default the best that this machine runs")
def profile_command(file: Path, repeat: int, json_file: Path | None, plot: Path | None, target: str | None) -> None:
    """Compile the net of FILE, and show where the time of a training step goes: for each layer and loop nest its time,
    Gflop/s, GB/s, and share of what the machine can do at the best, measured in the same seconds.

    The batch is the one that FILE has set, or made-up data.
    """
    with _plain_errors():
        if plot is not None:
            check_plot(plot)
        net = _compiled(file, target)
        if not net.session.given:
            net.set_batch(*made_up_batch(net))
        found = net.profile(repeat)
        found.print()
        if json_file is not None:
            try:
                json_file.write_text(found.to_json() + "\n", encoding="utf-8")
            except OSError as error:
                raise CommandError(f"{json_file} cannot be written: {error.strerror}") from error
        if plot is not None:
            found.plot(plot)


@main.command("tune-by-hand")
@click.argument("file", type=Source)
@click.option("--layer", required=True, help="name of an ensemble, or of a chain (conv1_relu1)")
@click.option("--phase", default="forward", show_default=True, help="forward, inference, backward or update")
@click.option("--recipe", type=click.Path(dir_okay=False, path_type=Path), help="in place of the layer's own file")
@click.option("--target", type=click.Choice(list(TARGETS)), help="by default the best that this machine runs")
@click.option("--threads", type=click.IntRange(1, 4096), help="by default all cores")
@click.option("--once", is_flag=True, help="do not watch: compile, time, and end (exit status 1 if that fails)")
def tune_by_hand(
    file: Path, layer: str, phase: str, recipe: Path | None, target: str | None, threads: int | None, once: bool
) -> None:
    """Watch the recipe file of a layer: after each save, compile that layer alone, and time it.

    Shows the time beside that of the version before (measured in turn), and the shares of what the machine can do at
    the best, measured in the same seconds. What is wrong with the recipe is shown, and watching goes on. Ctrl-C ends
    it.
    """
    from latte.tools.tune_by_hand import Bench, tries

    with _plain_errors():
        bench = Bench(load_net(file), layer, phase, resolve_target(target), recipe, threads)
    click.echo(f"{layer}.{bench.phase} for {bench.target.name}, recipe {bench.paths[0]}")
    try:
        for well in tries(bench, click.echo):
            if once:
                sys.exit(0 if well else 1)
            click.echo(f"── watching {', '.join(path.name for path in bench.paths)} " + "─" * 40)
    except KeyboardInterrupt:
        click.echo("")


# --- stages -------------------------------------------------------------------------------------------------
@main.command()
@click.argument("first", type=Source)
@click.argument("second", type=Source)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="of the data")
@click.option("--tolerance", default=TOLERANCE, show_default=True, help="relative to the largest value of a buffer")
@click.option("--compiled", type=click.Choice(list(TARGETS)), help="compile both for a target, in place of Python")
def compare(first: Path, second: Path, seed: int, tolerance: float, compiled: str | None) -> None:
    """Run two stages that SWIRL_DUMP wrote on the same data.

    Names the first buffer and element that differ; the exit status is 1 then.
    """
    with _plain_errors():
        found = compare_stages(first, second, seed=seed, tolerance=tolerance, target=compiled)
    click.echo(found)
    if not found.agree:
        sys.exit(1)


@main.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--layer", help="only this ensemble, or chain (conv1_relu1)")
@click.option("--phase", help="only this phase")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="of the data")
@click.option("--tolerance", default=TOLERANCE, show_default=True, help="relative to the largest value of a buffer")
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
    tolerance: float,
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
    with _plain_errors(), tempfile.TemporaryDirectory() as scratch:
        if file.is_dir():
            wanted = _dumped(file, layer, phase)
        else:
            net = _compiled(file, compiled or target)
            for item in net.executable.compiled if layer is None else _computed(net, layer):
                dump_stages(Path(scratch, item.unit.name, item.phase), item.stages)
            wanted = _dumped(Path(scratch), layer, phase)
        code = None if compiled else resolve_target(target).name
        for found in wanted:
            result = bisect_stages(found, seed=seed, tolerance=tolerance, target=compiled, code=code)
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


main.add_command(bench)


# --- cache --------------------------------------------------------------------------------------------------
@main.command()
@click.option("--clear", is_flag=True, help="remove the entries")
def cache(clear: bool) -> None:
    """Where compiled kernels and results of passes are kept, and how much room they take."""
    with _plain_errors():
        folder = cache_folder()
        if clear:
            count, size = clear_cache()
            click.echo(f"{folder}: {count} entries removed, {size / 1e6:.1f} MB")
        else:
            count, size = cache_contents()
            click.echo(f"{folder}: {count} entries, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
