"""Quasi-affine expressions and conditions in isl's notation."""

from __future__ import annotations

import ast
from itertools import pairwise

from swirl.ir.affine import affine
from swirl.ir.nest import constant
from swirl.ir.operations import COMPARISONS, OPERATORS
from swirl.ir.printing import unparse


def to_isl(node: ast.expr) -> str | None:
    """The expression in isl's notation, a sum without outer parentheses; None where it is not
    quasi-affine."""
    form = affine(node)
    if form is None:
        return None
    parts = []
    for key, coefficient in form.terms.items():
        atom = _atom_to_isl(form.atoms[key])
        if atom is None:
            return None
        parts.append(f"{coefficient}*{atom}" if coefficient != 1 else atom)
    if form.constant or not parts:
        parts.append(str(form.constant))
    return " + ".join(parts).replace("+ -", "- ")


def _atom_to_isl(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.BinOp):
        inner = to_isl(node.left)
        return None if inner is None else OPERATORS[type(node.op)].isl.format(inner, constant(node.right))
    assert isinstance(node, ast.Call)
    parts = [to_isl(arg) for arg in node.args]
    if any(part is None for part in parts):
        return None
    text = parts[0]
    for part in parts[1:]:
        text = f"{unparse(node.func)}({text}, {part})"
    return text


def condition_to_isl(node: ast.expr) -> str | None:
    """A condition on loop variables in isl's notation; None where it depends on data."""
    if isinstance(node, ast.BoolOp):
        parts = [condition_to_isl(value) for value in node.values]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        word = " and " if isinstance(node.op, ast.And) else " or "
        return "(" + word.join(known) + ")"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = condition_to_isl(node.operand)
        return inner and f"(not {inner})"
    if isinstance(node, ast.Compare):
        sides = [to_isl(operand) for operand in (node.left, *node.comparators)]
        operands = [side for side in sides if side is not None]
        if len(operands) < len(sides):
            return None
        symbols = [COMPARISONS[type(op)].isl or COMPARISONS[type(op)].symbol for op in node.ops]
        pairs = [f"{left} {symbol} {right}" for symbol, (left, right) in zip(symbols, pairwise(operands), strict=True)]
        return "(" + " and ".join(pairs) + ")"
    return None
