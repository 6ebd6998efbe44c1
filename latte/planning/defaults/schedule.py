"""The default schedule: commands for a phase that no recipe schedules, from dependences, strides and extents alone.

Each command is tried; one that is refused gives way to the next candidate. What is left is a recipe like any other,
which ``explain`` shows.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import lcm, prod

from latte.planning.defaults.blocking import blocking, order_products
from latte.planning.defaults.nests import NestSchedule
from latte.planning.defaults.products import join_rows, turn
from latte.planning.defaults.trials import NAME, Step, Trials, step
from swirl.ir.affine import affine, coefficients
from swirl.ir.buffers import Buffer
from swirl.ir.functions import FUNCTIONS
from swirl.ir.nest import fresh, loop_of, variable_of
from swirl.ir.paths import Path, loops
from swirl.ir.printing import unparse
from swirl.ir.statements import Access, Statement, statements_of
from swirl.ir.trees import names_in, nodes
from swirl.loop_facts import Contraction, contractions, divided, longest_row, moves, perfect_chains
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
            self.unclamp(number)
            self.gather(number)
        self.join()
        self.flatten()
        self.keep_near()
        parted = 0
        while parted < len(self.trials.program.nests):  # parting a nest may make others of it
            self.part(parted)
            parted += 1
        self.join()
        for number in range(len(self.trials.program.nests)):
            own = replace(self.trials, nest=number, partly=set())
            trial = own.scratch()
            NestSchedule(trial).write()
            if own.partly:
                self.name_apart(own, own.partly)  # loops of a name that are to be scheduled apart
                NestSchedule(own).write()
            else:
                own.accept(trial)

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
        """Where rows are short, a dimension of a contraction's results that only this layer's arrays have is blocked,
        where it is not a row itself: lanes along it need no rows of the source."""
        width = self.trials.target.simd_width
        for nest in self.trials.program.nests:
            for found in contractions(nest, self.trials.program.buffers, single=True):
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
                            row = prod(self._buffer(name).shape[where + 1 :]) == 1
                            if not row:
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
        sizes: dict[str, int] = {}
        for var, size in (pair for index in every for pair in divided(index)):
            sizes[var] = lcm(size, sizes.get(var, 1))
        for var, size in sizes.items():
            own.apply(f"subscripts have quotients or remainders of {var} by {size}", "tile_loop", var, size)

    def unclamp(self, number: int) -> None:
        """Long loops whose ends alone have clamped subscripts: lanes of the others are then neighbours in memory."""
        own = replace(self.trials, nest=number)
        known = statements_of(own.nests[0])
        rows = [a.own[-1] for s in known for a in s.accesses if a.own]
        clamped = {name for index in rows for name in _clamped(index)}
        for var in sorted(clamped):
            cuts = own.borders(var)
            why = "subscripts are clamped at the ends alone"
            if cuts and max(cuts) >= own.target.simd_width and own.apply(why, "split", var, cuts):
                self.name_apart(own)

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
        for number in range(len(self.trials.program.nests) - 1):
            replace(self.trials, nest=number).together(self._as_after(number))
        refused: set[tuple[int, str, str]] = set()
        while (pair := self._set_before(refused)) is not None:
            number, first, second = pair
            own = replace(self.trials, nest=number)
            if own.apply("sums begin where they are made", "fuse", first, second):
                refused.clear()  # nests have other numbers now
            else:
                refused.add(pair)

    def _set_before(self, refused: Collection[tuple[int, str, str]]) -> tuple[int, str, str] | None:
        """Two neighbouring loops of one range, and the nest of the first one, which sets what the second adds to."""
        for number, first, second in self._neighbours():
            one, two = loop_of(first.node), loop_of(second.node)
            if one.extent is not None and one.extent == two.extent and (number, one.var, two.var) not in refused:
                added = {access.name for access in second.accesses if access.kind == "add"}
                made = [access for access in first.accesses if access.names and any(access.names)]
                if made and all(access.kind in ("read", "write") and access.name in added for access in made):
                    return number, one.var, two.var
        return None

    def _as_after(self, number: int) -> list[Step]:
        """What makes the loops of a nest, which sets an array, run as those of the next one, which adds to it, in the
        same strips; empty if they already do, or if the nests are of another kind."""
        known = [s for s in statements_of(self.trials.program.nests[number]) if s.accesses]
        if len(known) != 1:
            return []
        (sets,) = known
        target = next((a for a in sets.accesses if a.kind == "write"), None)
        after = statements_of(self.trials.program.nests[number + 1])
        adds = [(s, a) for s in after for a in s.accesses if a.kind == "add" and target and a.name == target.name]
        if target is None or len(adds) != 1 or len(sets.loops) != len(target.own):
            return []
        statement, added = adds[0]
        own = {_dimension(loop.var, target): loop.var for loop in sets.loops}
        placed = [_place(loop.var, added) for loop in statement.loops if moves(added, loop.var)]
        if None in placed or any(not moves(added, loop.var) for loop in statement.loops[: len(placed)]):
            return []
        sizes = {own.get(dim): size for dim, size in filter(None, placed) if size > 1}
        named = [(own.get(dim), size) for dim, size in filter(None, placed)]
        wanted = [f"{var}_{'outer' if size > 1 else 'inner'}" if var in sizes else var for var, size in named]
        if None in wanted or len(set(wanted)) != len(wanted) or {var for var, _ in named} != set(own.values()):
            return []
        why = "in the order of the loops that add to what these set"
        tiles = [step(why, "tile_loop", var, size) for var, size in sizes.items()]
        return [*tiles, step(why, "reorder", wanted)] if wanted != sets.variables() else []

    def _neighbours(self) -> Iterator[tuple[int, _Inside, _Inside]]:
        """Loops one after the other, in one body or as the outermost ones of two nests, with the number of the nest of
        the first."""
        before: _Inside | None = None
        for number, nest in enumerate(self.trials.program.nests):
            known, by_path = statements_of(nest), dict(loops(nest.body))
            every = {path: _Inside(node, _accesses_in(known, path)) for path, node in by_path.items()}
            first = every.get((("body", 0),))
            if before is not None and first is not None:
                yield number - 1, before, first
            for path, inside in every.items():
                after = (*path[:-1], (path[-1][0], path[-1][1] + 1))
                if after in every:
                    yield number, inside, every[after]
            before = every.get((("body", len(nest.body) - 1),))

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
        """Temporaries that are read where they are made become locals, but for those of contractions, which have loops
        of their own."""
        program = self.trials.program
        found = [c for nest in program.nests for c in contractions(nest, program.buffers)]
        held = {access.name for c in found for access in (c.target, *c.operands)}
        for name, buffer in program.buffers.items():
            if buffer.role == "temporary" and name not in held:
                self.trials.apply(f"{name} is read in the iteration that makes it", "contract", name)

    def part(self, number: int) -> None:
        """Contractions, and sums with more loops than others, get loops of their own, in the order of results, then
        terms."""
        own = replace(self.trials, nest=number)
        refused: set[str] = set()
        if self._shared_loop(own, refused) is not None:
            self.name_apart(own)
        while (shared := self._shared_loop(own, refused)) is not None:
            if own.apply("each sum has loops of its own", "distribute", shared):
                self.name_apart(own)
            else:
                refused.add(shared)
        join_rows(own)
        if not turn(own):
            order_products(own)

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
            held = [c for c in found if c.statement.path[: len(path)] == path]
            deeper = [s for s in known if s.path[: len(path)] == path and len(s.loops) > len(path)]
            targets = {c.target.text for c in held}
            over = [(s, a) for s, a in sums if s.path[: len(path)] == path and not moves(a, var)]
            if len({len(s.loops) for s, _ in over}) > 1:
                targets |= {access.text for _, access in over}
            several = len(path) > 1 and len(targets) > 1
            again = [c for c in held if var in c.read_again]
            over_terms = any(var in c.sums and _results_inside(c, path) for c in held)
            apart = any(_calls(s) for s in known if s.path[: len(path)] == path)
            if (
                several
                or over_terms
                or any(apart or not _all_make(c, deeper) or blocking(own, c) is not None for c in again)
            ):
                return var
        return None

    def name_apart(self, own: Trials, wanted: Collection[str] | None = None) -> None:
        """Each of the loops of these names gets a name of its own; of all names by default."""
        names = [variable_of(node) for _, node in loops(own.nests[0].body)]
        for name in dict.fromkeys(name for name in names if wanted is None or name in wanted):
            for number in range(names.count(name) - 1, 0, -1):
                new = fresh(f"{name}_{number}", taken_names(own.program))
                own.apply("scheduled by itself", "rename", name, new, occurrence=number)


@dataclass(frozen=True)
class _Inside:
    """A loop, and what is accessed in it."""

    node: ast.For
    accesses: Sequence[Access]


def _dimension(var: str, access: Access) -> int | None:
    """The dimension whose subscript is a loop's variable."""
    return next((dim for dim, index in enumerate(access.own) if unparse(index) == var), None)


