"""Expressions of one number each → C++."""

from __future__ import annotations

import ast
from collections.abc import Callable

from swirl.codegen.context import Context, Local, Unsupported
from swirl.codegen.ctree_compat import (
    Expression,
    Op,
    TernaryOp,
    UnaryOp,
    address_of,
    array_ref,
    binary,
    call,
    constant,
    logical_not,
    symbol,
)
from swirl.codegen.values import (
    Value,
    as_float,
    converted,
    folded,
    joint_type,
    literal_value,
    small_power,
)
from swirl.ir.affine import Affine, affine, bounds
from swirl.ir.nest import names_in, subscripts
from swirl.ir.operations import CALLS, COMPARISONS, LIBRARY, OPERATORS, Operator
from swirl.ir.printing import unparse
from swirl.ir.types import CASTS, WEAK_FLOAT


class ScalarExpressions:
    """Turns expressions into C++; ``element`` says how one element of a local held in registers is read."""

    def __init__(self, context: Context, lane_reader: Callable[[Local, tuple[int, ...]], Expression] | None = None):
        self.context = context
        self.lane_reader = lane_reader

    # --- names and references -------------------------------------------------------------------------------
    def name(self, node: ast.Name) -> Value:
        context = self.context
        if node.id in context.unrolled:
            return literal_value(context.unrolled[node.id])
        if node.id in context.locals:
            local = context.locals[node.id]
            if local.storage == "lane_memory":
                return Value(array_ref(local.name, [symbol(context.locals[local.lane].name)]), local.dtype)
            if local.storage == "scalar":
                return Value(symbol(local.name), local.dtype)
        if node.id in ("inf", "INFINITY"):
            return literal_value(float("inf"))
        raise Unsupported(f"{node.id} is not declared here, or is an array without subscripts")

    def reference(self, node: ast.Subscript) -> Value:
        """An element of a buffer or of a local array, to be read or written."""
        assert isinstance(node.value, ast.Name)
        name = node.value.id
        local = self.context.locals.get(name)
        if local is not None and local.storage in ("elements", "registers"):
            key = self.element_index(node)
            if local.storage == "elements":
                return Value(symbol(local.names[key]), local.dtype)
            assert self.lane_reader is not None
            return Value(self.lane_reader(local, key), local.dtype)
        if local is None and name not in self.context.buffers:
            raise Unsupported(f"{name} is neither a buffer nor a local array", node)
        c_name = local.name if local is not None else self.context.names[name]
        return Value(self._element(c_name, name, subscripts(node)), self.context.dtype_of(name))

    def _element(self, c_name: str, name: str, indices: list[ast.expr]) -> Expression:
        """``a[i][j + 3]``; in copies of an unrolled body ``(&a[i][j])[3]``.

        The copies share an address, and g++ adds the constants in the instructions. It does not do so with ``j + 3``: a
        register tile then has one address for each pixel, more than there are registers.
        """
        context = self.context
        if context.vector_width:
            for position in reversed(range(len(indices))):
                if names_in(indices[position]) & context.unrolled.keys():
                    shared = self._shared_index(indices[position], context.shape_of(name)[position])
                    if shared is None:
                        continue
                    front = array_ref(c_name, [self.integer(i) for i in (*indices[:position], shared[0])])
                    following = [constant(shared[1], "int32"), *map(self.integer, indices[position + 1 :])]
                    return array_ref(address_of(front), following)
        return array_ref(c_name, [self.integer(index) for index in indices])

    def _shared_index(self, index: ast.expr, extent: int) -> tuple[ast.expr, int] | None:
        """A subscript that other copies share, and the distance from it; None where it may be outside of the array, or
        there is no distance."""
        form = affine(index, self.context.ranges, fix=True)
        if form is None or not form.terms:
            return None
        moving = form.add(Affine(constant=-form.constant))
        limits = bounds(moving, self.context.ranges)
        if limits is None or limits[1] - min(limits[0], 0) >= extent:
            return None
        first = max(0, -limits[0])
        distance = form.constant - first
        return (moving.add(Affine(constant=first)).to_expr(), distance) if distance else None

    def element_index(self, node: ast.Subscript) -> tuple[int, ...]:
        """The subscripts of an array whose elements are named variables: constants, here."""
        forms = [affine(index, self.context.ranges, fix=True) for index in subscripts(node)]
        assert all(form is not None and not form.terms for form in forms), unparse(node)
        return tuple(form.constant for form in forms if form is not None)

    def integer(self, node: ast.expr) -> Expression:
        """A subscript or a bound: simplified, as an int."""
        value = self.value(self.context.index(node))
        if value.is_float or value.lanes:
            raise Unsupported("a subscript or bound is not an integer", node)
        return converted(value, "int32")

    # --- expressions ----------------------------------------------------------------------------------------
    def value(self, node: ast.expr) -> Value:
        """Any expression of the grammar."""
        if isinstance(node, ast.Constant):
            if isinstance(node.value, (bool, int, float)):
                return literal_value(node.value)
        elif isinstance(node, ast.Name):
            return self.name(node)
        elif isinstance(node, ast.Subscript):
            return self.reference(node)
        elif isinstance(node, ast.BinOp):
            return self.binary(node)
        elif isinstance(node, ast.UnaryOp):
            return self.unary(node)
        elif isinstance(node, ast.Compare):
            return self.comparison(node)
        elif isinstance(node, ast.BoolOp):
            return self.logical(node)
        elif isinstance(node, ast.IfExp):
            return self.choice(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self.call(node.func.id, node)
        raise Unsupported("not an expression of the grammar", node)

    def binary(self, node: ast.BinOp) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        known = folded(node, left, right)
        if known is not None:
            return known
        operator = OPERATORS.get(type(node.op))
        if operator is None:
            raise Unsupported("the grammar has no such operator", node)
        if operator.least == WEAK_FLOAT:
            left, right = (as_float(side) for side in (left, right))
        dtype = joint_type(left, right)
        dtype = "int32" if dtype == "bool" else dtype
        if operator.of_integers:
            return Value(self._floored(node, operator, left, right, dtype), dtype)
        sides = converted(left, dtype), converted(right, dtype)
        if dtype == "int32" and not self.fits(node):
            return Value(call(operator.helper, *sides), dtype)
        if operator.beside_zero and dtype != "int32" and 0 in (left.literal, right.literal):
            return Value(call(operator.beside_zero, *sides), dtype)
        return Value(binary(operator.symbol, *sides), dtype)

    def fits(self, node: ast.expr) -> bool:
        """Whether integer arithmetic surely stays within 32 bits; if not, it wraps, which ``+`` in C++ does not."""
        limits = self.context.limits(node)
        return limits is not None and limits[0] >= -(2**31) and limits[1] < 2**31

    def _floored(self, node: ast.BinOp, operator: Operator, left: Value, right: Value, dtype: str) -> Expression:
        if dtype != "int32":
            raise Unsupported(f"{operator.symbol} is for integers", node, "divide and call floor")
        sides = converted(left, dtype), converted(right, dtype)
        limits = self.context.limits(node.left)
        positive = limits is not None and limits[0] >= 0 and self.fits(node.left)  # what wraps is negative
        if positive and isinstance(right.literal, int) and right.literal > 0:
            return binary(operator.symbol[-1], *sides)
        return call(operator.helper, *sides)

    def unary(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            return Value(logical_not(self.condition(node.operand)), "bool")
        value = self.value(node.operand)
        if isinstance(node.op, ast.UAdd):
            return value
        if not isinstance(node.op, ast.USub):
            raise Unsupported("the grammar has no such operator", node)
        if value.literal is not None:
            return literal_value(-value.literal)
        dtype = "int32" if value.dtype == "bool" else value.dtype
        if dtype == "int32" and not self.fits(node):
            return Value(call(OPERATORS[ast.Sub].helper, constant(0, dtype), converted(value, dtype)), dtype)
        return Value(UnaryOp(Op.SubUnary(), converted(value, dtype)), dtype)

    def comparison(self, node: ast.Compare) -> Value:
        parts = []
        left, *others = node.left, *node.comparators
        if self.context.is_loop_arithmetic(node):
            left, *others = map(self.context.index, (left, *others))
        for op, right in zip(node.ops, others, strict=True):
            sides = self.value(left), self.value(right)
            dtype = joint_type(*sides)
            parts.append(binary(COMPARISONS[type(op)].symbol, *(converted(side, dtype) for side in sides)))
            left = right
        return Value(_joined("&&", parts), "bool")

    def logical(self, node: ast.BoolOp) -> Value:
        operator = "&&" if isinstance(node.op, ast.And) else "||"
        return Value(_joined(operator, [self.condition(part) for part in self.context.undecided(node)]), "bool")

    def condition(self, node: ast.expr) -> Expression:
        """An expression as a truth value."""
        return converted(self.value(node), "bool")

    def choice(self, node: ast.IfExp) -> Value:
        known = self.context.truth(node.test)
        if known is not None:
            return self.value(node.body if known else node.orelse)
        then, otherwise = self.value(node.body), self.value(node.orelse)
        dtype = joint_type(then, otherwise)
        return Value(TernaryOp(self.condition(node.test), converted(then, dtype), converted(otherwise, dtype)), dtype)

    def call(self, name: str, node: ast.Call) -> Value:
        """A call of the closed table; what is more than an instruction is the C library's."""
        args = [self.value(arg) for arg in node.args]
        if name in CASTS:
            return Value(converted(args[0], name), name)
        if name in ("min", "max"):
            return self.extremum(name, args)
        if name == "rand":
            words = [converted(arg, "int32") for arg in args]
            return Value(call("random_uniform", *words), "float32")
        if name == "abs" and args[0].dtype == "int32":
            return Value(call("absolute", converted(args[0], "int32")), "int32")
        if name not in LIBRARY:
            raise Unsupported(f"there is no call {name}", node)
        dtype = "float64" if any(a.dtype == "float64" and a.literal is None for a in args) else "float32"
        if (product := small_power(name, args)) is not None:
            return Value(call(product, converted(args[0], dtype)), dtype)
        function = LIBRARY[name] + ("f" if dtype == "float32" else "")
        return Value(call(function, *(converted(arg, dtype) for arg in args)), dtype)

    def extremum(self, name: str, args: list[Value]) -> Value:
        """``min`` or ``max``, from the left."""
        result = args[0]
        for other in args[1:]:
            dtype = joint_type(result, other)
            sides = converted(result, dtype), converted(other, dtype)
            result = Value(call(CALLS[name].helper, *sides), dtype)
        return result


def _joined(operator: str, parts: list[Expression]) -> Expression:
    result = parts[0]
    for part in parts[1:]:
        result = binary(operator, result, part)
    return result
