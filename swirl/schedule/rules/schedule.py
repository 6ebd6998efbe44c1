"""The default schedule: commands for a phase that no recipe schedules, from dependences, strides and extents alone.

Each command is tried; one that is refused gives way to the next candidate. What is left is a recipe like any other,
which ``explain`` shows.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import lcm, prod

from swirl.analysis.loop_facts import (
    NEAR,
    Contraction,
    contractions,
    divided,
    facts,
    moves,
    perfect_chains,
    stride,
    trips,
    wants_lanes,
)
from swirl.analysis.statements import Statement, statements_of
from swirl.build.cache import cache_key
from swirl.ir.nest import Loop, Nest, variable_of
from swirl.ir.paths import Path, loops
from swirl.ir.phases import INFERENCE, PHASES
from swirl.ir.trees import names_in, nodes
from swirl.schedule.recipe import DEFAULT_SCHEDULE, Recipe, Schedule
from swirl.schedule.rules.blocking import all_make, gains_alone, order_products
from swirl.schedule.rules.digits import keep_digits
from swirl.schedule.rules.few_sums import add_up_together
from swirl.schedule.rules.gathering import gather
from swirl.schedule.rules.joining import join
from swirl.schedule.rules.layouts import block_results, follow_blocks
from swirl.schedule.rules.neighbours import gather_neighbours
from swirl.schedule.rules.nests import NestSchedule
from swirl.schedule.rules.one_hot_sums import go_to_places
from swirl.schedule.rules.packing import READ_OFTEN, join_rows, transpose_operands
from swirl.schedule.rules.rows import results_outside
from swirl.schedule.rules.trials import Trials
from swirl.target.targets import Target

IDENTITY = "default schedule"
"""Its sources are the package's, which everything that is kept depends on."""
COUNTED = 2**31
"""Iterations of one loop must be fewer."""


def with_defaults(recipe: Recipe | None, left: Collection[str] = ()) -> Recipe:
    """A recipe with the default schedule for the phases that it has no function for, or has left; inference follows
    forward."""
    if recipe is None:
        return Recipe(DEFAULT_SCHEDULE, DEFAULTS, identity=IDENTITY, shares=True)
    own = {phase: function for phase, function in recipe.functions.items() if phase not in left}
    identity = identity_with_defaults(recipe.identity, *sorted(left))
    return replace(recipe, functions={**DEFAULTS, **own}, identity=identity)


def identity_with_defaults(*parts: str | None) -> str | None:
    """The identity of a recipe that builds on the default schedule; None where a part of it has none."""
    known = [part for part in parts if part is not None]
    return cache_key(IDENTITY, *known) if len(known) == len(parts) else None


def _default(phase: str, s: Schedule, target: Target) -> None:
    phase = s.actual_phase(phase)
    s.chosen(phase, PhaseSchedule(Trials(s, target, phase)).write)


DEFAULTS: Mapping[str, Callable[[Schedule, Target], None]] = {phase: partial(_default, phase) for phase in PHASES}
"""Phase → the default schedule, as a function of a recipe."""
FOR_RECIPES = Recipe(
    DEFAULT_SCHEDULE, {**DEFAULTS, "inference": partial(_default, "inference")}, identity=IDENTITY, shares=True
)
"""For recipes that ask for it, also where inference does not follow forward."""


