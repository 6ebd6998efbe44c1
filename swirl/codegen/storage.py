"""Which local arrays become named registers, and which live in memory.

An array whose every subscript is a constant once unrolled loops are written out is not an array in the C++: each
element is a separate variable (``elements``). Where the last subscript is a vector loop's variable, plus a constant,
each row is held in vector registers (``registers``). Everything else is a C++ array (``memory``).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from math import prod

from swirl.ir.affine import affine
from swirl.ir.names import stored_in
from swirl.ir.nest import Loop, Program, kind_of, local_type, loop_of, references, subscripts
from swirl.ir.paths import walk
from swirl.ir.printing import unparse
from swirl.ir.statements import local_uses
from swirl.ir.trees import name_of, nodes, statements_in

# Past this many variables a compiler's register allocation takes minutes, and spills everything anyway.
MOST_VARIABLES = 1024


def decide(body: Sequence[ast.stmt], vector_width: int) -> dict[int, str]:
    """``id`` of each declaration of a local array in ``body`` → ``elements``, ``registers`` or ``memory``."""
    result: dict[int, str] = {}
    _decide(body, (), vector_width, result)
    return result


def _decide(body: Sequence[ast.stmt], loops: tuple[Loop, ...], width: int, result: dict[int, str]) -> None:
    for position, statement in enumerate(body):
        if isinstance(statement, ast.AnnAssign) and local_type(statement).shape:
            result[id(statement)] = _storage(statement, body[position + 1 :], loops, width)
        elif isinstance(statement, ast.For):
            _decide(statement.body, (*loops, loop_of(statement)), width, result)
        elif isinstance(statement, ast.If):
            _decide(statement.body, loops, width, result)
            _decide(statement.orelse, loops, width, result)


def _storage(declaration: ast.AnnAssign, scope: Sequence[ast.stmt], loops: tuple[Loop, ...], width: int) -> str:
    assert isinstance(declaration.target, ast.Name)
    kind = local_type(declaration)
    forms = {_form(*use, width) for use in local_uses(scope, declaration.target.id, loops)}
    if forms <= {"element", "element stored"}:
        return "elements" if prod(kind.shape) <= MOST_VARIABLES else "memory"
    lanes = width and kind.dtype in ("float32", "int32", "bool") and prod(kind.shape[:-1]) <= MOST_VARIABLES
    if lanes and forms <= {"element", "lanes"}:
        return "registers"
    return "memory"


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
        for node in nodes(statement):
            if isinstance(node, ast.IfExp):
                parts += [node.body, node.orelse]
            elif isinstance(node, ast.BoolOp):
                parts += node.values[1:]
            elif isinstance(node, ast.Compare):
                parts += node.comparators[1:]
    return any(isinstance(node, ast.Subscript) for part in parts for node in nodes(part))
