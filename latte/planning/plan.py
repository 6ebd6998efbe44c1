"""Scheduling the units of a net one after the other: earlier units have chosen the layouts of a unit's sources."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile

from latte.autodiff.differentiated import Differentiated, LayerPrograms
from latte.model.frozen import Frozen
from latte.model.graph import EVERY_RECIPE, Graph
from latte.planning.chains import Chains, candidates, chained_order, chosen_chains
from latte.planning.recipes import Recipes, chain_keys, short_name
from latte.planning.units import NetUnits, Unit
from swirl.errors import Declined, LatteError
from swirl.ir.buffers import Layout
from swirl.ir.phases import INFERENCE
from swirl.schedule.choices import Knob, check_asked, named_in
from swirl.schedule.command_log import EntryUse, Outcome
from swirl.schedule.imports import recipe_sources
from swirl.schedule.kept_schedules import BoundKernel, Kept, KeptSchedules
from swirl.schedule.later import Later
from swirl.schedule.pipeline import Scheduled, Stage, finish, finished_program, generate
from swirl.schedule.plan_layouts import finished
from swirl.schedule.plan_state import PlanState, merged
from swirl.target.targets import Target


@dataclass(frozen=True)
class ScheduledUnit:
    """A unit after its recipe.

    Args:
        unit: as it was declared.
        result: of its recipe.
        kept: where its kernels are kept.
        state: of the plan after it.
    """

    unit: Unit
    result: Scheduled
    kept: Kept
    state: PlanState

    def stages(self, phase: str, state: PlanState, target: Target) -> Sequence[Stage]:
        """All stages of a phase; the last one is translated to C++. They are made when somebody looks.

        Args:
            phase: one that the unit has.
            state: of the plan; units after this one may have laid out storage that this one touches.
            target: what code is made for.
        """

        def made() -> tuple[Stage, ...]:
            *before, last = self.result.stages[phase]
            program = finished(state, self.unit.name, phase, target.simd_width)
            return finish((*before, replace(last, made=program)), self.kept.memo())

        return Later(made)

    def kernel(self, phase: str, state: PlanState, target: Target) -> BoundKernel:
        """The C++ of a phase.

        Args:
            phase, state, target: as for :meth:`stages`.

        Raises:
            Unsupported: there is none for this target.
        """

        def made() -> BoundKernel:
            memo = self.kept.memo()
            scheduled = finished(state, self.unit.name, phase, target.simd_width)
            known = {record.name for record in scheduled.buffers.values()}
            program = finished_program(scheduled, memo)
            bound = {local: record.name for local, record in program.buffers.items()}
            added = {record.name: record for record in program.buffers.values() if record.name not in known}
            return BoundKernel(generate(program, target, memo=memo), bound, added, program.fixed)

        return self.kept.kernel(phase, state, made)


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
    def outcomes(self) -> dict[str, Sequence[Outcome]]:
        """Unit → the outcomes of the commands of its recipe."""
        return {item.unit.name: item.result.outcomes for item in self.scheduled}

    def cautions(self) -> Iterator[str]:
        """Commands of users' recipes that do nothing, little, or harm, and entries of tuned ones that are not used
        although they were found for these sizes; with their places."""
        for unit, each in self.stale_entries():
            yield f"{each.location}: {each.name} of {unit.name}: {each.told}"
        for item in self.scheduled:
            recorded = any(member.commands for member in item.unit.members)
            if recorded or (item.unit.recipe is not None and item.unit.recipe.is_ones_own):
                for outcome in item.result.outcomes:
                    command = outcome.command
                    yield from (f"{command.location}: {command.text}: {text}" for text in outcome.cautions)

    def stale_entries(self) -> Iterator[tuple[Unit, EntryUse]]:
        """Entries of tuned recipes that are not used although they were found for these sizes; not those that are used
        elsewhere in the net: they are for layers of other nests."""
        met = [(item.unit, each) for item in self.scheduled for each in item.result.entries]
        used = {(each.location, each.name) for _, each in met if each.how == "exact"}
        yield from ((u, each) for u, each in met if each.how == "stale" and (each.location, each.name) not in used)

    @property
    def notes(self) -> dict[str, tuple[str, ...]]:
        """Layer → what autodiff keeps or computes again, why it is in no chain, and what its recipe has left."""
        found = {p.ensemble.name: (*p.notes, *self.chains.notes.get(p.ensemble.name, ())) for p in self.programs}
        for item in self.scheduled:
            for member in item.unit.members:
                found[member.name] += tuple(map(str, (*item.result.knobs, *item.result.entries)))
        for each in self.untuned:
            told = f"{each.phase} has the default schedule: {each.reason}"
            unit = next(item.unit for item in self.scheduled if item.unit.name == each.layer)
            for member in unit.members:
                found[member.name] += (told,)
        return found


def make_plan(
    graph: Graph,
    differentiated: Differentiated,
    kept: KeptSchedules,
    on_stage: Callable[[int, int, str], None] | None = None,
    until: Callable[[Unit], bool] = lambda unit: False,
    recipes: Recipes | None = None,
) -> Plan:
    """Schedule a net; see :func:`planning`."""
    steps = planning(graph, differentiated, kept, on_stage, until, recipes)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            plan: Plan = end.value
            return plan


def planning(
    graph: Graph,
    differentiated: Differentiated,
    kept: KeptSchedules,
    on_stage: Callable[[int, int, str], None] | None = None,
    until: Callable[[Unit], bool] = lambda unit: False,
    recipes: Recipes | None = None,
) -> Generator[tuple[ScheduledUnit, PlanState], None, Plan]:
    """Schedule a net, unit by unit in the order of execution. Where a recipe declines a phase, the chain that it is for
    has it no longer: chains are chosen again, and the units that are then the same stay as they are.

    Args:
        graph: of the net.
        differentiated: its programs.
        kept: the schedules that are known.
        on_stage: told of every unit scheduled (done, total, name).
        until: the plan ends with the first unit for which this is true.
        recipes: of the net; by default as they are found and read.

    Yields:
        each unit once nobody else will lay out the storage that it touches, and the state then. A chain that declines
        later may still take it apart.

    Returns:
        the plan.

    Raises:
        LatteError: see :func:`swirl.schedule.pipeline.schedule`.
    """
    recipes = recipes or Recipes(graph, differentiated)
    asked = candidates(graph, recipes, differentiated.seeded)
    net_units = NetUnits(graph, recipes)
    left: dict[tuple[str, str], str] = {}
    asked_for: list[tuple[Unit, Sequence[Knob]]] = []
    start = PlanState(layouts=dict(graph.settings.given))
    done: list[ScheduledUnit] = []
    waiting: list[ScheduledUnit] = []
    while True:
        chains = chosen_chains(asked, left, differentiated)
        programs = differentiated.programs(chained_order(graph, chains.found))
        units = net_units.of(programs, chains, left)
        units = units[: next((place for place, unit in enumerate(units) if until(unit)), len(units)) + 1]
        same = takewhile(lambda pair: pair[0] == pair[1].unit, zip(units, done, strict=False))
        done = [item for _, item in same]
        waiting = [item for item in waiting if any(item is other for other in done)]
        declined, settled = None, _settled(units)
        for position in range(len(done), len(units)):
            if on_stage is not None:
                on_stage(position, len(units), units[position].name)
            made = _scheduled(recipes, units[position], state_after(done, start), kept)
            if isinstance(made, Declined):
                declined = units[position], made
                asked_for.append((units[position], made.knobs))
                break
            done.append(made)
            waiting.append(made)
            ready = [item for item in waiting if settled[item.unit.name] <= position]
            waiting = [item for item in waiting if settled[item.unit.name] > position]
            for item in ready:
                yield item, made.state
        if declined is None:
            break
        unit, why = declined
        if (why.chain or unit.name, why.phase) in left:
            raise why
        left[why.chain or unit.name, why.phase] = why.message
    if not any(until(unit) for unit in units):
        _check_choices(graph, [*asked_for, *((item.unit, item.result.knobs) for item in done)])
    if on_stage is not None:
        on_stage(len(done), len(done), "")
    return Plan(
        kept.target,
        chains,
        programs,
        done,
        state_after(done, start),
        tuple(_untuned(done, left)),
        differentiated.frozen,
    )


def _scheduled(recipes: Recipes, unit: Unit, state: PlanState, kept: KeptSchedules) -> ScheduledUnit | Declined:
    """A unit after its recipe, or the phase that the recipe declines."""
    try:
        found = kept.scheduled(unit.region, state, unit.recipe, partial(recipes.of_member, unit.members))
    except LatteError as error:
        if error.location is None:  # no command asked for it: the body is at fault
            error.message, error.location = f"{unit.name}: {error.message}", unit.location()
        raise
    if isinstance(found.made, Declined):
        return found.made
    return ScheduledUnit(unit, found.made, found, merged(state, unit.name, found.made.state))


def _check_choices(graph: Graph, asked: Sequence[tuple[Unit, Sequence[Knob]]]) -> None:
    """Refuse a choice that the recipe to which it is given does not ask for.

    Args:
        graph: of the net.
        asked: what the recipes of units have asked for.

    Raises:
        RecipeError: with those that there are.
    """
    for key, choices in graph.choices.items():
        path = graph.recipes.get(key)
        meant = [each for each in asked if key == EVERY_RECIPE or key in _keys(each[0])]
        read = [path, *(unit.recipe.path for unit, _ in meant if unit.recipe and key == EVERY_RECIPE)]
        sources = dict.fromkeys(source for file in read if file is not None for source in recipe_sources(file))
        names = [*(knob.name for _, knobs in meant for knob in knobs), *named_in(sources)]
        check_asked(choices, names, None if path is None else short_name(path))


def _keys(unit: Unit) -> set[str]:
    """Under which names a recipe for a unit, or for a layer of it, may be chosen."""
    return {*chain_keys(unit.members), *(key for layer in unit.members for key in (layer.name, layer.kind))}


def _settled(units: Sequence[Unit]) -> dict[str, int]:
    """Unit → the place of the last unit that may lay out storage that it touches."""
    last = {layer: place for place, unit in enumerate(units) for layer in unit.region.layers}
    touched = {unit.name: unit.region.touched for unit in units}
    return {name: max((last[layer] for layer in known if layer in last), default=0) for name, known in touched.items()}


def state_after(done: Sequence[ScheduledUnit], start: PlanState) -> PlanState:
    """The state of the plan after units; that at the beginning where there are none."""
    return done[-1].state if done else start


def _untuned(done: Sequence[ScheduledUnit], left: Mapping[tuple[str, str], str]) -> Iterator[Untuned]:
    """What recipes in files have left to the default schedule."""
    for item in done:
        unit = item.unit
        if unit.recipe is None or unit.recipe.path is None:
            continue
        for phase in unit.parts:
            reason = left.get((unit.name, phase)) or (item.result.untuned if phase == INFERENCE else "")
            if reason:
                yield Untuned(unit.name, phase, short_name(unit.recipe.path), reason)
