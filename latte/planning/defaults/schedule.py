"""The default schedule: commands for a phase that no recipe schedules, from dependences, strides and extents alone.

Each command is tried; one that is refused gives way to the next candidate. What is left is a recipe like any other,
which ``explain`` shows.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from latte.planning.defaults.nests import NestSchedule
from latte.planning.defaults.trials import NAME, Trials
from swirl.ir.affine import affine
from swirl.ir.buffers import Buffer
from swirl.ir.nest import fresh, loop_of, variable_of
from swirl.ir.paths import loops
from swirl.ir.printing import unparse
from swirl.ir.statements import Access, Statement, statements_of
from swirl.loop_facts import contractions, divided, longest_row, perfect_chains
from swirl.phases import PHASES
from swirl.recipe import Recipe, Schedule
from swirl.target import Target
from swirl.transforms.rewrites.sites import taken_names

COUNTED = 2**31
"""Iterations of one loop must be fewer."""


def with_defaults(recipe: Recipe | None, left: Collection[str] = ()) -> Recipe:
    """A recipe with the default schedule for the phases that it has no function for, or has left; inference follows
    forward."""
    if recipe is None:
        return Recipe(NAME, DEFAULTS)
    own = {phase: function for phase, function in recipe.functions.items() if phase not in left}
    return replace(recipe, functions={**DEFAULTS, **own})


def _default(phase: str, s: Schedule, target: Target) -> None:
    s.chosen(phase, PhaseSchedule(Trials(s, target, phase)).write)


DEFAULTS: Mapping[str, Callable[[Schedule, Target], None]] = {phase: partial(_default, phase) for phase in PHASES}
"""Phase → the default schedule, as a function of a recipe."""


class PhaseSchedule:
    """Writes the commands of one phase.

    Args:
        trials: of the phase.
    """

    def __init__(self, trials: Trials):
        self.trials = trials

    def write(self) -> None:
        """Apply the commands."""
        if self.trials.phase == "forward":
            self.follow_blocks()
            self.block_results()
        for number in range(len(self.trials.program.nests)):
            self.divide(number)
            self.gather(number)
        self.join()
        self.flatten()
        self.keep_near()
        for number in range(len(self.trials.program.nests)):
            self.part(number)
            own = replace(self.trials, nest=number, partly=set())
            NestSchedule(own.scratch()).write()
            self.name_apart(own, own.partly)  # loops of a name that are to be scheduled apart
            NestSchedule(own).write()

    # --- layouts --------------------------------------------------------------------------------------------
    def follow_blocks(self) -> None:
        """Arrays of this layer get the blocks of the arrays that they are computed from, in the dimensions that run
        alike."""
        buffers = {name: b for program in self.trials.s.programs.values() for name, b in program.buffers.items()}
        for name, buffer in buffers.items():
            for dim, factor in buffer.layout.blocks:
                for other, own in sorted(self._alike(name, dim)):
                    self._block(f"the blocks of {name}", other, own, factor)

    def block_results(self) -> None:
        """Where rows are short, a dimension of a contraction's results that only this layer's arrays have is blocked:
        lanes along it need no rows of the source."""
        width = self.trials.target.simd_width
        for nest in self.trials.program.nests:
            for found in contractions(nest, self.trials.program.buffers):
                kept = found.target.name not in self.trials.program.buffers
                if kept or longest_row(found, self.trials.program.buffers) >= 2 * width:
                    continue
                buffer = self.trials.program.buffers[found.target.name]
                layer = buffer.name.rpartition(".")[0]
                for dim in range(buffer.batch_dims, len(buffer.shape)):
                    alike = self._all_alike(found.target.name, dim)
                    own = all(self._buffer(name).name.startswith(f"{layer}.") for name, _ in alike)
                    if own and len(alike) > 1 and buffer.shape[dim] * 2 > width and not buffer.layout.blocks:
                        for name, where in sorted(alike):
                            self._block("lanes along what the source does not have", name, where, width)

    def _block(self, why: str, name: str, dim: int, factor: int) -> None:
        """Block a buffer's dimension; a value and its gradient are laid out alike, as readers expect."""
        buffer = self._buffer(name)
        if not buffer.layout.blocks and dim >= buffer.batch_dims:
            for one in ("value", "grad") if name in ("value", "grad") else (name,):
                self.trials.tile(why, one, dim - buffer.batch_dims, factor)

    def _all_alike(self, name: str, dim: int) -> set[tuple[str, int]]:
        """A dimension of a buffer, and all that run alike, whatever is in between."""
        found, new = {(name, dim)}, {(name, dim)}
        while new:
            new = {pair for one in new for pair in self._alike(*one)} - found
            found |= new
        return found

    def _alike(self, name: str, dim: int) -> set[tuple[str, int]]:
        """Other buffers, of any phase, and their dimensions, that a loop runs over as over a dimension of a buffer."""
        found: set[tuple[str, int]] = set()
        for program in self.trials.s.programs.values():
            for statement in (s for nest in program.nests for s in statements_of(nest)):
                own = [access for access in statement.accesses if access.name in program.buffers]
                heads = {_loop_over(statement, access, dim) for access in own if access.name == name} - {None}
                found |= {
                    (access.name, other)
                    for access in own
                    for other in range(len(access.own))
                    if access.name != name and _loop_over(statement, access, other) in heads
                }
        return found

    def _buffer(self, name: str) -> Buffer:
        """The buffer of that name, in whatever phase."""
        return next(program.buffers[name] for program in self.trials.s.programs.values() if name in program.buffers)

    # --- loops ----------------------------------------------------------------------------------------------
    def divide(self, number: int) -> None:
        """``x % 2`` and ``x // 2`` become loops of their own."""
        own = replace(self.trials, nest=number)
        every = [index for s in statements_of(own.nests[0]) for access in s.accesses for index in access.own]
        for var, size in dict.fromkeys(pair for index in every for pair in divided(index)):
            own.apply(f"subscripts have quotients or remainders of {var} by {size}", "tile_loop", var, size)

    def gather(self, number: int) -> None:
        """Sums whose iterations add to each other's elements become loops over the elements."""
        own = replace(self.trials, nest=number)
        tried: set[tuple[str, int]] = set()  # array and dimension, once each: a reindex may leave other sums in it
        while (found := self._scattered(own, tried)) is not None:
            moved, index = found
            new = fresh(f"{moved}_to", taken_names(own.program))
            own.apply("each iteration sums elements of its own", "reindex", moved, **{new: index})

    def _scattered(self, own: Trials, tried: set[tuple[str, int]]) -> tuple[str, str] | None:
        """The longest loop in a subscript of a sum, and the subscript, if other loops reach the same elements; it is
        noted as tried."""
        for statement in statements_of(own.nests[0]):
            for access in statement.accesses:
                for dim, index in enumerate(access.own if access.kind == "add" else ()):
                    moved = _overlapping(statement, index)
                    if moved is not None and (access.name, dim) not in tried and access.name in own.program.buffers:
                        tried.add((access.name, dim))
                        return moved, unparse(index)
        return None

    def join(self) -> None:
        """Loops that only set what the next loop, over the same range, adds to are joined with it."""
        refused: set[tuple[int, str, str]] = set()
        while (pair := self._set_before(refused)) is not None:
            number, first, second = pair
            own = replace(self.trials, nest=number)
            if not own.apply("sums begin where they are made", "fuse", first, second):
                refused.add(pair)

    def _set_before(self, refused: Collection[tuple[int, str, str]]) -> tuple[int, str, str] | None:
        """A nest and two neighbouring loops of one range in it, the first of which sets what the second adds to."""
        for number, nest in enumerate(self.trials.program.nests):
            known = statements_of(nest)
            by_path = dict(loops(nest.body))
            for path, node in by_path.items():
                after = (*path[:-1], (path[-1][0], path[-1][1] + 1))
                one, two = loop_of(node), loop_of(by_path[after]) if after in by_path else None
                if two is None or one.extent is None or one.extent != two.extent:
                    continue
                first = [a for s in known if s.path[: len(path)] == path for a in s.accesses]
                second = [a for s in known if s.path[: len(after)] == after for a in s.accesses]
                added = {access.name for access in second if access.kind == "add"}
                sets = all(access.kind == "write" and access.name in added for access in first)
                if sets and (number, one.var, two.var) not in refused:
                    return number, one.var, two.var
        return None

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
        """Temporaries that are read where they are made become locals, but for contractions: those have loops of their
        own."""
        program = self.trials.program
        made = {c.target.name for nest in program.nests for c in contractions(nest, program.buffers)}
        for name, buffer in program.buffers.items():
            if buffer.role == "temporary" and name not in made:
                self.trials.apply(f"{name} is read in the iteration that makes it", "contract", name)

    def part(self, number: int) -> None:
        """Contractions, and sums with more loops than others, get loops of their own, in the order of results, then
        terms."""
        own = replace(self.trials, nest=number)
        refused: set[str] = set()
        distributed = False
        while (shared := self._shared_loop(own, refused)) is not None:
            if own.apply("each sum has loops of its own", "distribute", shared):
                distributed = True
            else:
                refused.add(shared)
        if distributed:
            self.name_apart(own, {variable_of(node) for _, node in loops(own.nests[0].body)})
        for chain in perfect_chains(own.nests[0]):
            self._order(own, [loop.var for loop in chain])

    def _shared_loop(self, own: Trials, refused: Collection[str]) -> str | None:
        """The innermost loop around contractions with several targets, or over terms of several sums, some of which
        have more loops than others; but for the outermost loop."""
        nest = own.nests[0]
        found = contractions(nest, own.program.buffers)
        sums = [(s, a) for s in statements_of(nest) for a in s.accesses if a.kind == "add"]
        for path, node in sorted(loops(nest.body), key=lambda item: -len(item[0])):
            targets = {c.target.text for c in found if c.statement.path[: len(path)] == path}
            over = [(s, a) for s, a in sums if s.path[: len(path)] == path and not _moves(a, variable_of(node))]
            if len({len(s.loops) for s, _ in over}) > 1:
                targets |= {access.text for _, access in over}
            if len(path) > 1 and len(targets) > 1 and len(node.body) > 1 and variable_of(node) not in refused:
                return variable_of(node)
        return None

    def _order(self, own: Trials, names: Sequence[str]) -> None:
        """Directly nested loops around one contraction in the order of results, then terms."""
        known = [s for s in statements_of(own.nests[0]) if s.variables()[-len(names) :] == names and s.accesses]
        held = [
            c
            for c in contractions(own.nests[0], own.program.buffers)
            if c.statement.variables()[-len(names) :] == names
        ]
        if len(known) != 1 or len(held) != 1:
            return
        wanted = [*(var for var in names if var in held[0].results), *(var for var in names if var in held[0].sums)]
        if wanted != names:
            own.apply("results outside of their terms", "reorder", wanted)

    def name_apart(self, own: Trials, wanted: Collection[str]) -> None:
        """Each of the loops of these names gets a name of its own."""
        names = [variable_of(node) for _, node in loops(own.nests[0].body)]
        for name in dict.fromkeys(name for name in names if name in wanted):
            for number in range(names.count(name) - 1, 0, -1):
                new = fresh(f"{name}_{number}", taken_names(own.program))
                own.apply("scheduled by itself", "rename", name, new, occurrence=number)


