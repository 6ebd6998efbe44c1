"""Typed C++ expressions: literals that take the type of their context, casts, and which type an operation
has.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from swirl.codegen.context import C_TYPES, Unsupported
from swirl.codegen.ctree_compat import Expression, NamedCast, binary, call, constant
from swirl.ir.types import as_int32, folded_operation, is_float, joint


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
        return is_float(self.dtype)


def literal_value(number: float | int | bool) -> Value:
    """A literal; it becomes what its context asks for."""
    dtype = "bool" if isinstance(number, bool) else "int32" if isinstance(number, int) else "float32"
    return Value(None, dtype, number)


def joint_type(left: Value, right: Value) -> str:
    """The type in which two values are added, compared or chosen between: one, where neither is a literal, as every
    conversion is spelled out (:func:`swirl.ir.types.explicit`)."""
    for literal, other in ((left, right), (right, left)):
        if literal.literal is None or other.literal is not None:
            continue
        if other.is_float or (isinstance(literal.literal, int) and other.dtype == "int32"):
            return other.dtype
        if isinstance(literal.literal, bool):
            return other.dtype
        return "int32" if isinstance(literal.literal, int) else "float32"
    return joint(left.dtype, right.dtype)


def converted(value: Value, dtype: str) -> Expression:
    """The scalar expression of ``value`` in type ``dtype``."""
    if value.literal is not None:
        return constant(as_int32(value.literal) if dtype == "int32" else value.literal, dtype)
    if value.lanes:
        raise Unsupported(f"a value of lanes is used where one {dtype} is needed")
    if value.dtype == dtype:
        return value.node
    if dtype == "bool":
        return binary("!=", value.node, constant(0, value.dtype))
    if dtype == "int32" and value.is_float:
        return call("truncated", value.node)
    return NamedCast(C_TYPES[dtype], value.node)


def as_float(value: Value) -> Value:
    """``value`` as a floating-point number, unless it is one: ``/`` and the calls of the mathematical
    library need it."""
    if value.is_float or value.literal is not None:
        return Value(value.node, value.dtype if value.is_float else "float32", value.literal, value.lanes)
    return Value(converted(value, "float32"), "float32")


def folded(node: ast.BinOp, left: Value, right: Value) -> Value | None:
    """Arithmetic on two literals, folded as Python does it; None for anything else."""
    number = folded_operation(node.op, left.literal, right.literal)
    return None if number is None else literal_value(number)


def small_power(name: str, args: Sequence[Value]) -> str | None:
    """The helper function for a call that is a power of two to four factors, which takes the first argument alone; else
    None."""
    exponent = args[1].literal if name == "pow" else None
    return f"power<{int(exponent)}>" if exponent in (2, 3, 4) else None
