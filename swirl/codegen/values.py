"""Typed C++ expressions: literals that take the type of their context, casts, and which type an operation
has.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass

from swirl.codegen.context import C_TYPES, Unsupported
from swirl.codegen.ctree_compat import Expression, NamedCast, binary, constant

_ORDER = ("bool", "int32", "float32", "float64")

FOLDABLE: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip

OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
}  # fmt: skip

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip

MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


@dataclass(frozen=True)
class Value:
    """An expression with its type.

    Attributes:
        node: the C++ expression; None for a literal, which is printed once its type is known.
        dtype: element type.
        literal: the number, for literals.
        lanes: whether it is a vector register (or a mask, for bool) and not one number.
    """

    node: Expression | None
    dtype: str
    literal: float | int | bool | None = None
    lanes: bool = False

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith("float")


def literal_value(number: float | int | bool, float_type: str) -> Value:
    """A literal; it becomes what its context asks for."""
    dtype = "bool" if isinstance(number, bool) else "int32" if isinstance(number, int) else float_type
    return Value(None, dtype, number)


def joint_type(left: Value, right: Value, float_type: str) -> str:
    """The type in which two values are added, compared or chosen between."""
    for literal, other in ((left, right), (right, left)):
        if literal.literal is None or other.literal is not None:
            continue
        if other.is_float or (isinstance(literal.literal, int) and other.dtype == "int32"):
            return other.dtype
        if isinstance(literal.literal, bool):
            return other.dtype
        return "int32" if isinstance(literal.literal, int) else float_type
    return max(left.dtype, right.dtype, key=_ORDER.index)


def converted(value: Value, dtype: str) -> Expression:
    """The scalar expression of ``value`` in type ``dtype``."""
    if value.literal is not None:
        return constant(value.literal, dtype)
    if value.lanes:
        raise Unsupported(f"a value of lanes stands where one {dtype} is needed")
    if value.dtype == dtype:
        return value.node
    if dtype == "bool":
        return binary("!=", value.node, constant(0, value.dtype))
    return NamedCast(C_TYPES[dtype], value.node)


def as_float(value: Value, float_type: str) -> Value:
    """``value`` as a floating-point number, unless it is one: ``/`` and the calls of the mathematical
    library need it."""
    if value.is_float or value.literal is not None:
        return Value(value.node, value.dtype if value.is_float else float_type, value.literal, value.lanes)
    return Value(converted(value, float_type), float_type)


def folded(node: ast.BinOp, left: Value, right: Value, float_type: str) -> Value | None:
    """Arithmetic on two literals, done here as Python does it; None where it is not that."""
    if left.literal is None or right.literal is None:
        return None
    function = FOLDABLE.get(type(node.op))
    if function is None or (right.literal == 0 and isinstance(node.op, (ast.Div, ast.FloorDiv, ast.Mod))):
        return None
    return literal_value(function(left.literal, right.literal), float_type)
