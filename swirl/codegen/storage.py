"""Which local arrays become named registers, and which live in memory.

An array whose every subscript is a constant once unrolled loops are written out is not an array in the C++: each
element is a separate variable (``elements``). Where the last subscript is a vector loop's variable, plus a constant,
each row is held in vector registers (``registers``). Everything else is a C++ array (``memory``).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from swirl.analysis.statements import LocalUse, local_uses
from swirl.ir.affine import affine
from swirl.ir.names import INDEX_CALLS, stored_in
from swirl.ir.nest import Loop, Program, kind_of, local_type, loop_of, names_in, references, subscripts
from swirl.ir.paths import walk
from swirl.ir.printing import unparse
from swirl.ir.trees import guarded, name_of, nodes, statements_in

# Past this many variables a compiler's register allocation takes minutes, and spills everything anyway.
MOST_VARIABLES = 1024


class Storage(NamedTuple):
    """Where a local array is held.

    Attributes:
        kind: ``elements``, ``registers`` or ``memory``.
        same_lanes: whether all vector loops over a row of registers have the same lanes: what becomes of those that
            they leave out does not matter.
    """

    kind: str
    same_lanes: bool = False


def decide(body: Sequence[ast.stmt], vector_width: int) -> dict[int, Storage]:
    """Where each local array is held, by the ``id`` of its declaration in ``body``."""
    result: dict[int, Storage] = {}
    _decide(body, (), vector_width, result)
    return result


def _decide(body: Sequence[ast.stmt], loops: tuple[Loop, ...], width: int, result: dict[int, Storage]) -> None:
    for position, statement in enumerate(body):
        if isinstance(statement, ast.AnnAssign) and local_type(statement).shape:
            result[id(statement)] = _storage(statement, body[position + 1 :], loops, width)
        elif isinstance(statement, ast.For):
            _decide(statement.body, (*loops, loop_of(statement)), width, result)
        elif isinstance(statement, ast.If):
            _decide(statement.body, loops, width, result)
            _decide(statement.orelse, loops, width, result)


def _storage(declaration: ast.AnnAssign, scope: Sequence[ast.stmt], loops: tuple[Loop, ...], width: int) -> Storage:
    assert isinstance(declaration.target, ast.Name)
    kind, uses = local_type(declaration), list(local_uses(scope, declaration.target.id, loops))
    forms = {_form(*use, width) for use in uses}
    if forms <= {"element", "element stored"}:
        return Storage("elements" if prod(kind.shape) <= MOST_VARIABLES else "memory")
    lanes = width and kind.dtype in ("float32", "int32", "bool") and prod(kind.shape[:-1]) <= MOST_VARIABLES
    if lanes and forms <= {"element", "lanes"}:
        return Storage("registers", forms == {"lanes"} and _same_lanes(uses, loops))
    return Storage("memory")


def _same_lanes(uses: Sequence[LocalUse], outside: tuple[Loop, ...]) -> bool:
    """Whether references have the same subscripts in vector loops of one length: a number, or one of loops around the
    array and of the row's subscripts."""
    known = {loop.var for loop in outside}
    seen = set()
    for reference, _, loops in uses:
        lane = next(loop for loop in loops if loop.kind == "vector")
        *rows, last = subscripts(reference)
        fixed = known | {row.id for row in rows if isinstance(row, ast.Name)} | INDEX_CALLS
        if not (isinstance(last, ast.Name) and last.id == lane.var and names_in(lane.stop) <= fixed):
            return False
        seen.add((*map(unparse, rows), unparse(lane.stop)))
    return len(seen) == 1


def _form(reference: ast.Subscript, stored: bool, loops: tuple[Loop, ...], width: int) -> str:
    """How an array is referenced: ``element``, ``element stored``, ``lanes`` or ``other``."""
    constants = {loop.var for loop in loops if loop.kind == "unrolled"}
    lane = next((loop.var for loop in loops if loop.kind == "vector"), None)
    *rows, last = [affine(index) for index in subscripts(reference)]
    if any(row is None or not set(row.terms) <= constants for row in rows) or last is None:
        return "other"
    if set(last.terms) <= constants:
        return "element stored" if stored else "element"
    if lane is None or last.coefficient(lane) != 1 or not set(last.terms) - {lane} <= constants:
        return "other"
    steps = [last.constant, *(coefficient for name, coefficient in last.terms.items() if name != lane)]
    if width == 0 or stored and any(step % width for step in steps):
        return "other"
    return "lanes"


def touches_conditionally(program: Program) -> bool:
    """Whether an array is read or written only where some condition holds: a compiler may use masked loads for it."""
    return any(_conditional(statement) for nest in program.nests for _, statement in walk(nest.body))


def stores_in_one_place(program: Program, lanes: bool) -> bool:
    """Whether the references to each array that a nest stores to have the same subscripts: no statement reaches what
    another one, or another iteration, has stored under other subscripts.

    Args:
        lanes: whether vector loops count: they do not where they are intrinsics.
    """
    for nest in program.nests:
        scalar = [s for _, s in walk(nest.body) if not isinstance(s, (ast.For, ast.If))]
        if not lanes:
            inside = {
                id(s)
                for _, loop in walk(nest.body)
                if isinstance(loop, ast.For) and kind_of(loop) == "vector"
                for s in statements_in(loop)
            }
            scalar = [s for s in scalar if id(s) not in inside]
        stored, places = stored_in(scalar), dict[str, str]()
        for reference in (r for statement in scalar for r in references(statement)):
            name = name_of(reference)
            if name in stored and places.setdefault(name, unparse(reference)) != unparse(reference):
                return False
    return True


def _conditional(statement: ast.stmt) -> bool:
    parts: list[ast.AST] = []
    if isinstance(statement, ast.If):
        parts += [*statement.body, *statement.orelse]
    if not isinstance(statement, ast.For):
        parts += [part for node in nodes(statement) for part, guards in guarded(node) if guards]
    return any(isinstance(node, ast.Subscript) for part in parts for node in nodes(part))
