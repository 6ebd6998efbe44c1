"""Padded reads: conditions on the loop variables in place of a border of zeros."""

from __future__ import annotations

import ast

from swirl.ir.printing import unparse
from swirl.ir.trees import nodes, target_of

# A tree node's attribute that holds the conditions under which a padded read is inside its source.
INSIDE = "latte_inside"


def with_padding(statement: ast.stmt) -> ast.stmt:
    """A statement whose padded reads are made safe.

    Where it adds a product that holds the padded reads, it is skipped outside (``if inside: statement``);
    elsewhere a padded read becomes ``read if inside else 0.0``. Stores outside do not happen.
    """
    if isinstance(statement, (ast.For, ast.If)):
        return statement
    assert isinstance(statement, (ast.Assign, ast.AugAssign))
    conditions: dict[str, ast.expr] = {}
    _collect(target_of(statement), conditions)
    adds = isinstance(statement, ast.AugAssign) and isinstance(statement.op, (ast.Add, ast.Sub))
    if adds and (factors := _padded_factors(statement.value)) is not None:
        conditions |= factors
    else:
        statement.value = padded_value(statement.value)
    if not conditions:
        return statement
    tests = list(conditions.values())
    test = tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)
    return ast.copy_location(ast.If(test, [statement], []), statement)


def _collect(node: ast.AST, conditions: dict[str, ast.expr]) -> None:
    for condition in getattr(node, INSIDE, ()):
        conditions[unparse(condition)] = condition


def _padded_factors(node: ast.expr) -> dict[str, ast.expr] | None:
    """Conditions of all padded reads in ``node`` if each is a factor of it, else None."""
    found: dict[str, ast.expr] = {}

    def visit(part: ast.expr) -> bool:
        if hasattr(part, INSIDE):
            _collect(part, found)
            return True
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult):
            return visit(part.left) and visit(part.right)
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div):
            return visit(part.left) and not _is_padded(part.right)
        if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub):
            return visit(part.operand)
        return not _is_padded(part)

    return found if visit(node) and found else None


def _is_padded(node: ast.AST) -> bool:
    return any(hasattr(part, INSIDE) for part in nodes(node))


class _Select(ast.NodeTransformer):
    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        conditions = getattr(node, INSIDE, None)
        if not conditions:
            return node
        test = conditions[0] if len(conditions) == 1 else ast.BoolOp(ast.And(), list(conditions))
        return ast.IfExp(test, node, ast.Constant(0.0))


def padded_value(node: ast.expr) -> ast.expr:
    """``node`` with every padded read replaced by ``read if inside else 0.0``."""
    return _Select().visit(node) if _is_padded(node) else node
