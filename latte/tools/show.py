"""``latte show`` and ``latte explain``."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from latte.explain.explanation import phases_of
from latte.model.ensemble import Ensemble
from latte.net import Net
from latte.runtime.kernels import CompiledPhase
from latte.tools.nest_assembly import assembly_of
from latte.tools.net_files import SET, Source, compiled_net, computed_phases, plain_errors
from latte.tools.synthetic_data import synthetic_batch
from swirl.codegen.emit import listing
from swirl.errors import CommandError, nearest
from swirl.schedule.pipeline import Stage
from swirl.target.targets import TARGETS

CPP = "c++"


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


@click.command()
@click.argument("file", type=Source)
@click.option("--layer", help="name of an ensemble, or of a chain (conv1_relu1); without it, all are listed")
@click.option("--phase", help="forward, inference, backward or update")
@click.option("--stage", help=f"number or name of a stage, or {CPP}")
@click.option("--list", "as_list", is_flag=True, help="list the stages of the layer, with the commands that made them")
@click.option(
    "--recipe", "as_recipe", is_flag=True, help="the commands that were applied, as a recipe to copy and edit"
)
@click.option("--assembly", is_flag=True, help="the machine code of each nest's innermost loops, and what it does")
@click.option("--kernels", is_flag=True, help="the kernel of each layer and phase, by the name that perf shows")
@click.option("--target", type=click.Choice(list(TARGETS)), help="by default the best that this machine runs")
@click.option("--json", "as_json", is_flag=True, help="print the explanation as JSON")
@click.option("--summary", is_flag=True, help="without buffers, nests and C++")
@click.option("--width", type=click.IntRange(20), help="cut lines after so many columns")
@SET
def show(
    file: Path,
    layer: str | None,
    phase: str | None,
    stage: str | None,
    as_list: bool,
    as_recipe: bool,
    assembly: bool,
    kernels: bool,
    target: str | None,
    as_json: bool,
    summary: bool,
    width: int | None,
    choices: dict[str, Any],
) -> None:
    """Compile the net of FILE, and show what became of a layer or a chain: one stage, or the whole explanation.

    FILE has a function net() or a module-level net. It is run up to the first call that would run a net, such as fit.
    """
    with plain_errors():
        net = compiled_net(file, target, choices)
        about_one = {"--stage": stage is not None, "--list": as_list, "--json": as_json, "--recipe": as_recipe}
        about_one["--assembly"] = assembly
        if layer is None and (phase is not None or any(about_one.values())):
            raise CommandError(f"--phase, {_and(about_one)} are about one layer", way_out="name it: --layer conv1")
        if sum((*about_one.values(), kernels)) > 1:
            raise CommandError(f"{_and([*about_one, '--kernels'])} show different things", way_out="give one of them")
        if kernels:
            _page(_kernels(net.executable.compiled if layer is None else computed_phases(net, layer, phase)), width)
            return
        if layer is None:
            _page([_line(net, ensemble) for ensemble in net.ensembles], width)
        elif as_recipe:
            if phase is not None:
                raise CommandError("--recipe is about all phases, which share layouts", way_out="leave out --phase")
            click.echo(net.explain(layer).as_recipe(), nl=False)
        elif assembly:
            _page(["\n\n\n".join(_assembly(net, computed_phases(net, layer, phase)))], width)
        elif as_list:
            for item in computed_phases(net, layer, phase):
                click.echo(_stage_list(item))
        elif stage is None:
            explanation = net.explain(layer, phase)
            if as_json:
                click.echo(explanation.to_json())
            else:
                _page([explanation.summary() if summary else str(explanation)], width)
        else:
            _page([_stage_text(net, item, stage) for item in computed_phases(net, layer, phase)], width)


@click.command()
@click.argument("file", type=Source)
@click.argument("layer", required=False)
@click.option("--phase", help="forward, inference, backward or update")
@click.option("--target", type=click.Choice(list(TARGETS)), help="by default the best that this machine runs")
@click.option("--measure", is_flag=True, help="profile the net, and show measured times beside those of the model")
@click.option("--width", type=click.IntRange(20), help="cut lines after so many columns")
@SET
def explain(
    file: Path,
    layer: str | None,
    phase: str | None,
    target: str | None,
    measure: bool,
    width: int | None,
    choices: dict[str, Any],
) -> None:
    """Compile the net of FILE, and say for LAYER (an ensemble or a chain; all, if left out) which commands were applied
    or skipped and why, what its loops compute and touch, and what they ask of the processor.

    latte show --layer LAYER has buffers, nests and C++ as well.
    """
    with plain_errors():
        net = compiled_net(file, target, choices)
        if layer is None and phase is not None:
            raise CommandError("--phase is about one layer", way_out="name it after the file")
        layers = [ensemble.name for ensemble in net.ensembles] if layer is None else [layer]
        if measure and not net.session.given:
            net.set_batch(*synthetic_batch(net))
        found = [net.explain(each, phase) for each in layers]
        if measure:
            found = list(map(net.profile().beside, found))
        _page(["\n\n\n".join(each.summary() for each in found)], width)


def _line(net: Net, ensemble: Ensemble) -> str:
    """A layer, and where each of its phases is computed."""
    phases = ", ".join(
        f"{item.phase} in {item.unit.name}" if item.unit.joined else item.phase
        for item in phases_of(net.executable, ensemble)
    )
    return f"{ensemble.name:24} {ensemble.kind:16} {ensemble.shape!s:20} {phases}"


def _and(words: Iterable[str]) -> str:
    """``--stage, --list and --json``."""
    *before, last = words
    return f"{', '.join(before)} and {last}"


def _assembly(net: Net, compiled: Iterable[CompiledPhase]) -> Iterator[str]:
    """The machine code of each phase; phases that share a kernel show it once."""
    shown: dict[str, str] = {}
    for item in compiled:
        title = f"{item.unit.name}.{item.phase}"
        if item.built.name in shown:
            yield f"{title}: {item.built.name}, the kernel of {shown[item.built.name]}"
        else:
            shown[item.built.name] = title
            yield str(assembly_of(item, net.executable.plan.target))


def _kernels(compiled: Iterable[CompiledPhase]) -> list[str]:
    """Each kernel with the layers and phases that it computes: equal ones share one."""
    users: dict[tuple[str, Path], list[str]] = {}
    for item in compiled:
        users.setdefault((item.built.name, item.built.path), []).append(f"{item.unit.name}.{item.phase}")
    lines = []
    for (name, library), phases in users.items():
        lines += [f"{name}  {', '.join(phases)}", f"    {library}"]
    return lines


def _page(texts: Sequence[str], width: int | None) -> None:
    """Print texts, one after the other: on a terminal through a pager if they do not fit."""
    lines = "\n".join(texts).split("\n")
    if width is not None:
        lines = [line if len(line) <= width else line[: width - 1] + "…" for line in lines]
    if len(lines) < shutil.get_terminal_size().lines:
        click.echo("\n".join(lines))
    else:
        click.echo_via_pager("\n".join(lines) + "\n")  # if the output is not a terminal, it is printed


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
