"""Conditions on loop variables that a loop's range decides are removed. A condition on data is never decided, not even
``t == t`` or ``t + 1 > t``: a number may be NaN or infinite, or so large that 1 makes no difference."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from swirl.ir.affine import affine, bounds, loop_range
from swirl.ir.names import Unwrapping, on_loops
from swirl.ir.nest import clone, loop_of, with_inner
from swirl.ir.operations import COMPARISONS
from swirl.ir.trees import Transformer


def drop_decided_guards(
    body: list[ast.stmt], ranges: dict[str, tuple[int, int]] | None = None, taken: Iterable[str] = ()
) -> list[ast.stmt]:
    """A copy of ``body`` without the branches and selects whose condition has one value everywhere it is evaluated.

    Args:
        body: statements one after the other.
        ranges: of the loops around them.
        taken: names around them that a local must not hide.
    """
    return _block(body, ranges or {}, Unwrapping(body, taken))


def _block(body: list[ast.stmt], ranges: dict[str, tuple[int, int]], names: Unwrapping) -> list[ast.stmt]:
    result: list[ast.stmt] = []
    for node in body:
        new = _statement(node, ranges, names)
        result += names.own(new) if isinstance(node, ast.If) else new
    return result


def _statement(node: ast.stmt, ranges: dict[str, tuple[int, int]], names: Unwrapping) -> list[ast.stmt]:
    if isinstance(node, ast.For):
        loop = loop_of(node)
        inner = _block(node.body, {**ranges, **loop_range(loop, ranges)}, names)
        return [with_inner(node, inner)] if inner else []
    if isinstance(node, ast.If):
        test = simplify_condition(node.test, ranges)
        if isinstance(test, ast.Constant):
            return _block(node.body if test.value else node.orelse, ranges, names)
        body, orelse = _block(node.body, ranges, names), _block(node.orelse, ranges, names)
        if not body:
            return [ast.If(ast.UnaryOp(ast.Not(), test), orelse, [])] if orelse else []
        return [ast.If(test, body, orelse)]
    new = _Selects(ranges).visit(clone(node))
    return [new]


class _Selects(Transformer):
    def __init__(self, ranges: dict[str, tuple[int, int]]):
        self.ranges = ranges

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        test = simplify_condition(node.test, self.ranges)
        if isinstance(test, ast.Constant):
            return node.body if test.value else node.orelse
        return ast.IfExp(test, node.body, node.orelse)


def simplify_condition(test: ast.expr, ranges: dict[str, tuple[int, int]]) -> ast.expr:
    """The condition without the parts that ``ranges`` decide; ``True`` or ``False`` where nothing is left."""
    if isinstance(test, ast.BoolOp):
        absorbing = isinstance(test.op, ast.Or)
        parts = []
        for value in test.values:
            part = simplify_condition(value, ranges)
            if isinstance(part, ast.Constant):
                if bool(part.value) is absorbing:
                    return ast.Constant(absorbing)
            else:
                parts.append(part)
        if not parts:
            return ast.Constant(not absorbing)
        return parts[0] if len(parts) == 1 else ast.BoolOp(test.op, parts)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = simplify_condition(test.operand, ranges)
        return ast.Constant(not inner.value) if isinstance(inner, ast.Constant) else ast.UnaryOp(ast.Not(), inner)
    if isinstance(test, ast.Compare):
        operands = [test.left, *test.comparators]
        undecided: list[tuple[ast.expr, ast.cmpop, ast.expr]] = []
        for left, operator, right in zip(operands, test.ops, operands[1:], strict=False):
            verdict = _compare(left, operator, right, ranges)
            if verdict is False:
                return ast.Constant(False)
            if verdict is None:
                undecided.append((left, operator, right))
        if not undecided:
            return ast.Constant(True)
        parts = [ast.Compare(left, [operator], [right]) for left, operator, right in undecided]
        if len(undecided) == len(test.ops):
            return test
        return parts[0] if len(parts) == 1 else ast.BoolOp(ast.And(), list(parts))
    return test


def _compare(left: ast.expr, operator: ast.cmpop, right: ast.expr, ranges: dict[str, tuple[int, int]]) -> bool | None:
    if not (on_loops(left, ranges) and on_loops(right, ranges)):
        return None
    one, two = affine(left, ranges), affine(right, ranges)
    limits = None if one is None or two is None else bounds(one.add(two, -1), ranges)
    return None if limits is None else COMPARISONS[type(operator)].decided(*limits)
