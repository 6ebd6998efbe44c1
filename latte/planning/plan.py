"""Scheduling the units of a net one after the other: earlier units have chosen the layouts of a unit's sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TypeVar

from latte.autodiff.differentiated import Differentiated, LayerPrograms
from latte.model.frozen import Frozen
from latte.model.graph import Graph
from latte.planning.chains import Chains, chained_order, find_chains
from latte.planning.recipes import Reader, member_recipe, short_name
from latte.planning.units import Unit, net_units
from swirl.errors import LatteError, LeftApart
from swirl.ir.buffers import Layout
from swirl.memo import Memo, Memos
from swirl.phases import INFERENCE
from swirl.pipeline import Scheduled, Stage, canonical_stages, finish, schedule, together
from swirl.plan_layouts import finished
from swirl.plan_state import PlanState, Region, region_of
from swirl.recipe_files import read_recipe
from swirl.recorded import Outcome
from swirl.target import Target

T = TypeVar("T")


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
    graph: Graph, target: Target, state: PlanState, unit: Unit, memos: Memos, read: Reader = read_recipe
) -> ScheduledUnit:
    """Apply the recipe of the next unit.

    Args:
        graph: of the net.
        target: what code is made for.
        state: after the units before it, which have chosen the layouts of its sources.
        unit: to be scheduled.
        memos: of the compilation.
        read: reads a recipe's file.

    Raises:
        CommandError, Refused, RecipeError, LayoutError: see :func:`swirl.pipeline.schedule`.
    """
    memo = memos.of([program for each in (unit, *unit.apart) for program in each.programs()])
    try:
        stages = _stages(unit, memo)
        if unit.name not in state.regions:
            state = state.with_new_region(_region(unit, stages))
        for each in unit.apart:
            if each.name not in state.regions:
                state = state.with_new_region(_region(each, _stages(each, memo)))
        recipes = partial(member_recipe, graph, unit.members, read=read)
        result = schedule(state, unit.name, unit.recipe, target, memo, before=stages, recipes=recipes)
    except LeftApart as apart:
        apart.unit = apart.unit or unit.name
        raise
    except LatteError as error:
        if error.location is None:  # no command asked for it: the body is at fault
            error.message, error.location = f"{unit.name}: {error.message}", unit.location()
        raise
    return ScheduledUnit(unit, result, memo)


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


@dataclass
class Progress:
    """Units of a net that have been scheduled; scheduling resumes after the last unchanged one.

    Args:
        graph: of the net.
        target: what code is made for.
        read: reads a recipe's file.
    """

    graph: Graph
    target: Target
    read: Reader = read_recipe
    _done: list[tuple[object, ScheduledUnit]] = field(default_factory=list)

    @property
    def state(self) -> PlanState:
        """The state of the plan after the units so far."""
        return self._done[-1][1].result.state if self._done else PlanState()

    def through(
        self,
        units: Sequence[Unit],
        memos: Memos,
        stamp: Callable[[Unit], object],
        on_stage: Callable[[int, int, str], None] | None = None,
    ) -> list[ScheduledUnit]:
        """These units scheduled.

        Args:
            units: in the order in which they run.
            memos: of the compilation.
            stamp: equal for a unit that would be scheduled as before.
            on_stage: told of every unit scheduled (done, total, name).

        Raises:
            LatteError: see :func:`schedule_unit`; the units before the one that it is about stay.
        """
        stamps = [stamp(unit) for unit in units]
        pairs = zip(stamps, (before for before, _ in self._done), strict=False)
        del self._done[next((place for place, (now, before) in enumerate(pairs) if now != before), len(units)) :]
        for position in range(len(self._done), len(units)):
            if on_stage is not None:
                on_stage(position, len(units), units[position].name)
            made = schedule_unit(self.graph, self.target, self.state, units[position], memos, self.read)
            self._done.append((stamps[position], made))
        if on_stage is not None:
            on_stage(len(units), len(units), "")
        return [item for _, item in self._done]


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
        frozen: what does not train.
    """

    target: Target
    chains: Chains
    programs: Sequence[LayerPrograms]
    scheduled: Sequence[ScheduledUnit]
    state: PlanState
    untuned: Sequence[Untuned] = ()
    frozen: Frozen = field(default_factory=Frozen)

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
    """Schedule a net. Where a recipe leaves a phase to others, resume from there.

    Args:
        graph: of the net.
        differentiated: its programs.
        target: what code is made for.
        memos: of the compilation.
        on_stage: told of every unit scheduled (done, total, name).

    Raises:
        LatteError: see :func:`schedule_unit`.
    """
    read = cache(read_recipe)  # once, however often a file is asked for
    progress = Progress(graph, target, read)

    def attempt(left: Mapping[tuple[str, str], str]) -> Plan:
        chains = find_chains(graph, differentiated.seeded, left, read, differentiated)
        programs = differentiated.programs(chained_order(graph, chains.found))
        units = net_units(graph, programs, chains, read, left, differentiated)
        scheduled = progress.through(units, memos, _but_for_recording, on_stage)
        untuned = [
            Untuned(unit.name, phase, short_name(unit.recipe.path), left[unit.name, phase])
            for unit in units
            for phase in unit.parts
            if unit.recipe is not None and unit.recipe.path is not None and (unit.name, phase) in left
        ]
        return Plan(target, chains, programs, scheduled, progress.state, untuned, differentiated.frozen)

    return until_settled(attempt)


def _but_for_recording(unit: Unit) -> object:
    """Equal for units that differ only in when their recipe was made of their own commands."""
    recipe, apart = unit.recipe, tuple(replace(each, recipe=None) for each in unit.apart)
    same = replace(unit, recipe=None, apart=apart)
    return same, recipe and (recipe.name, recipe.path, *sorted(recipe.functions))


def until_settled(attempt: Callable[[Mapping[tuple[str, str], str]], T]) -> T:
    """What ``attempt`` returns, asked again whenever a recipe leaves a phase apart.

    Args:
        attempt: given the layers' or chains' names and the phases that have been left so far, with the reasons.
    """
    left: dict[tuple[str, str], str] = {}
    while True:
        try:
            return attempt(left)
        except LeftApart as apart:
            if apart.unit is None or (apart.unit, apart.phase) in left:
                raise
            left[apart.unit, apart.phase] = apart.message
