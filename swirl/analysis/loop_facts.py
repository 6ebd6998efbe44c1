"""Facts about the loops of a nest (:mod:`swirl.analysis.loop_tree`): chains of them, and what sums are made of."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from swirl.analysis.accesses import Access, moves, parsed
from swirl.analysis.loop_tree import NEAR as NEAR
from swirl.analysis.loop_tree import LoopFacts as LoopFacts
from swirl.analysis.loop_tree import Use as Use
from swirl.analysis.loop_tree import executions as executions
from swirl.analysis.loop_tree import facts as facts
from swirl.analysis.loop_tree import loop_tree, stride
from swirl.analysis.statements import Statement, statements_of
from swirl.analysis.trips import trips
from swirl.ir.affine import affine
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Loop, Nest, constant, names_in
from swirl.ir.operations import COSTLY
from swirl.ir.paths import Path
from swirl.ir.trees import nodes


def wants_lanes(statement: Statement) -> bool:
    """Whether a statement calls ``exp`` or the like, or a random number: one by one they take as long as many sums."""
    calls = (node.func for node in nodes(statement.node) if isinstance(node, ast.Call))
    return any(isinstance(called, ast.Name) and called.id in COSTLY for called in calls)


def perfect_chain(nest: Nest, path: Path = (("body", 0),)) -> list[Loop]:
    """The loops that are directly nested in each other, from the one at ``path`` on."""
    return loop_tree(nest).chain(path)


def perfect_chains(nest: Nest) -> list[list[Loop]]:
    """Every chain of directly nested loops, as long as possible."""
    return loop_tree(nest).chains()


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
