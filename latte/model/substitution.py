"""Which arguments of a helper can stand in its text, and which need a local variable."""

from __future__ import annotations

import ast
from collections.abc import Collection

from latte.model.variables import names
from swirl.ir.trees import nodes

_ITERATORS = ("eachindex", "range_dim", "enumerate_dim")


class Uses:
    """How the parameters of a helper are used."""

    def __init__(self, tree: ast.FunctionDef):
        self.counts: dict[str, int] = {}
        self.arrays: set[str] = set()
        for node in nodes(tree):
            match node:
                case ast.Name(name):
                    self.counts[name] = self.counts.get(name, 0) + 1
                case ast.Subscript(ast.Name(name)) | ast.Attribute(ast.Name(name)):
                    self.arrays.add(name)
                case ast.Call(ast.Name(function), [ast.Name(name), *_]) if function in _ITERATORS:
                    self.arrays.add(name)
        self.is_expression = all(isinstance(statement, (ast.Return, ast.Expr)) for statement in tree.body)

    def fits(self, parameter: str, value: ast.expr, writes: bool, variables: Collection[str]) -> bool:
        """Whether an argument can stand wherever the parameter does: it has the same value there, and costs nothing
        to compute again.

        Args:
            parameter: of the helper.
            value: what the caller gives.
            writes: whether the helper writes elements of fields.
            variables: of the caller, without its loops'.
        """
        if parameter in self.arrays or isinstance(value, ast.Name):
            return True
        if _is_index(value) and not names(value) & set(variables):
            return True
        if writes:
            return False
        if not any(isinstance(part, ast.Call) for part in nodes(value)) and is_field(value):
            return True
        return self.is_expression and self.counts.get(parameter, 0) <= 1


def is_field(node: ast.AST) -> bool:
    """Whether it is ``self.value``, or an element: of a field, as only these are written by element."""
    return isinstance(node, (ast.Subscript, ast.Attribute))


def _is_index(node: ast.expr) -> bool:
    """Whether it is made of names, literals and shapes: what it is does not change while a helper runs."""
    match node:
        case ast.Constant() | ast.Name():
            return True
        case ast.Attribute(_, "shape" | "ndim") | ast.Subscript(ast.Attribute(_, "shape"), ast.Constant()):
            return True
        case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv() | ast.Mod(), right):
            return _is_index(left) and _is_index(right)
        case ast.UnaryOp(_, operand):
            return _is_index(operand)
        case ast.Tuple(parts) | ast.Call(ast.Name("min" | "max" | "int" | "len" | "abs"), parts, []):
            return all(map(_is_index, parts))
    return False
