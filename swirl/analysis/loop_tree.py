"""One view of a nest, for whoever asks about its loops, its statements in their context, or what they touch.

It has two levels. What is asked for is found out once, and kept with the nest; nothing is changed afterwards.

- :class:`LoopTree`, by the text alone: the loops with their kind, bounds and iterations (:class:`TreeLoop`), and the
  statements by path, each with its loops and conditions (:class:`swirl.analysis.domains.Domain`) and what it refers to,
  affine where it is (:class:`swirl.analysis.accesses.Access`).
- :class:`LoopFacts`, by the layouts of the buffers, too: how far accesses move in memory from one iteration of a loop
  to the next, and what is touched in all its iterations, in one, in two neighbouring ones, in elements, bytes and cache
  lines (:mod:`swirl.analysis.footprints`).

A loop and a statement are known by their paths.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from swirl.analysis.accesses import Access, moves
from swirl.analysis.domains import Domain
from swirl.analysis.footprints import Footprint, box_bytes, footprints
from swirl.analysis.sets import NotProved
from swirl.analysis.statements import Statement, statements_of
from swirl.analysis.strides import memory_stride
from swirl.analysis.trips import trips
from swirl.ir.affine import coefficients
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Loop, Nest, names_in
from swirl.ir.paths import Path

NEAR = 4
"""Elements from one lane to the next that a few loads of vectors still have."""


# --- the text alone -----------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class LoopTree:
    """The loops and statements of a nest.

    Args:
        statements: with the conditions, in textual order.
    """

    statements: Sequence[Statement]

    @cached_property
    def loops(self) -> Mapping[Path, TreeLoop]:
        """The loops by path, outer before inner, in textual order."""
        inside: dict[Path, list[Statement]] = {}
        for statement in self.statements:  # there is one in each loop
            for path, _ in statement.loop_paths():
                inside.setdefault(path, []).append(statement)
        return {path: TreeLoop(path, tuple(found)) for path, found in inside.items()}

    def directly_inside(self, path: Path = ()) -> list[Path]:
        """The loops in the loop at a path, or in the nest, with none between."""
        inside = [each for each in self.loops if each[: len(path)] == path and each != path]
        return [one for one in inside if not any(one[: len(each)] == each and one != each for each in inside)]

    def regions(self) -> list[TreeLoop]:
        """The parallel loops that are in no other one: where threads begin."""
        parallel = (loop for loop in self.loops.values() if loop.loop.kind == "parallel")
        return [loop for loop in parallel if all(around.kind != "parallel" for around in loop.around.loops)]

    def chain(self, path: Path) -> list[Loop]:
        """The loops that are directly nested in each other, from the one at a path on."""
        found: list[Loop] = []
        while path in self.loops:
            found.append(self.loops[path].loop)
            path = (*path, ("body", 0)) if self.loops[path].holds_one else ()
        return found

    def chains(self) -> list[list[Loop]]:
        """Every chain of directly nested loops, as long as possible."""
        within = {path for path in self.loops if (around := self.loops.get(path[:-1])) and around.holds_one}
        return [self.chain(path) for path in self.loops if path not in within]


@dataclass(frozen=True)
class TreeLoop:
    """A loop of a nest.

    Args:
        path: of the loop.
        inside: the statements in it.
    """

    path: Path
    inside: Sequence[Statement]

    @property
    def depth(self) -> int:
        """The length of the path."""
        return len(self.path)

    @cached_property
    def level(self) -> int:
        """The number of loops around."""
        return self.inside[0].loop_depths.index(self.depth - 1)

    @property
    def loop(self) -> Loop:
        """Its head."""
        return self.inside[0].loops[self.level]

    @property
    def var(self) -> str:
        return self.loop.var

    @cached_property
    def around(self) -> Domain:
        """How often it is entered: the loops and conditions around."""
        domain = self.inside[0].domain
        return Domain(domain.loops[: self.level], domain.guards[: self.depth - 1 - self.level])

    @cached_property
    def iteration(self) -> Domain:
        """Its iterations: the loops and conditions around, and the loop."""
        return Domain((*self.around.loops, self.loop), self.around.guards)

    @property
    def executions(self) -> int:
        """How often it is entered, at the most; conditions on data count as true."""
        return self.around.count[0]

    @cached_property
    def trips(self) -> int:
        """Iterations; at the most, where the bounds move."""
        return trips(self.loop, self.inside[0].ranges)

    @property
    def entries(self) -> int:
        """How often it is entered, as if all loops around had as many iterations as they have at the most."""
        return prod(trips(loop, self.inside[0].ranges) for loop in self.around.loops)

    @property
    def work(self) -> int:
        """Statements that run each time it is entered, at the most."""
        return sum(map(executions, self.inside)) // max(1, self.entries)

    @cached_property
    def repeats(self) -> bool:
        """Whether a statement writes the same element in every iteration: it makes a sum, as a rule."""
        written = (access for s in self.inside for access in s.accesses if access.kind != "read")
        return not all(moves(access, self.var) for access in written)

    @cached_property
    def holds_one(self) -> bool:
        """Whether a single statement, or loop, is its body."""
        return all(statement.path[self.depth] == ("body", 0) for statement in self.inside)

    def contains(self, other: TreeLoop) -> bool:
        """Whether the other loop is inside of this one."""
        return other.depth > self.depth and other.path[: self.depth] == self.path


def loop_tree(nest: Nest) -> LoopTree:
    """The tree of a nest, which is made once."""
    if "tree" not in nest.facts:
        nest.facts["tree"] = LoopTree(statements_of(nest))
    found: LoopTree = nest.facts["tree"]
    return found


def sum_loop(statement: Statement) -> tuple[Path, Loop, Sequence[Loop]] | None:
    """The innermost loop that runs around an addition to what stays the same in it, and those inside of it, which are
    copies and lanes; None where there is no such loop."""
    running = [each for each in statement.loop_paths() if each[1].kind in ("range", "parallel")]
    if not running or not isinstance(statement.node, ast.AugAssign) or moves(statement.accesses[0], running[-1][1].var):
        return None
    path, loop = running[-1]
    return path, loop, statement.loops[statement.loops.index(loop) + 1 :]


def executions(statement: Statement) -> int:
    """How often a statement runs, at the most."""
    return prod(trips(loop, statement.ranges) for loop in statement.loops)


# --- layouts ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Use:
    """An access to a buffer, seen along a loop.

    Args:
        stride: elements in memory from one iteration to the next; None where that is not constant.
        weight: how often it is executed, at the most, times the bytes of an element.
        access, statement: which one.
    """

    stride: int | None
    weight: int
    access: Access
    statement: Statement


@dataclass(frozen=True)
class LoopFacts(TreeLoop):
    """A loop of a nest whose buffers are laid out.

    Args:
        nest: that it is in.
        buffers: of the program.
    """

    nest: Nest
    buffers: Mapping[str, Buffer]

    @cached_property
    def uses(self) -> list[Use]:
        """The accesses of its statements to buffers."""
        return [use for statement in self.inside for use in uses(statement, self.var, self.buffers)]

    def references(self, name: str) -> set[tuple[Path, str]]:
        """Where a buffer is touched: statements, by their paths, and the references in them."""
        return {(use.statement.path, use.access.text) for use in self.uses if use.access.name == name}

    # --- along the loop
    @property
    def contiguous(self) -> int:
        """The weight of accesses that move along the loop to the next element in memory."""
        return sum(use.weight for use in self.uses if use.stride == 1)

    @property
    def non_contiguous(self) -> int:
        """The weight of accesses whose neighbouring iterations are not neighbours in memory."""
        return sum(use.weight for use in self.uses if use.stride not in (0, 1))

    @property
    def strided(self) -> int:
        """That of accesses whose neighbouring iterations are a few elements apart: some loads of vectors have them."""
        return sum(use.weight for use in self.uses if use.stride is not None and 1 < use.stride <= NEAR)

    @property
    def gathered(self) -> int:
        """That of accesses whose neighbouring iterations are several elements apart: each lane is a load of its own."""
        return sum(use.weight for use in self.uses if use.stride is None or not 0 <= use.stride <= NEAR)

    @property
    def weight(self) -> int:
        """That of all accesses."""
        return max(1, sum(use.weight for use in self.uses))

    @property
    def sums(self) -> list[str]:
        """The buffers that it adds to (or takes the maximum in) without moving along them."""
        found = [access for statement in self.inside for access in statement.accesses if access.name in self.buffers]
        kept = [access for access in found if access.kind not in ("read", "write") and not moves(access, self.var)]
        return list(dict.fromkeys(access.name for access in kept))

    # --- what is touched
    @cached_property
    def in_all_iterations(self) -> list[Footprint]:
        """What is touched each time it is entered; at the most, where that depends on the loops around."""
        return footprints(self.inside, self.around, self.buffers)

    @cached_property
    def in_one_iteration(self) -> list[Footprint]:
        """What one iteration touches, at the most."""
        return footprints(self.inside, self.iteration, self.buffers)

    @cached_property
    def in_two_iterations(self) -> list[Footprint]:
        """What two neighbouring iterations touch together, at the most."""
        return footprints(self.inside, self.iteration, self.buffers, self.loop)

    @cached_property
    def footprint(self) -> int:
        """Bytes of the buffers' elements that an iteration touches, each counted once, in the smallest boxes.

        Raises:
            NotProved: the question took more work than is allowed.
        """
        return sum(self.touched(name) for name in dict.fromkeys(use.access.name for use in self.uses))

    def touched(self, buffer: str) -> int:
        """Those of one buffer; raises as :attr:`footprint`."""
        accesses = [(use.statement, use.access) for use in self.uses if use.access.name == buffer]
        return box_bytes(accesses, self.buffers[buffer], [loop.var for loop in self.iteration.loops])

    def fits(self, buffer: str, size: int) -> bool:
        """Whether an iteration touches at most ``size`` bytes of a buffer; False where that is not proved."""
        try:
            return self.touched(buffer) <= size
        except NotProved:
            return False


def facts(nest: Nest, buffers: Mapping[str, Buffer]) -> list[LoopFacts]:
    """The loops of a nest, outer before inner; made once for each of the layouts that the nest's buffers get."""
    known: dict[tuple[Buffer | None, ...], list[LoopFacts]] = nest.facts.setdefault("laid out", {})
    key = tuple(map(buffers.get, nest.arguments))
    if key not in known:
        known[key] = [LoopFacts(loop.path, loop.inside, nest, buffers) for loop in loop_tree(nest).loops.values()]
    return known[key]


def uses(statement: Statement, var: str, buffers: Mapping[str, Buffer]) -> Iterator[Use]:
    """The accesses of a statement to buffers, along a loop around it."""
    count = executions(statement)
    for access in statement.accesses:
        buffer = buffers.get(access.name)
        if buffer is not None:
            yield Use(stride(access, var, statement, buffers), count * buffer.itemsize, access, statement)


def stride(access: Access, var: str, statement: Statement, buffers: Mapping[str, Buffer]) -> int | None:
    """Elements in memory between neighbouring iterations of a loop; None where that is not constant, or in different
    rows of a local array."""
    if access.name in buffers:
        return memory_stride(buffers[access.name], list(access.own), var, statement.ranges)
    *rest, last = access.own or (ast.Constant(0),)
    return None if any(var in names_in(index) for index in rest) else coefficients(last, var)
