"""A recipe file to begin from: what the layer has now, as ``latte show --recipe`` prints it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from latte.autodiff.differentiated import Differentiated, differentiate
from latte.explain.explanation import command_fact, recipe_text
from latte.frontend.lowered import lower_layers
from latte.model.ensemble import Ensemble
from latte.model.graph import Graph
from latte.net import Net
from latte.planning.chains import find_chains
from latte.planning.plan import ScheduledUnit, make_plan
from latte.planning.recipes import Recipes
from swirl.errors import CommandError
from swirl.ir.phases import PHASES
from swirl.schedule.kept_schedules import KeptSchedules
from swirl.schedule.memo import Memos
from swirl.target.targets import Target


def default_file(layer: str) -> Path:
    """Where a recipe for a layer is begun if the user has named no file: in the current folder."""
    return Path(f"{layer}_recipe.py")


def begin_recipe(net: Net, layer: str, target: Target, file: Path) -> None:
    """Write the commands of a layer by itself, or of a chain, with their reasons, to a new file.

    Args:
        net: declared; it need not be compiled.
        layer: name of an ensemble, or of a chain.
        target: whose default schedule it is.
        file: that does not exist.

    Raises:
        CommandError: the file exists, or cannot be written, or the layer computes nothing.
        LatteError: the recipe that the layer has now is refused.
    """
    if file.exists():
        raise _exists(file)
    text = starting_recipe(net, layer, target)
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise _exists(file) from None
    except OSError as error:
        raise CommandError(
            f"{file} cannot be written: {error.strerror}", way_out="--recipe with another name"
        ) from error


def _exists(file: Path) -> CommandError:
    return CommandError(
        f"{file} exists, and is not written over", way_out=f"--recipe {file} tunes it; another name begins a new one"
    )


def starting_recipe(net: Net, layer: str, target: Target) -> str:
    """The commands that a layer has by itself, from its own recipe or the default schedule, or those of a chain, as a
    recipe.

    Raises:
        CommandError, LatteError: as :func:`begin_recipe`.
    """
    graph = net.graph
    chains = {chain.name: chain.members for chain in find_chains(graph).found}
    members = chains.get(layer) or (graph.find(layer, list(chains)),)
    programs = differentiate(graph, lower_layers(graph, net.batch_size))
    found = (item.programs for item in programs.programs() if item.ensemble in members)
    phases = [phase for phase in PHASES if phase in {each for item in found for each in item}]
    if not phases:
        raise CommandError(f"{layer} computes nothing: there is nothing to schedule")
    with Memos() as memos, KeptSchedules(memos, target) as kept:
        item = (
            _alone(graph, programs, members[0], phases, kept)
            if len(members) == 1
            else _chain(graph, programs, layer, kept)
        )
    if item.unit.joined:
        phases = [phase for phase in PHASES if phase in item.unit.parts]
    commands = [command_fact(outcome, layer) for outcome in item.result.outcomes]
    kinds = tuple(member.kind for member in members)
    title = f"{layer}, shape {tuple(members[-1].shape)}, batch size {net.batch_size}, for {target.name}."
    return recipe_text(title, commands, phases, target.simd_width, kinds if len(kinds) > 1 else ())


def _chain(graph: Graph, programs: Differentiated, name: str, kept: KeptSchedules) -> ScheduledUnit:
    """A chain as it is scheduled now."""
    plan = make_plan(graph, programs, kept, until=lambda unit: unit.name == name)
    item = plan.scheduled[-1]
    if item.unit.name != name:
        raise CommandError(f"the layers of {name} are scheduled one by one", way_out="begin with one of them")
    return item


def _alone(
    graph: Graph, programs: Differentiated, ensemble: Ensemble, phases: Sequence[str], kept: KeptSchedules
) -> ScheduledUnit:
    """A layer as it is scheduled in no chain."""
    own = Recipes(graph).path(ensemble)
    before = dict(graph.recipes)
    with tempfile.TemporaryDirectory() as scratch:
        asked = Path(scratch) / "default.py"  # a recipe of its own: the layer is in no chain then
        functions = [f"def {phase}(s, target):\n    s.default({phase!r})\n" for phase in phases]
        asked.write_text("\n\n".join(functions), encoding="utf-8")
        try:
            graph.recipes[ensemble.name] = own or asked
            plan = make_plan(graph, programs, kept, until=lambda unit: ensemble in unit.members)
        finally:
            graph.recipes.clear()
            graph.recipes.update(before)
    item = plan.scheduled[-1]
    if item.unit.joined:
        raise CommandError(
            f"{ensemble.name} is in the chain {item.unit.name}, whose recipe the net names",
            way_out=f"latte tune-by-hand FILE {item.unit.name}",
        )
    return item
