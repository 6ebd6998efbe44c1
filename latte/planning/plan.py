"""Scheduling the units of a net one after the other: each finds its sources laid out as those before it have chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TypeVar

from latte.autodiff.differentiated import Differentiated, LayerPrograms
from latte.model.graph import Graph
from latte.planning.chains import Chains, chained_order, find_chains
from latte.planning.recipes import Reader, member_recipe
from latte.planning.units import Unit, net_units, with_layouts
from swirl.errors import LatteError, LeftApart
from swirl.ir.buffers import Layout
from swirl.ir.nest import Program
from swirl.memo import Memo, remembering
from swirl.pipeline import Scheduled, Stage, canonical, finish, schedule, together
from swirl.recipe import Chained
from swirl.recipe_files import read_recipe
from swirl.recorded import Outcome
from swirl.target import Target
from swirl.transforms.relayout import Reorder

T = TypeVar("T")


@dataclass(frozen=True)
class ScheduledUnit:
    """A unit behind its recipe, and where what is computed from it is remembered."""

    unit: Unit
    result: Scheduled
    memo: Memo

    def finished(self, phase: str, layouts: Mapping[str, Layout]) -> tuple[Stage, ...]:
        """All stages of a phase, the last of which is translated.

        Args:
            phase: one that the unit has.
            layouts: of all storage, chosen by this unit or another one.
        """
        *stages, last = self.result.stages[phase]
        return finish((*stages, replace(last, program=with_layouts(last.program, layouts))), self.memo)


@dataclass
class Scheduling:
    """The units of a net, scheduled in the order in which they run.

    Args:
        graph: of the net.
        target: what code is made for.
        memos: as long as it is open, results are remembered.
        layouts: storage → layout, as far as it has been chosen.
        laid_out: programs that will be scheduled alone, to which a chain's recipe has applied layouts, by their names.
        reorders: names of such programs, and what is copied there, as its owner has laid it out otherwise.
        first_readers: data → the layers that read them first, and may lay them out.
        read: reads a recipe's file.
    """

    graph: Graph
    target: Target
    memos: ExitStack
    layouts: dict[str, Layout] = field(default_factory=dict)
    laid_out: dict[str, Program] = field(default_factory=dict)
    reorders: list[tuple[str, Reorder]] = field(default_factory=list)
    first_readers: dict[str, frozenset[str]] = field(default_factory=dict)
    read: Reader = read_recipe

    def copy(self, memos: ExitStack) -> Scheduling:
        """The units so far, to go on from with others."""
        return replace(self, memos=memos, layouts=dict(self.layouts), laid_out=dict(self.laid_out),
                       reorders=list(self.reorders), first_readers=dict(self.first_readers))  # fmt: skip

    def schedule(self, unit: Unit) -> ScheduledUnit:
        """Apply the recipe of the next unit.

        Raises:
            CommandError, Refused, RecipeError, LayoutError: see :func:`swirl.pipeline.schedule`.
        """
        try:
            return self._scheduled(unit)
        except LeftApart as apart:
            apart.chain = unit.name if unit.joined else None
            raise
        except LatteError as error:
            if error.place is None:  # no command asked for it: what the body says is at fault
                error.message, error.place = f"{unit.name}: {error.message}", unit.place()
            raise

    def _scheduled(self, unit: Unit) -> ScheduledUnit:
        owned = unit.owned(self.first_readers)
        unit = unit.laid_out(self.layouts)
        memo = self.memos.enter_context(remembering(unit.programs()))
        if unit.joined:
            joined = {ph: together(f"{unit.name}.{ph}", parts, unit.names, memo) for ph, parts in unit.parts.items()}
            apart = {program.name: canonical(program, memo) for program in unit.apart}
            recipe_for = partial(member_recipe, self.graph, unit.members, read=self.read)
            chained = Chained(unit.private, recipe_for, apart, unit.fields)
            result = schedule(joined, unit.recipe, self.target, owned, memo, chained=chained)
            self.laid_out |= result.apart
            self.reorders += result.reorders
        else:
            programs = {phase: part.program for phase, (part,) in unit.parts.items()}
            result = schedule(programs, unit.recipe, self.target, owned, memo, laid_out=self.laid_out,
                              elsewhere=unit.elsewhere, reorders=self.reorders)  # fmt: skip
        copied = {(name, reorder.buffer) for name, reorder in self.reorders}
        found = [b for p in result.apart.values() for key, b in p.buffers.items() if (p.name, key) not in copied]
        found += [b for stages in result.stages.values() for b in stages[-1].program.buffers.values()]
        self.layouts |= {buffer.name: buffer.layout for buffer in (*result.untouched.values(), *found)}
        return ScheduledUnit(unit, result, memo)


@dataclass
class Progress:
    """Units of a net that have been scheduled, to go on behind the last one that is as it was.

    Args:
        graph: of the net.
        target: what code is made for.
        read: reads a recipe's file.
    """

    graph: Graph
    target: Target
    read: Reader = read_recipe
    _done: list[tuple[object, ScheduledUnit, Scheduling]] = field(default_factory=list)

    def through(
        self,
        units: Sequence[Unit],
        memos: ExitStack,
        stamp: Callable[[Unit], object],
        on_stage: Callable[[int, int, str], None] | None = None,
    ) -> tuple[list[ScheduledUnit], Scheduling]:
        """These units scheduled, and what is known behind the last one.

        Args:
            units: in the order in which they run.
            memos: as long as it is open, results are remembered.
            stamp: equal where a unit would be scheduled as before.
            on_stage: told of every unit scheduled (done, total, name).

        Raises:
            LatteError: see :meth:`Scheduling.schedule`; the units before the one that it is about stay.
        """
        stamps = [stamp(unit) for unit in units]
        pairs = zip(stamps, (before for before, *_ in self._done), strict=False)
        del self._done[next((place for place, (now, before) in enumerate(pairs) if now != before), len(units)) :]
        for position in range(len(self._done), len(units)):
            if on_stage is not None:
                on_stage(position, len(units), units[position].name)
            with ExitStack() as own:
                scheduling = self._behind().copy(own)
                self._done.append((stamps[position], scheduling.schedule(units[position]), scheduling))
                memos.push(own.pop_all())
        if on_stage is not None:
            on_stage(len(units), len(units), "")
        return [item for _, item, _ in self._done], self._behind()

    def _behind(self) -> Scheduling:
        return self._done[-1][2] if self._done else Scheduling(self.graph, self.target, ExitStack(), read=self.read)


@dataclass(frozen=True)
class Plan:
    """A net's units after their recipes.

    Args:
        target: what code is made for.
        chains: which layers are compiled together.
        programs: of all layers, in order of execution.
        scheduled: the units, in order of execution.
        layouts: storage → layout.
    """

    target: Target
    chains: Chains
    programs: Sequence[LayerPrograms]
    scheduled: Sequence[ScheduledUnit]
    layouts: Mapping[str, Layout]

    @property
    def units(self) -> list[Unit]:
        """What is compiled together."""
        return [item.unit for item in self.scheduled]

    @property
    def outcomes(self) -> dict[str, tuple[Outcome, ...]]:
        """Unit → what became of the commands of its recipe."""
        return {item.unit.name: item.result.outcomes for item in self.scheduled}

    @property
    def notes(self) -> dict[str, tuple[str, ...]]:
        """Layer → what autodiff keeps or computes again, and why it is in no chain."""
        return {p.ensemble.name: (*p.notes, *self.chains.notes.get(p.ensemble.name, ())) for p in self.programs}


def make_plan(
    graph: Graph,
    differentiated: Differentiated,
    target: Target,
    memos: ExitStack,
    on_stage: Callable[[int, int, str], None] | None = None,
) -> Plan:
    """Schedule a net; again from there, where a recipe for a chain leaves a phase to the layers' own recipes.

    Args:
        graph: of the net.
        differentiated: its programs.
        target: what code is made for.
        memos: as long as it is open, results are remembered.
        on_stage: told of every unit scheduled (done, total, name).

    Raises:
        LatteError: see :meth:`Scheduling.schedule`.
    """
    read = cache(read_recipe)  # once, however often a file is asked for
    progress = Progress(graph, target, read)

    def attempt(left: Mapping[tuple[str, str], str]) -> Plan:
        chains = find_chains(graph, differentiated.seeded, left, read)
        programs = differentiated.programs(chained_order(graph, chains.found))
        units = net_units(graph, programs, chains, read)
        scheduled, behind = progress.through(units, memos, _but_for_recording, on_stage)
        return Plan(target, chains, programs, scheduled, behind.layouts)

    return until_settled(attempt)


def _but_for_recording(unit: Unit) -> object:
    """Equal for units that differ in nothing but when their recipe was made of commands of their own."""
    recipe = unit.recipe
    return replace(unit, recipe=None), recipe and (recipe.name, recipe.path, *sorted(recipe.functions))


def until_settled(attempt: Callable[[Mapping[tuple[str, str], str]], T]) -> T:
    """What ``attempt`` returns, asked again whenever a recipe for a chain leaves a phase apart.

    Args:
        attempt: given the names of chains and phases that have been left so far, with the reasons.
    """
    left: dict[tuple[str, str], str] = {}
    while True:
        try:
            return attempt(left)
        except LeftApart as apart:
            if apart.chain is None or (apart.chain, apart.phase) in left:
                raise
            left[apart.chain, apart.phase] = apart.message