class PhaseSchedule:
    """Writes the commands of one phase.

    Args:
        trials: of the phase.
    """

    def __init__(self, trials: Trials):
        self.trials = trials

    def write(self) -> None:
        """Apply the commands."""
        keep_digits(self.trials)
        if self.trials.phase == next((phase for phase in self.trials.s.programs if phase != INFERENCE), None):
            follow_blocks(self.trials)
        if self.trials.phase == "forward":
            block_results(self.trials)
        stored = 0
        while stored < len(self.trials.program.nests):  # cutting a nest may make others of it
            self.store_products(stored)
            stored += 1
        for number in range(len(self.trials.program.nests)):
            self.divide(number)
            go_to_places(replace(self.trials, nest=number))
            self.unclamp(number)
            gather_neighbours(replace(self.trials, nest=number))
            gather(replace(self.trials, nest=number))
        join(self.trials)
        self.flatten()
        self.keep_near()
        parted = 0
        while parted < len(self.trials.program.nests):  # parting a nest may make others of it
            self.part(parted)
            parted += 1
        join(self.trials)
        number = 0
        while number < len(self.trials.program.nests):
            own = replace(self.trials, nest=number, partly=set())
            scheduled = add_up_together(own)
            if not scheduled:
                self.nest(own)
            number += max(1, scheduled)

    def nest(self, own: Trials) -> None:
        """Lanes, register tiles and threads of one nest."""
        trial = own.scratch()
        NestSchedule(trial).write()
        if own.partly:
            own.give_own_names(own.partly)  # loops of a name that are to be scheduled apart
            NestSchedule(own).write()
        else:
            own.accept(trial)

    # --- loops ----------------------------------------------------------------------------------------------
    def divide(self, number: int) -> None:
        """``x % 2`` and ``x // 2`` become loops of their own."""
        own = replace(self.trials, nest=number)
        every = [index for s in statements_of(own.nests[0]) for access in s.accesses for index in access.own]
        sizes: dict[str, int] = {}
        for var, size in (pair for index in every for pair in divided(index)):
            sizes[var] = lcm(size, sizes.get(var, 1))
        for var, size in sizes.items():
            own.apply(f"subscripts have quotients or remainders of {var} by {size}", "tile_loop", var, size)

    def unclamp(self, number: int) -> None:
        """Loops whose ends alone have clamped subscripts, or fewer iterations inside: lanes of the others are then
        neighbours in memory that do the same."""
        own = replace(self.trials, nest=number)
        known = statements_of(own.nests[0])
        rows = [a.own[-1] for s in known for a in s.accesses if a.own]
        clamped = {name for index in rows for name in _clamped(index)}
        clamped |= {name for s in known for loop in s.loops for name in _moving_ends(s, loop, rows)}
        pending = sorted(clamped)
        while pending:
            var, *pending = pending
            cuts, names = own.borders(var), own.loop_names
            if not cuts and any(own.borders(var, number) for number in range(1, names.count(var))):
                own.give_own_names({var})  # the first one, which zeroes, is not clamped
                pending = [*(name for name in own.loop_names if name not in names), *pending]
                continue
            longest = max(end - start for start, end in pairwise([0, *cuts, own.extent(var)])) if cuts else 0
            why = "the ends alone are clamped"
            if longest > 1 and own.apply(why, "split", var, cuts):
                own.give_own_names()

    def flatten(self) -> None:
        """Loops over contiguous memory become one."""
        tried: set[tuple[str, ...]] = set()
        for nest in self.trials.program.nests:
            for chain in perfect_chains(nest):
                for start in range(len(chain) - 1):
                    part = chain[start:]
                    names = tuple(loop.var for loop in part)
                    if names in tried or prod(loop.extent or COUNTED for loop in part) >= COUNTED:
                        continue
                    tried.add(names)
                    if self.trials.apply("they run over contiguous memory", "flatten", list(names)):
                        break

    def keep_near(self) -> None:
        """Temporaries that are read where they are made become locals, but for those of contractions, and those that
        would keep a contraction from loops of its own."""
        program = self.trials.program
        found = [c for nest in program.nests for c in contractions(nest, program.buffers)]
        in_products = {access.name for c in found for access in (c.target, *c.operands)}
        own = [
            name for name, buffer in program.buffers.items() if buffer.role == "temporary" and name not in in_products
        ]
        alone = self._lone_contractions() if found and own else 0
        for name in own:
            trial = PhaseSchedule(self.trials.scratch())
            if trial.trials.apply(f"{name} is read in the iteration that makes it", "contract", name):
                left = trial._lone_contractions() if found else 0
                if left >= alone:
                    self.trials.accept(trial.trials)
                    alone = left

    def _lone_contractions(self) -> int:
        """How many contractions have a nest of their own once their loops are cut, on a copy: a local that is read
        after them may keep them where it is made."""
        trial = PhaseSchedule(self.trials.scratch())
        number = 0
        while number < len(trial.trials.program.nests):  # cutting a nest makes others of it
            trial.cut(replace(trial.trials, nest=number))
            number += 1
        nests, buffers = trial.trials.program.nests, trial.trials.program.buffers
        return sum(len(statements_of(nest)) == 1 and bool(contractions(nest, buffers)) for nest in nests)

    def store_products(self, number: int) -> None:
        """Locals that a contraction adds to, or reads, are stored where each has many terms or is in many: it gets
        loops of its own then. What is computed of its results, and of its factors before it, wants others."""
        own = replace(self.trials, nest=number)
        buffers, names = own.program.buffers, dict[str, None]()
        for statement in (found.statement for found in contractions(own.nests[0], buffers)):
            trips = [loop.extent or 0 for loop in statement.loops]
            for local in (a for a in statement.accesses if a.name not in buffers and not a.own):
                around = len(local.indices)
                if around and prod(trips[around:]) >= READ_OFTEN:
                    names[local.name] = None
        trial = PhaseSchedule(own.scratch())
        why = "a product has loops of its own"
        if names and trial.trials.apply(why, "store_local", list(names)) and trial.cut(trial.trials):
            own.accept(trial.trials)

    def parted(self) -> Sequence[Nest]:
        """The nests with contractions that get loops of their own, on a copy."""
        trial = PhaseSchedule(self.trials.scratch())
        trial.flatten()
        found = []
        for number, nest in enumerate(trial.trials.program.nests):
            own = replace(trial.trials.scratch(), nest=number)
            shared = trial._shared_loop(own, ()) if contractions(nest, own.program.buffers) else None
            if shared is not None and own.apply("each sum has loops of its own", "distribute", shared):
                found.append(nest)
        return found

    def part(self, number: int) -> None:
        """Contractions, and sums with more loops than others, get loops of their own, in the order of results, then
        terms."""
        own = replace(self.trials, nest=number)
        if transpose_operands(own):  # the copy is before what the sums begin with, too
            return
        if results_outside(own):
            return
        self.cut(own)
        join_rows(own)
        if not transpose_operands(own):
            order_products(own)

    def cut(self, own: Trials) -> bool:
        """Distribute the loops that contractions share with others; whether one was."""
        refused: set[str] = set()
        done = False
        if self._shared_loop(own, refused) is not None:
            own.give_own_names()
        while (shared := self._shared_loop(own, refused)) is not None:
            if own.apply("each sum has loops of its own", "distribute", shared):
                own.give_own_names()
                done = True
            else:
                refused.add(shared)
        return done

    def _shared_loop(self, own: Trials, refused: Collection[str]) -> str | None:
        """The innermost loop over what a contraction reads again and other loops, or calls of functions (they want
        lanes); or over its terms, and other loops or statements, around loops over its results, which cannot move
        outside of it; or, but for the outermost, around contractions with several targets, or over terms of several
        sums, some of which have more loops than others."""
        nest = own.nests[0]
        found = contractions(nest, own.program.buffers)
        known = statements_of(nest)
        sums = [(s, a) for s in known for a in s.accesses if a.kind == "add"]
        for path, node in sorted(loops(nest.body), key=lambda item: -len(item[0])):
            var = variable_of(node)
            if len(node.body) == 1 or var in refused:
                continue
            inside = [c for c in found if c.statement.path[: len(path)] == path]
            deeper = [s for s in known if s.path[: len(path)] == path and len(s.loops) > len(path)]
            targets = {c.target.text for c in inside}
            over = [(s, a) for s, a in sums if s.path[: len(path)] == path and not moves(a, var)]
            if len({len(s.loops) for s, _ in over}) > 1:
                targets |= {access.text for _, access in over}
            several = len(path) > 1 and len(targets) > 1
            again = [c for c in inside if var in c.read_again]
            over_terms = any(var in c.sums and _results_inside(c, path) for c in inside)
            calls = any(wants_lanes(s) for s in known if s.path[: len(path)] == path)
            if (
                several
                or over_terms
                or (len(path) > 1 and (_lanes_differ(own, path) or not found and _written_differently(own, path)))
                or any(calls or not all_make(c, deeper) or gains_alone(own, c) for c in again)
            ):
                return var
        return None


