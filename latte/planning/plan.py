"""Scheduling the units of a net one after the other: earlier units have chosen the layouts of a unit's sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

from latte.autodiff.differentiated import Differentiated, LayerPrograms
from latte.model.graph import Graph
from latte.planning.chains import Chains, candidates, chained_order, chosen_chains
from latte.planning.recipes import Recipes, short_name
from latte.planning.units import Unit, net_units
from swirl.errors import Declined, LatteError
from swirl.ir.buffers import Layout
from swirl.memo import Memo, Memos
from swirl.phases import INFERENCE
from swirl.pipeline import Scheduled, Stage, canonical_stages, finish, schedule, together
from swirl.plan_layouts import finished, with_layer_region
from swirl.plan_state import PlanState, Region, region_of
from swirl.recorded import Outcome
from swirl.target import Target


@dataclass(frozen=True)
class ScheduledUnit:
    """A unit after its recipe, and the memo of what is computed from it."""

    unit: Unit
    result: Scheduled
    memo: Memo

    def finished(self, phase: str, state: PlanState, target: Target) -> tuple[Stage, ...]:
        """All stages of a phase; the last one is translated to C++.

        Args:
            phase: one that the unit has.
            state: of the plan; units after this one may have laid out storage that this one touches.
            target: what code is made for.
        """
        *stages, last = self.result.stages[phase]
        program = finished(state, self.unit.name, phase, target.simd_width)
        return finish((*stages, replace(last, program=program)), self.memo)


def schedule_unit(
    recipes: Recipes, target: Target, state: PlanState, unit: Unit, memos: Memos
) -> ScheduledUnit | Declined:
    """Apply the recipe of the next unit; or the phase that the recipe declines.

    Args:
        recipes: of the net.
        target: what code is made for.
        state: after the units before it, which have chosen the layouts of its sources.
        unit: to be scheduled.
        memos: of the compilation.

    Raises:
        CommandError, Refused, RecipeError, LayoutError: see :func:`swirl.pipeline.schedule`.
    """
    memo = memos.of(list(unit.programs()))
    try:
        stages = _stages(unit, memo)
        state, followed = with_layer_region(state, _region(unit, stages), memo)
        own = partial(recipes.of_member, unit.members)
        result = schedule(state, unit.name, unit.recipe, target, memo, before=stages, recipes=own)
    except LatteError as error:
        if error.location is None:  # no command asked for it: the body is at fault
            error.message, error.location = f"{unit.name}: {error.message}", unit.location()
        raise
    if isinstance(result, Declined):
        return result
    copies = [Outcome(each.command, "applied", "\n".join((f"by {each.chain}", *each.notes))) for each in followed]
    return ScheduledUnit(unit, replace(result, outcomes=(*copies, *result.outcomes)), memo)


def _stages(unit: Unit, memo: Memo) -> dict[str, tuple[Stage, ...]]:
    """The programs of a unit as its recipe gets them, by phase."""
    if not unit.joined:
        return {phase: canonical_stages(part.program, memo) for phase, (part,) in unit.parts.items()}
    joined = {phase: together(f"{unit.name}.{phase}", parts, unit.local, memo) for phase, parts in unit.parts.items()}
    return {phase: (Stage("lowered", program, 0.0),) for phase, program in joined.items()}


def _region(unit: Unit, stages: Mapping[str, tuple[Stage, ...]]) -> Region:
    programs = {phase: made[-1].program for phase, made in stages.items()}
    layers = [member.name for member in unit.members]
    return region_of(unit.name, layers, programs, unit.internal, unit.lays_out, unit.parameters, unit.names)


@dataclass(frozen=True)
class Untuned:
    """A phase of a layer that its recipe has left to the default schedule.

    Args:
        layer: its name.
        phase: of the layer.
        recipe: the file's name.
        reason: why, as the recipe says.
    """

    layer: str
    phase: str
    recipe: str
    reason: str

    def __str__(self) -> str:
        return f"{self.layer} {self.phase}, by {self.recipe}: {self.reason}"


@dataclass(frozen=True)
class Plan:
    """A net's units after their recipes.

    Args:
        target: what code is made for.
        chains: which layers are compiled together.
        programs: of all layers, in order of execution.
        scheduled: the units, in order of execution.
        state: layouts and regions after all of them.
        untuned: phases that a layer's recipe has left to the default schedule.
    """

    target: Target
    chains: Chains
    programs: Sequence[LayerPrograms]
    scheduled: Sequence[ScheduledUnit]
    state: PlanState
    untuned: Sequence[Untuned] = ()

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """Storage → layout."""
        return self.state.layouts

    @property
    def units(self) -> list[Unit]:
        """What is compiled together."""
        return [item.unit for item in self.scheduled]

    @property
    def outcomes(self) -> dict[str, tuple[Outcome, ...]]:
        """Unit → the outcomes of the commands of its recipe."""
        return {item.unit.name: item.result.outcomes for item in self.scheduled}

    @property
    def notes(self) -> dict[str, tuple[str, ...]]:
        """Layer → what autodiff keeps or computes again, why it is in no chain, and what its recipe has left."""
        found = {p.ensemble.name: (*p.notes, *self.chains.notes.get(p.ensemble.name, ())) for p in self.programs}
        for each in self.untuned:
            instead = "follows forward" if each.phase == INFERENCE else "has the default schedule"
            found[each.layer] += (f"{each.phase} {instead}: {each.reason}",)
        return found


def make_plan(
    graph: Graph,
    differentiated: Differentiated,
    target: Target,
    memos: Memos,
    on_stage: Callable[[int, int, str], None] | None = None,
) -> Plan:
    """Schedule a net, unit by unit in the order of execution. Where a recipe declines a phase, the chain that it is for
    has it no longer: chains are chosen again, and the units that are then the same stay as they are.

    Args:
        graph: of the net.
        differentiated: its programs.
        target: what code is made for.
        memos: of the compilation.
        on_stage: told of every unit scheduled (done, total, name).

    Raises:
        LatteError: see :func:`schedule_unit`.
    """
    recipes = Recipes(graph)
    asked = candidates(graph, recipes, differentiated.seeded)
    left: dict[tuple[str, str], str] = {}
    done: list[ScheduledUnit] = []
    while True:
        chains = chosen_chains(asked, left)
        programs = differentiated.programs(chained_order(graph, chains.found))
        units = net_units(graph, programs, chains, recipes, left)
        same = takewhile(lambda pair: pair[0] == pair[1].unit, zip(units, done, strict=False))
        done = [item for _, item in same]
        declined = _schedule_rest(recipes, target, units, done, memos, on_stage)
        if declined is None:
            break
        unit, why = declined
        if (why.chain or unit.name, why.phase) in left:
            raise why
        left[why.chain or unit.name, why.phase] = why.message
    untuned = [
        Untuned(unit.name, phase, short_name(unit.recipe.path), left[unit.name, phase])
        for unit in units
        for phase in unit.parts
        if unit.recipe is not None and unit.recipe.path is not None and (unit.name, phase) in left
    ]
    return Plan(target, chains, programs, done, _state_after(done), untuned)


def _schedule_rest(
    recipes: Recipes,
    target: Target,
    units: Sequence[Unit],
    done: list[ScheduledUnit],
    memos: Memos,
    on_stage: Callable[[int, int, str], None] | None,
) -> tuple[Unit, Declined] | None:
    """Schedule the units after those that are done, and add them to those; or the first one that declines a phase."""
    for position in range(len(done), len(units)):
        if on_stage is not None:
            on_stage(position, len(units), units[position].name)
        made = schedule_unit(recipes, target, _state_after(done), units[position], memos)
        if isinstance(made, Declined):
            return units[position], made
        done.append(made)
    if on_stage is not None:
        on_stage(len(units), len(units), "")
    return None


def _state_after(done: Sequence[ScheduledUnit]) -> PlanState:
    return done[-1].result.state if done else PlanState()
