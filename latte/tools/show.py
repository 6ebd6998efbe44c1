"""``latte show`` and ``latte explain``."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from latte.explain.explanation import phases_of
from latte.model.ensemble import Ensemble
from latte.net import Net
from latte.runtime.kernels import CompiledPhase
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
        if layer is None and (stage is not None or as_list or phase is not None or as_json or as_recipe):
            raise CommandError(
                "--phase, --stage, --list, --recipe and --json are about one layer", way_out="name it: --layer conv1"
            )
        if sum((stage is not None, as_list, as_json, as_recipe)) > 1:
            raise CommandError("--stage, --list, --recipe and --json show different things", way_out="give one of them")
        if layer is None:
            _page([_line(net, ensemble) for ensemble in net.ensembles], width)
        elif as_recipe:
            if phase is not None:
                raise CommandError("--recipe is about all phases, which share layouts", way_out="leave out --phase")
            click.echo(net.explain(layer).as_recipe(), nl=False)
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