def _lanes_differ(own: Trials, path: Path) -> bool:
    """Whether of the rows in the loop at ``path`` some can become lanes, and others cannot, as of a
    recurrence: lanes along the loop around, the only ones for all of them, would gather."""
    every, width = facts(own.nests[0], own.program.buffers), own.target.simd_width
    rows = []
    for number, loop in enumerate(every):
        inside = loop.path[: len(path)] == path and loop.depth == len(path) + 1 and not any(map(loop.contains, every))
        if inside and loop.trips >= width and loop.contiguous and not loop.gathered:
            rows.append((loop.var, [other.var for other in every[:number]].count(loop.var)))
    if len(rows) < 2:
        return False
    can = [own.scratch().apply("", "vectorize", var, width, occurrence=occurrence) for var, occurrence in rows]
    return any(can) and not all(can)


def _written_differently(own: Trials, path: Path) -> bool:
    """Whether statements in the loop at ``path`` write rows along one of their loops, and others along another one, as
    the gradients of ``x[i, j] * y[j, i]``: lanes along either would scatter."""
    along: set[str] = set()
    for statement in statements_of(own.nests[0]):
        if statement.path[: len(path)] == path:
            written = [a for a in statement.accesses if a.kind != "read"]
            if len(written) != 1 or written[0].name not in own.program.buffers:
                return False  # a local holds them together
            strides = {v: stride(written[0], v, statement, own.program.buffers) for v in statement.variables()}
            rows = [var for var, distance in strides.items() if distance == 1]
            if len(rows) != 1 or not all(distance == 1 or (distance or 0) > NEAR for distance in strides.values()):
                return False  # a sum, or a few elements apart
            along.update(rows)
    return len(along) > 1


def _results_inside(found: Contraction, path: Path) -> bool:
    """Whether the loop at ``path`` is around one over the contraction's results."""
    around = zip(found.statement.loops, found.statement.loop_depths, strict=True)
    return any(loop.var in found.results for loop, depth in around if depth >= len(path))


def _clamped(index: ast.expr) -> set[str]:
    """The names in a minimum or a maximum in a subscript or bound."""
    found = [node for node in nodes(index) if isinstance(node, ast.Call)]
    return {name for node in found for name in names_in(node)}


def _moving_ends(statement: Statement, loop: Loop, rows: Sequence[ast.expr]) -> set[str]:
    """The loops that clamp the bounds of one along rows, and move rows without it, too: not those over blocks, of which
    the last one is ragged, nor shorter ones, as those over taps."""
    names = [names_in(index) for index in rows]
    along = any(loop.var in own for own in names)
    clamping = {name for end in (loop.start, loop.stop) for name in _clamped(end)} if along else set()
    long = {each.var for each in statement.loops if (each.extent or 0) >= trips(loop, statement.ranges)}
    return {var for var in clamping & long if any(var in own and loop.var not in own for own in names)}
