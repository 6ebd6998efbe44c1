"""Chains by default: a layer that reads its source one to one, and has no recipe, is computed where its source is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations, pairwise
from math import prod

from latte.model.ensemble import Ensemble
from latte.planning.frozen_recipes import PLANNING
from latte.planning.recipes import Recipes, chain_name
from swirl.analysis.loop_facts import executions, wants_lanes
from swirl.analysis.statements import Statement, statements_of
from swirl.errors import Declined, LatteError
from swirl.ir.nest import Nest, Program
from swirl.ir.paths import Path
from swirl.schedule.recipe import DEFAULT_SCHEDULE, Recipe, Schedule
from swirl.schedule.rules.parting import parted
from swirl.schedule.rules.schedule import FOR_RECIPES, identity_with_defaults
from swirl.schedule.rules.trials import Trials, step
from swirl.target.targets import Target

CALLS = 128
"""Calls of functions one by one that take as long as a kernel of its own costs."""
ELEMENTS = 64
"""Elements that are stored and read again in the time of such a call."""
AGAIN = "computed again where it is read: no more bytes pass by than if it were stored"


@dataclass(frozen=True)
class Pair:
    """Two neighbours of a chain.

    Args:
        name: of a chain of these two.
        storage: the first one's value and gradient.
    """

    name: str
    storage: frozenset[str]


@dataclass(frozen=True)
class DefaultChain:
    """The default schedule of neighbouring layers.

    Args:
        kinds: of the layers.
        pairs: names of the chains of each two of them.
        built_on: the kind of the first layer if it has a recipe, which then schedules the joined loops.
    """

    kinds: tuple[str, ...]
    pairs: tuple[str, ...]
    built_on: str | None

    def recipe(self, left: Mapping[tuple[str, str], str]) -> Recipe | None:
        """The recipe of the phases that are joined, or None where there are none.

        Args:
            left: name of a chain and phase → why that phase is left apart: a longer chain has not this phase, either.
        """
        phases: tuple[str, ...] = ("forward", "backward")
        if len(self.pairs) > 1:
            phases = tuple(phase for phase in phases if not any((pair, phase) in left for pair in self.pairs))
        if not phases:
            return None
        functions = {phase: _scheduled_as(self.built_on, phase) for phase in phases}
        identity = identity_with_defaults(PLANNING, "chain", self.built_on or "", *phases)
        return Recipe(DEFAULT_SCHEDULE, functions, self.kinds, identity=identity, shares=True)


def default_chain(recipes: Recipes, members: Sequence[Ensemble]) -> DefaultChain | None:
    """The default schedule of neighbouring layers, or None where they have none.

    Every layer but the first one reads its source one to one and has no recipe. The first one's recipe, or the default
    schedule, schedules the joined loops. What is refused then, has an element made in one loop and read in another,
    where it had better not be computed again, or would be slower joined, is left to the layers.

    Args:
        recipes: of the net.
        members: sources first.
    """
    first, *others = members
    if not all(map(_reads_one_to_one, members, others)) or any(recipes.path(each) for each in others):
        return None
    kinds = tuple(member.kind for member in members)
    pairs = tuple(chain_name(pair) for pair in pairwise(members))
    return DefaultChain(kinds, pairs, first.kind if recipes.path(first) else None)


@lru_cache(maxsize=256)
def _scheduled_as(kind: str | None, phase: str) -> Callable[[Schedule, Target], None]:
    """The recipe's function; equal ones are one object."""
    return partial(_phase, kind, phase)


def _reads_one_to_one(source: Ensemble, sink: Ensemble) -> bool:
    return any(edge.source is source and edge.one_to_one for edge in sink.connections) and source.shape == sink.shape


def _pair(source: str, sink: str) -> Pair:
    return Pair(f"{source}_{sink}", frozenset({f"{source}.value", f"{source}.grad"}))


