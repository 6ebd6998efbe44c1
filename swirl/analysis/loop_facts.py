"""Facts about the loops of a nest: how accesses move along them, what they touch, and what sums are made of."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod

from swirl.analysis.accesses import Access, parsed
from swirl.analysis.footprints import footprint
from swirl.analysis.sets import NotProved
from swirl.analysis.statements import Statement, statements_of
from swirl.analysis.strides import memory_stride
from swirl.analysis.trips import trips
from swirl.ir.affine import affine, coefficients
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Loop, Nest, constant, loop_of, names_in
from swirl.ir.operations import COSTLY
from swirl.ir.paths import Path, loops
from swirl.ir.trees import nodes

NEAR = 4
"""Elements from one lane to the next that a few loads of vectors still have."""


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
class LoopFacts:
    """A loop of a nest.

    Args:
        nest: that it is in.
        buffers: of the program.
        path: of the loop.
        loop: its head.
        statements: of the nest.
    """

    nest: Nest
    buffers: Mapping[str, Buffer]
    path: Path
    loop: Loop
    statements: Sequence[Statement]

    @property
    def var(self) -> str:
        return self.loop.var

    @property
    def depth(self) -> int:
        return len(self.path)

    @cached_property
    def trips(self) -> int:
        """Iterations; at the most, where the bounds move."""
        return trips(self.loop, self.inside[0].ranges if self.inside else {})

    @cached_property
    def inside(self) -> list[Statement]:
        """The statements in it."""
        return [s for s in self.statements if s.path[: self.depth] == self.path]

    @property
    def work(self) -> int:
        """Statements that run each time it is entered, at the most."""
        return sum(executions(s) for s in self.inside) // max(1, self.entries)

    @property
    def entries(self) -> int:
        """How often it is entered, at the most."""
        if not self.inside:
            return 0
        first = self.inside[0]
        return prod(trips(loop, first.ranges) for loop in first.loops[: first.variables().index(self.var)])

    @cached_property
    def uses(self) -> list[Use]:
        """The accesses of its statements to buffers."""
        return [use for statement in self.inside for use in uses(statement, self.var, self.buffers)]

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
        around = [loop.var for loop in self.inside[0].loops] if self.inside else []
        outer = around[: around.index(self.var) + 1] if around else []
        spans = footprint(accesses, self.buffers[buffer], outer)
        if spans is None:
            return 0
        return prod(span.extent for span in spans) * self.buffers[buffer].itemsize

    def fits(self, buffer: str, size: int) -> bool:
        """Whether an iteration touches at most ``size`` bytes of a buffer; False where that is not proved."""
        try:
            return self.touched(buffer) <= size
        except NotProved:
            return False

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

    @cached_property
    def repeats(self) -> bool:
        """Whether a statement writes the same element in every iteration: it makes a sum, as a rule."""
        return any(
            access.kind != "read" and not any(self.var in names_in(index) for index in access.indices)
            for statement in self.inside
            for access in statement.accesses
        )

    @property
    def sums(self) -> list[str]:
        """The buffers that it adds to (or takes the maximum in) without moving along them."""
        found = [access for statement in self.inside for access in statement.accesses if access.name in self.buffers]
        kept = [a for a in found if not any(self.var in names_in(index) for index in a.own)]
        return list(dict.fromkeys(access.name for access in kept if access.kind not in ("read", "write")))

    def contains(self, other: LoopFacts) -> bool:
        """Whether the other loop is inside of this one."""
        return other.depth > self.depth and other.path[: self.depth] == self.path


def facts(nest: Nest, buffers: Mapping[str, Buffer]) -> list[LoopFacts]:
    """The loops of a nest, outer before inner."""
    known = statements_of(nest)
    return [LoopFacts(nest, buffers, path, loop_of(node), known) for path, node in loops(nest.body)]


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
        return memory_stride(buffers[access.name], list(access.own), var, dict(statement.ranges))
    *rest, last = access.own or (ast.Constant(0),)
    return None if any(var in names_in(index) for index in rest) else coefficients(last, var)


def executions(statement: Statement) -> int:
    """How often a statement runs, at the most."""
    return prod(trips(loop, statement.ranges) for loop in statement.loops)


def wants_lanes(statement: Statement) -> bool:
    """Whether a statement calls ``exp`` or the like, or a random number: one by one they take as long as many sums."""
    calls = (node.func for node in nodes(statement.node) if isinstance(node, ast.Call))
    return any(isinstance(called, ast.Name) and called.id in COSTLY for called in calls)


# --- chains of loops ----------------------------------------------------------------------------------------
def perfect_chain(nest: Nest, path: Path = (("body", 0),)) -> list[Loop]:
    """The loops that are directly nested in each other, from the one at ``path`` on."""
    by_path = dict(loops(nest.body))
    chain = []
    while path in by_path:
        chain.append(loop_of(by_path[path]))
        if len(by_path[path].body) != 1:
            break
        path = (*path, ("body", 0))
    return chain


def perfect_chains(nest: Nest) -> list[list[Loop]]:
    """Every chain of directly nested loops, as long as possible."""
    by_path = dict(loops(nest.body))
    starts = [path for path in by_path if path[:-1] not in by_path or len(by_path[path[:-1]].body) != 1]
    return [perfect_chain(nest, path) for path in starts]


# --- statements ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Contraction:
    """A sum of terms whose operands each stay the same along one of the loops over the results.

    Args:
        statement: that adds.
        target: the element, or the local, that it adds to.
        operands: what it reads, also by way of locals.
        results: loops over the results, outermost first.
        sums: loops over the terms.
    """

    statement: Statement
    target: Access
    operands: tuple[Access, ...]
    results: tuple[str, ...]
    sums: tuple[str, ...]

    @property
    def read_again(self) -> list[str]:
        """The loops over the results along which an operand stays the same: each iteration reads it again."""
        return [var for var in self.results if not all(moves(access, var) for access in self.operands)]


def moves(access: Access, var: str) -> bool:
    """Whether an access moves with a loop."""
    return any(var in names for names in access.names)


def contractions(nest: Nest, buffers: Mapping[str, Buffer], *, single: bool = False) -> list[Contraction]:
    """The contractions in a nest.

    Args:
        nest: where they are looked for.
        buffers: of its program.
        single: whether loops of one iteration count, so that the answer does not depend on the batch size.
    """
    known = statements_of(nest)
    found = (_products(statement, known, buffers, single) for statement in known)
    return [one for one in found if one is not None and all(set(one.results) - names for names in _moving_names(one))]


def correlations(nest: Nest, buffers: Mapping[str, Buffer]) -> list[Contraction]:
    """Sums of products, one operand of which moves with all loops over the results, and another one with some of them,
    as in the gradient of a depthwise convolution's weights."""
    known = statements_of(nest)
    found = [one for s in known if (one := _products(s, known, buffers, False)) is not None]
    return [one for one in found if {_part(one, names) for names in _moving_names(one)} == {"all", "some"}]