def _moves(access: Access, var: str) -> bool:
    """Whether an access moves with a loop."""
    return any(var in names for names in access.names)


def _overlapping(statement: Statement, index: ast.expr) -> str | None:
    """The longest loop in a subscript, where iterations of other loops in it may have the same element."""
    form = affine(index)
    heads = {loop.var: loop.extent or 0 for loop in statement.loops}
    moving = [var for var in form.terms if heads.get(var) != 1] if form is not None else []
    if form is None or len(moving) < 2 or not set(moving) <= set(heads):
        return None
    longest = max(moving, key=lambda var: heads[var])
    reach = 1
    for coefficient, var in sorted((abs(form.terms[var]), var) for var in moving):
        if coefficient < reach:
            return longest if abs(form.terms[longest]) == 1 else None
        reach = coefficient * heads[var]
    return None  # digits of one number: each iteration has elements of its own


def _loop_over(statement: Statement, access: Access, dim: int) -> str | None:
    """The loop that runs over a dimension of an access, if there is one."""
    form = affine(access.own[dim]) if dim < len(access.own) else None
    if form is None or form.constant:
        return None
    single = {loop.var for loop in statement.loops if loop.extent == 1}
    moving = [var for var, coefficient in form.terms.items() if var not in single and coefficient == 1]
    return moving[0] if len(moving) == len(form.terms.keys() - single) == 1 else None