def _phase(kind: str | None, phase: str, s: Schedule, target: Target) -> None:
    """Join and schedule.

    Args:
        kind: of the first layer, if it has a recipe.
    """
    pairs = [_pair(*pair) for pair in pairwise(s.layers)]
    asked, phase = phase, s.actual_phase(phase)
    unjoined = s.copy()
    _join(pairs, phase, s, target, own_loops=kind is None)
    for each in (asked, "update") if asked == "backward" else (asked,):
        if s.actual_phase(each) not in s.programs:  # the update may have become a part of backward
            continue
        if kind is None:
            FOR_RECIPES.functions[each](s, target)
            continue
        try:
            s.recipe(kind, each, on=s.actual_phase(each))
        except Declined:
            raise
        except LatteError as error:
            s.decline(f"the recipe of {kind} is for that layer alone: {error.message}")
    merged = unjoined.programs.keys() - s.programs.keys()
    if kind is not None and merged and not all(map(_scheduled, s.programs[phase].nests)):
        s.decline(f"the recipe of {kind} leaves loops of the update as they are")
    _keep_lanes(pairs, phase, s, unjoined, target)


def _join(pairs: Sequence[Pair], phase: str, s: Schedule, target: Target, *, own_loops: bool) -> None:
    """Join the loops of the layers if each element is then read where it is made, or had better be computed again.

    Args:
        own_loops: whether contractions are to have loops of their own where that is better for them.

    Raises:
        Declined: they are not joined; ``chain`` names the pair at fault.
    """
    trials = Trials(s, target, phase)
    between = _between(pairs, trials.program)
    if not own_loops and phase == "backward" and not _any_is_read(trials.program, between):
        raise Declined("the first layer has no gradient to compute", phase=phase)
    elsewhere = _read_elsewhere(trials, between)
    for nest in parted(trials) if own_loops else ():
        for name in nest.arguments:
            if name in between and name not in elsewhere:
                raise Declined("sums have loops of their own", phase=phase, chain=between[name].name)
    while elsewhere:  # what was read in the iteration that makes it may be read where another one is computed again
        _recompute(elsewhere, between, trials)
        between = _between(pairs, trials.program)
        elsewhere = _read_elsewhere(trials, between)
    if _written_between(trials.program, between):
        trials.apply("each layer reads an element where the one before it makes it", "fuse_layers")


def _read_elsewhere(trials: Trials, between: Mapping[str, Pair]) -> list[str]:
    """The buffers that are read in other iterations than those that make them, once loops are joined."""
    trial = trials.scratch()
    trial.together([step("", "fuse_layers", keep=[*between])])
    return [name for name in _written_between(trial.program, between) if not _is_in_shared_loops(trial.program, name)]


def _written_between(program: Program, between: Mapping[str, Pair]) -> list[str]:
    """Those of the buffers between layers that a program sets: others it only reads."""
    known = [s for nest in program.nests for s in statements_of(nest)]
    written = {access.name for s in known for access in s.accesses if access.kind != "read"}
    return [name for name in between if name in written]


def _any_is_read(program: Program, between: Mapping[str, Pair]) -> bool:
    """Whether something that a layer makes is read by another one."""
    known = [s for nest in program.nests for s in statements_of(nest)]
    read = {access.name for s in known for access in s.accesses if access.kind == "read"}
    return any(name in read for name in _written_between(program, between))


def _scheduled(nest: Nest) -> bool:
    return any(loop.kind != "range" for statement in statements_of(nest) for loop in statement.loops)


def _recompute(elsewhere: Sequence[str], between: Mapping[str, Pair], trials: Trials) -> None:
    """Compute gradients where they are read, instead of storing them.

    Raises:
        Declined: more bytes would pass by, or it is refused.
    """

    def check(name: str, ok: bool) -> None:
        if not ok or trials.phase != "backward":
            what = "an element is not read in the iteration that makes it"
            raise Declined(what, phase=trials.phase, chain=between[name].name)

    for name in elsewhere:  # the update only adds reads
        check(name, _recomputing_pays(trials.program, name))
    if "update" in trials.s.programs:
        trials.apply("the update reads the same", "fuse_layers", "update", keep=[*between])
    for name in elsewhere:
        check(name, _recomputing_pays(trials.program, name) and trials.apply(AGAIN, "inline", name, local=False))