def _place(var: str, access: Access) -> tuple[int, int] | None:
    """The one dimension whose subscript moves with a loop, and by how much."""
    found = [(dim, coefficients(index, var)) for dim, index in enumerate(access.own) if var in names_in(index)]
    return (found[0][0], found[0][1]) if len(found) == 1 and found[0][1] is not None else None


def _accesses_in(known: Sequence[Statement], path: Path) -> list[Access]:
    return [access for s in known if s.path[: len(path)] == path for access in s.accesses]


def _calls(statement: Statement) -> bool:
    """Whether a statement calls ``exp`` or the like."""
    calls = (node.func for node in nodes(statement.node) if isinstance(node, ast.Call))
    return any(isinstance(called, ast.Name) and called.id in FUNCTIONS for called in calls)


def _results_inside(found: Contraction, path: Path) -> bool:
    """Whether the loop at ``path`` is around one over the contraction's results."""
    around = zip(found.statement.loops, found.statement.loop_depths, strict=True)
    return any(loop.var in found.results for loop, depth in around if depth >= len(path))


def _all_make(found: Contraction, statements: Sequence[Statement]) -> bool:
    """Whether each of the statements writes what the contraction adds to, as it does."""
    return all(any(a.name == found.target.name and a.kind != "read" for a in s.accesses) for s in statements)


def _clamped(index: ast.expr) -> set[str]:
    """The names in a minimum or a maximum in a subscript."""
    found = [node for node in nodes(index) if isinstance(node, ast.Call)]
    return {name for node in found for name in names_in(node)}


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