def _part(found: Contraction, names: set[str]) -> str:
    """With how many of the loops over the results an operand moves."""
    moving = names & set(found.results)
    return "all" if moving == set(found.results) else "some" if moving else "none"


def _moving_names(found: Contraction) -> list[set[str]]:
    """The names in the subscripts of each operand that moves with a loop over the terms."""
    every = [{name for index in access.own for name in names_in(index)} for access in found.operands]
    return [names for names in every if names & set(found.sums)]


def _products(
    statement: Statement, known: Sequence[Statement], buffers: Mapping[str, Buffer], single: bool
) -> Contraction | None:
    """A sum whose terms have several operands."""
    target = next((access for access in statement.accesses if access.kind == "add"), None)
    if target is None:
        return None
    own = {name for index in target.indices for name in names_in(index)}  # of a local, the loops around it
    moving = [loop.var for loop in statement.loops if single or loop.extent != 1]
    results, sums = tuple(v for v in moving if v in own), tuple(v for v in moving if v not in own)
    operands = [access for access in _read(statement, known, buffers) if access.name != target.name]
    found = Contraction(statement, target, tuple(operands), results, sums)
    return found if len(_moving_names(found)) > 1 else None


def _read(statement: Statement, known: Sequence[Statement], buffers: Mapping[str, Buffer]) -> list[Access]:
    """The elements of arrays that a statement reads; for a local of one value those that the same block has made it
    of."""
    found: list[Access] = []
    for access in statement.accesses:
        if access.kind == "read" and (access.name in buffers or access.own):
            found.append(access)
        elif access.kind == "read":
            makers = [s for s in known if statement.path[: len(s.path) - 1] == s.path[:-1] and s is not statement]
            written = [s for s in makers if any(a.name == access.name and a.kind == "write" for a in s.accesses)]
            found += [read for maker in written for read in maker.accesses if read.name in buffers]
    return found


def longest_row(found: Contraction, buffers: Mapping[str, Buffer]) -> int:
    """Iterations of the longest loop along which every access of a contraction stays, or moves to the next element in
    memory."""
    accesses = [access for access in (found.target, *found.operands) if access.name in buffers]
    return max(
        (
            trips(loop, found.statement.ranges)
            for loop in found.statement.loops
            if all(stride(access, loop.var, found.statement, buffers) in (0, 1) for access in accesses)
        ),
        default=0,
    )


def divided(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Loop variables of which a subscript has a quotient or a remainder, with the number of iterations after which
    quotients are whole steps further: of ``(2 * x + 1) // 4`` two."""
    for periods in _periods(node, ast.FloorDiv, ast.Mod):
        if len(periods) == 1:
            yield from periods.items()


def residues(statement: Statement) -> list[dict[str, int]]:
    """For each remainder in the conditions of a statement the loop variables in it, each with the distance of values
    that have the same one: of ``(t - 2 * k) % 4 == 0`` four for ``t``, and two for ``k``."""
    return [periods for guard in statement.guards for periods in _periods(parsed(guard), ast.Mod)]


def _periods(node: ast.AST, *operations: type[ast.operator]) -> Iterator[dict[str, int]]:
    for part in nodes(node):
        if not isinstance(part, ast.BinOp) or not isinstance(part.op, operations):
            continue
        form, size = affine(part.left), constant(part.right)
        if form is not None and size is not None and all(isinstance(atom, ast.Name) for atom in form.atoms.values()):
            yield {var: size // gcd(size, coefficient) for var, coefficient in form.terms.items()}