def _recomputing_pays(program: Program, buffer: str) -> bool:
    """Whether no more bytes pass by where a buffer's elements are computed again at each read, and not stored."""
    known = [(nest.label, s, s.accesses) for nest in program.nests for s in statements_of(nest)]
    made = [s for _, s, accesses in known if any(a.name == buffer and a.kind != "read" for a in accesses)]
    if len(made) != 1 or wants_lanes(made[0]):
        return False
    operands = {a.name for a in made[0].accesses if a.kind == "read" and len(a.own) == len(made[0].loops)}
    passes: dict[tuple[str, Path], set[str]] = {}  # loop → what is read there
    for label, s, accesses in known:
        names = {a.name for a in accesses if a.kind == "read"}
        if s is not made[0]:
            passes.setdefault((label, s.path[:-1]), set()).update(names)
        if buffer in names and executions(s) > executions(made[0]):
            return False
    reading = [names for names in passes.values() if buffer in names]
    return sum(len(operands - names) for names in reading) <= len(operands) + len(reading) + 1


def _between(pairs: Sequence[Pair], program: Program) -> dict[str, Pair]:
    """The buffers between two layers: name → which."""
    return {name: pair for name, buffer in program.buffers.items() for pair in pairs if buffer.name in pair.storage}


def _keep_lanes(pairs: Sequence[Pair], phase: str, s: Schedule, unjoined: Schedule, target: Target) -> None:
    """Functions are not called one by one where the layers by themselves call them in lanes.

    Args:
        s: the joined layers, scheduled.
        unjoined: the layers one after the other, not scheduled.

    Raises:
        Declined: they would be; ``chain`` names the pair before the first layer that has lanes by itself.
    """
    program = unjoined.programs[phase]
    between = _between(pairs, program)
    passing = sum(prod(program.buffers[name].shape) for name in _written_between(program, between))
    if sum(_one_by_one(nest) for nest in s.programs[phase].nests) < CALLS + passing // ELEMENTS:
        return
    callers = {nest.label: nest for nest in program.nests if any(map(wants_lanes, statements_of(nest)))}
    FOR_RECIPES.functions[phase](unjoined, target)
    for label, nest in callers.items():
        own = [each for each in unjoined.programs[phase].nests if f"{each.label}_".startswith(f"{label}_")]
        made = {a.name for statement in statements_of(nest) for a in statement.accesses if a.kind != "read"}
        touched = sorted((name for name in nest.arguments if name in between), key=made.__contains__)
        if touched and not any(map(_one_by_one, own)):
            what = "functions would be called one by one, not in lanes"
            raise Declined(what, phase=phase, chain=between[touched[0]].name)  # what it reads, if it reads one


def _one_by_one(nest: Nest) -> int:
    """How often a nest calls functions outside of lanes."""
    known = [s for s in statements_of(nest) if wants_lanes(s) and all(loop.kind != "vector" for loop in s.loops)]
    return sum(map(executions, known))


def _is_in_shared_loops(program: Program, buffer: str) -> bool:
    """Whether what touches a buffer is in the same loops, but for those that only one has inside."""
    touching = [
        (nest.label, s)
        for nest in program.nests
        for s in statements_of(nest)
        if any(a.name == buffer for a in s.accesses)
    ]
    return all(a == b and _share_loops(one, other) for (a, one), (b, other) in combinations(touching, 2))


def _share_loops(one: Statement, other: Statement) -> bool:
    depth = min(len(one.loops), len(other.loops)) - 1
    if depth < 0:
        return False
    return one.path[: one.loop_depths[depth] + 1] == other.path[: other.loop_depths[depth] + 1]
