"""How often loops run, how many terms sums have, and how many instructions threads can share: quick upper bounds."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from swirl.analysis.accesses import moves
from swirl.analysis.statements import statements_of
from swirl.ir.affine import Affine, Ranges, affine, bounds, loop_range
from swirl.ir.names import scope_at
from swirl.ir.nest import Loop, Program, expr, kind_of, loop_of
from swirl.ir.operations import COSTLY
from swirl.ir.printing import unparse
from swirl.ir.trees import fold
from swirl.ir.types import is_float

UNKNOWN_TRIPS = 8
"""Iterations of a loop whose bounds are not known."""
CALL = 20
"""Instructions of a function such as ``exp``."""
BARRIER = 4_000
"""Of which threads could execute as many in the time in which they wait for each other, if none is late."""
COUNTED = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call)


def trips(loop: Loop, ranges: Mapping[str, tuple[int, int]]) -> int:
    """Iterations of a loop; at the most, where its bounds move."""
    known = _known_trips(loop, ranges)
    if loop.extent is None and loop.var not in ranges:
        return min(UNKNOWN_TRIPS if known is None else known, -(-UNKNOWN_TRIPS // abs(loop.step)))
    assert known is not None, "the range of its variable is known"
    return known


def _known_trips(loop: Loop, ranges: Mapping[str, tuple[int, int]]) -> int | None:
    """The same; None where nothing bounds them."""
    if loop.extent is not None:
        return max(1, loop.extent)
    found = []
    if loop.var in ranges:
        low, high = ranges[loop.var]
        found.append(high - low + 1)
    length = affine(expr("stop - start" if loop.step > 0 else "start - stop", stop=loop.stop, start=loop.start))
    if length is not None:
        found += [limits[1] for each in _at_least(length) if (limits := bounds(each, ranges)) is not None]
    return max(1, -(-min(found) // abs(loop.step))) if found else None


def _at_least(form: Affine) -> Iterator[Affine]:
    """Forms that are nowhere less than one: with one argument of each minimum that it adds, and of each maximum that it
    subtracts."""
    for key, coefficient in form.terms.items():
        atom = form.atoms[key]
        if isinstance(atom, ast.Call) and (unparse(atom.func) == "min") == (coefficient > 0):
            rest = Affine({k: c for k, c in form.terms.items() if k != key}, form.constant, form.atoms)
            parts = [part for argument in atom.args if (part := affine(argument)) is not None]
            for part in parts:
                yield from _at_least(rest.add(part, coefficient))
            return
    yield form


def most_terms(program: Program) -> int:
    """The terms of the longest sum of floating-point numbers, at the most; 1 without sums."""
    most = 1
    for nest in program.nests:
        for statement in statements_of(nest):
            if not isinstance(statement.node, ast.AugAssign) or not isinstance(statement.node.op, (ast.Add, ast.Sub)):
                continue
            sums = statement.accesses[0]
            if is_float(scope_at(nest.body, statement.path, program.buffers)[sums.name].dtype):
                over = [loop for loop in statement.loops if not moves(sums, loop.var)]
                most = max(most, prod(trips(loop, statement.ranges) for loop in over))
    return most


def shared_work(program: Program, lanes: int) -> int | None:
    """The instructions in the parallel loops of a finished program, at the most and roughly; those that a barrier after
    each execution of a loop costs are taken off. None where they depend on data.

    An operation, a load, a store and an iteration are one each; subscripts are free.

    Args:
        program: after all passes.
        lanes: of a vector, whose loops are one instruction then; 0 where they are loops as others are.
    """
    found = [_shared(nest.body, {}, lanes) for nest in program.nests]
    return _total(found)


def all_instructions(program: Program) -> int:
    """The instructions of all nests, at the most and roughly; without those of which that is not known."""
    found = (_of_body(nest.body, {}, 0) for nest in program.nests)
    return sum(count for count in found if count is not None)


def _shared(body: Sequence[ast.stmt], ranges: Ranges, lanes: int) -> int | None:
    """Those of the parallel loops in a block."""
    found: list[int | None] = []
    for statement in body:
        if isinstance(statement, ast.If):
            branches = [_shared(part, ranges, lanes) for part in (statement.body, statement.orelse)]
            found.append(max((branch for branch in branches if branch is not None), default=0))
            found += [None] * (None in branches)
        elif isinstance(statement, ast.For) and kind_of(statement) == "parallel":
            whole = instructions(statement, ranges, lanes)
            found.append(None if whole is None else max(0, whole - BARRIER))
        elif isinstance(statement, ast.For):
            loop = loop_of(statement)
            within = {**ranges, **loop_range(loop, ranges)}
            inside, count = _shared(statement.body, within, lanes), _known_trips(loop, within)
            # Nothing to be shared stays nothing, however often it runs.
            found.append(0 if inside == 0 else None if inside is None or count is None else count * inside)
    return _total(found)


def _total(found: Sequence[int | None]) -> int | None:
    known = [each for each in found if each is not None]
    return sum(known) if len(known) == len(found) else None


def _of_body(body: Sequence[ast.stmt], ranges: Ranges, lanes: int) -> int | None:
    return _total([instructions(statement, ranges, lanes) for statement in body])


def instructions(statement: ast.stmt, ranges: Ranges, lanes: int) -> int | None:
    """The instructions of one execution of a statement, as :func:`shared_work` counts them.

    Args:
        statement: in the loops whose ``ranges`` these are.
        lanes: see :func:`shared_work`.
    """
    if isinstance(statement, ast.For):
        loop = loop_of(statement)
        within = {**ranges, **loop_range(loop, ranges)}
        inside, count = _of_body(statement.body, within, lanes), _known_trips(loop, within)
        if inside is None or count is None:
            return None
        return inside if loop.kind == "vector" and lanes else count * (1 + inside)
    if isinstance(statement, ast.If):
        branches = [_of_body(body, ranges, lanes) for body in (statement.body, statement.orelse)]
        known = [found for found in branches if found is not None]
        return fold(statement.test, _issued) + max(known) if len(known) == len(branches) else None
    if isinstance(statement, ast.AugAssign):
        return 2 + fold(statement, _issued)
    return fold(statement, _issued)


def _issued(node: ast.AST, inside: list[int]) -> int:
    """The instructions of an expression, from those of its operands."""
    if isinstance(node, ast.Subscript):
        return 1
    costly = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in COSTLY
    return (CALL if costly else isinstance(node, COUNTED)) + sum(inside)
