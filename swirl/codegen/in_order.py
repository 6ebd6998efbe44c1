"""Sums that g++ must leave alone: several terms an iteration, added to one number in the order of the program."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeGuard

from swirl.codegen.context import Context
from swirl.ir.nest import constant, expr, loop_of, names_in, subscripts, substitute
from swirl.ir.trees import declared_in

UNROLLED = 16  # iterations, and
COPIES = 512  # copies of a statement up to which g++ may unroll loops before it vectorises the one around


def adds_in_order(node: ast.For, context: Context) -> bool:
    """Whether an iteration of a loop, the small loops inside unrolled, adds to one floating-point number twice.

    g++ 12 at -O3 vectorises such a loop and then adds other elements than those asked for, wherever the terms do not
    lie in memory in the order in which they are added (tests/regress/test_gcc_sums_in_order.py). What is added may go
    through locals on the way.
    """
    declared, var = declared_in(node), loop_of(node).var

    def may_be_kept(target: ast.expr | None) -> TypeGuard[ast.expr]:
        """Whether a target may be the same element in the next iteration."""
        return target is not None and _name(target) not in declared and var not in names_in(target)

    # Copies only add names to subscripts, and only floating-point sums depend on their order.
    candidates = filter(may_be_kept, map(_target, _one_lane(node.body)))
    if not any(_is_float(target, context) for target in candidates):
        return False
    copies = list(_copies(node.body, context, {}, 1))
    kept = {_key(target, context) for target in map(_target, copies) if may_be_kept(target)}
    return _longest(copies, kept, context) > 1


def _longest(copies: Sequence[ast.stmt], kept: set[str], context: Context) -> int:
    """How many operations, at the most, make what is kept for the next iteration of what was kept in this one."""
    depths = dict.fromkeys(kept, 0)

    def depth(node: ast.AST) -> int | None:
        """Operations on the way from something kept to an expression; None where none leads there."""
        if isinstance(node, (ast.Name, ast.Subscript)):
            return depths.get(_key(node, context))
        below = [found for child in ast.iter_child_nodes(node) if (found := depth(child)) is not None]
        return max(below) + isinstance(node, ast.BinOp) if below else None

    for statement in copies:
        target = statement.target if isinstance(statement, ast.AnnAssign) else _target(statement)
        value = getattr(statement, "value", None)
        if target is None or value is None:
            continue
        if isinstance(statement, ast.AugAssign):
            value = ast.BinOp(target, statement.op, value)
        found, key = depth(value), _key(target, context)
        if found is None:
            depths.pop(key, None)
        else:
            depths[key] = found
    return max((depths.get(key, 0) for key in kept), default=0)


def _target(statement: ast.stmt) -> ast.expr | None:
    """What a statement assigns to; declarations are none."""
    if isinstance(statement, ast.Assign):
        return statement.targets[0]
    return statement.target if isinstance(statement, ast.AugAssign) else None


def _name(target: ast.expr) -> str:
    return ast.unparse(target).split("[")[0]


def _is_float(target: ast.expr, context: Context) -> bool:
    return context.dtype_of(_name(target)).startswith("float")


def _one_lane(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The assignments and declarations outside of vector loops."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _one_lane([*statement.body, *statement.orelse])
        elif not isinstance(statement, ast.For):
            yield statement
        elif loop_of(statement).kind != "vector":
            yield from _one_lane(statement.body)


def _copies(body: Sequence[ast.stmt], context: Context, values: Mapping[str, ast.expr],
            copies: int) -> Iterator[ast.stmt]:  # fmt: skip
    """The assignments and declarations of a body, one after the other, as they are when small loops are unrolled."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _copies([*statement.body, *statement.orelse], context, values, copies)
        elif isinstance(statement, ast.For):
            loop = loop_of(statement)
            start, stop = substitute(loop.start, values), substitute(loop.stop, values)
            length = constant(context.index(expr("stop - start", stop=stop, start=start)))
            if loop.kind == "vector" or length is None:
                continue
            extent = len(range(0, length, loop.step))
            if loop.kind != "unrolled" and (extent > UNROLLED or copies * extent > COPIES):
                continue  # it stays a loop
            for distance in range(0, length, loop.step):
                here = {**values, loop.var: expr("start + distance", start=start, distance=distance)}
                yield from _copies(statement.body, context, here, copies * extent)
        else:
            yield substitute(statement, values)


def _key(target: ast.expr, context: Context) -> str:
    """An element as text, the same for the same subscripts."""
    if not isinstance(target, ast.Subscript):
        return ast.unparse(target)
    indices = ", ".join(ast.unparse(context.index(index)) for index in subscripts(target))
    return f"{ast.unparse(target.value)}[{indices}]"
