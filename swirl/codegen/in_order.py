"""Sums that g++ must leave alone: several terms an iteration, added to one number in the order of the program."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence

from swirl.codegen.context import Context
from swirl.ir.nest import constant, expr, loop_of, names_in, subscripts, substitute

UNROLLED = 16  # iterations, and
COPIES = 512  # copies of a statement up to which g++ may unroll loops before it vectorises the one around


def adds_in_order(node: ast.For, context: Context) -> bool:
    """Whether an iteration of a loop, the small loops inside unrolled, adds to one floating-point number twice.

    g++ 12 at -O3 vectorises such a loop and then adds other elements than those asked for, wherever the terms do not
    lie in memory in the order in which they are added (tests/regress/test_gcc_sums_in_order.py).
    """
    inside = list(_one_lane(node.body))
    declared = {ast.unparse(s.target) for s in inside if isinstance(s, ast.AnnAssign)}
    sums = {
        id(statement): times
        for statement in inside
        if (times := _additions(statement)) and _is_float(statement, context, declared)
    }
    if not sums:
        return False
    found: Counter[str] = Counter()
    for statement, target in _instances(node.body, context, {}, 1, set(sums)):
        found[_key(target, context)] += sums[id(statement)]
    var = loop_of(node).var
    return any(times > 1 and var not in names_in(ast.parse(key)) for key, times in found.items())


def _additions(statement: ast.stmt) -> int:
    """How many terms a statement adds to what its target holds: 2 stands for more, too."""
    if isinstance(statement, ast.AugAssign):
        return 1 if isinstance(statement.op, (ast.Add, ast.Sub, ast.Mult)) else 0
    if isinstance(statement, ast.Assign):
        target = ast.unparse(statement.targets[0])
        return 2 if any(isinstance(n, ast.BinOp) and target in map(ast.unparse, (n.left, n.right))
                        for n in ast.walk(statement.value)) else 0  # fmt: skip
    return 0


def _target(statement: ast.stmt) -> ast.expr:
    assert isinstance(statement, (ast.Assign, ast.AugAssign))
    return statement.targets[0] if isinstance(statement, ast.Assign) else statement.target


def _is_float(statement: ast.stmt, context: Context, declared: set[str]) -> bool:
    """Whether the target is a floating-point number that lives longer than an iteration."""
    (name, *_) = ast.unparse(_target(statement)).split("[")
    return name not in declared and context.dtype_of(name).startswith("float")


def _one_lane(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The assignments and declarations outside of vector loops."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _one_lane([*statement.body, *statement.orelse])
        elif not isinstance(statement, ast.For):
            yield statement
        elif loop_of(statement).kind != "vector":
            yield from _one_lane(statement.body)


def _instances(body: Sequence[ast.stmt], context: Context, values: dict[str, ast.expr], copies: int,
               wanted: set[int]) -> Iterator[tuple[ast.stmt, ast.expr]]:  # fmt: skip
    """The copies of the statements wanted, and their targets, as they are when the small loops around are unrolled."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _instances([*statement.body, *statement.orelse], context, values, copies, wanted)
        elif isinstance(statement, ast.For):
            loop = loop_of(statement)
            length = constant(context.index(expr("stop - start", stop=loop.stop, start=loop.start)))
            if loop.kind == "vector" or length is None:
                continue
            extent = len(range(0, length, loop.step))
            if loop.kind != "unrolled" and (extent > UNROLLED or copies * extent > COPIES):
                continue  # it stays a loop
            for distance in range(0, length, loop.step):
                value = expr("start + distance", start=loop.start, distance=distance)
                here = {**values, loop.var: substitute(value, values)}
                yield from _instances(statement.body, context, here, copies * extent, wanted)
        elif id(statement) in wanted:
            yield statement, substitute(_target(statement), values)


def _key(target: ast.expr, context: Context) -> str:
    """An element as text, the same for the same subscripts."""
    if not isinstance(target, ast.Subscript):
        return ast.unparse(target)
    indices = ", ".join(ast.unparse(context.index(index)) for index in subscripts(target))
    return f"{ast.unparse(target.value)}[{indices}]"
