"""Expressions of a vector loop → registers. A value that all lanes share is computed once and broadcast."""

from __future__ import annotations

import ast

from swirl.analysis.accesses import is_empty_array
from swirl.codegen.context import Unsupported
from swirl.codegen.ctree_compat import Expression, TernaryOp, call, symbol
from swirl.codegen.intrinsics import Instructions
from swirl.codegen.memory import LaneIndices, LaneMemory
from swirl.codegen.to_c import Statements
from swirl.codegen.values import Value, as_float, converted, joint_type, small_power
from swirl.ir.nest import references
from swirl.ir.operations import COMPARISONS, LIBRARY, OPERATORS
from swirl.ir.trees import names_in, nodes
from swirl.ir.types import CASTS, WEAK_FLOAT


class LaneValues(LaneIndices):
    """The expressions of one vector loop; every method makes one chunk of lanes."""

    def __init__(self, instructions: Instructions, statements: Statements, lane: str):
        self.instructions = instructions
        self.statements = statements
        self.context = statements.context
        self.lane = lane
        self.memory = LaneMemory(instructions, statements, lane, self)

    def varies(self, node: ast.expr) -> bool:
        names = names_in(node)
        if "empty" in names and any(map(is_empty_array, nodes(node))):
            raise Unsupported("an array cannot be declared in a vector loop", node)
        return self.lane in names or any(
            local.storage == "lanes" for name in names if (local := self.context.locals.get(name)) is not None
        )

    def parted(self, test: ast.expr) -> tuple[ast.expr, ast.expr] | None:
        """``a and b`` as the part on loop variables that all lanes share, and the rest; None unless it has both. The
        first becomes a branch, which also keeps the rest from reading outside of arrays."""
        if not isinstance(test, ast.BoolOp) or not isinstance(test.op, ast.And):
            return None
        shared = [p for p in test.values if not self.varies(p) and not any(references(p))]
        rest = [part for part in test.values if not any(part is other for other in shared)]
        if not shared or not rest:
            return None
        first, second = (ast.BoolOp(ast.And(), p) if len(p) > 1 else p[0] for p in (shared, rest))
        return first, second

    def lanes(self, node: ast.expr, dtype: str, chunk: int, mask: Expression | None) -> Expression:
        return self.register(self.value(node, chunk, mask), dtype)

    def register(self, value: Value, dtype: str) -> Expression:
        """A value as a register (for bool: a mask) of the type wanted."""
        if value.lanes:
            return self.instructions.convert(value.node, value.dtype, dtype)
        if dtype == "bool":
            return self.instructions.broadcast_mask(converted(value, "bool"))
        return self.instructions.broadcast(converted(value, dtype), dtype)

    def both(self, left: Expression | None, right: Expression) -> Expression:
        """Both masks; None restricts nothing."""
        return right if left is None else self.instructions.mask_op("&", left, right)

    def joint(self, left: Value, right: Value) -> str:
        return joint_type(left, right)

    # --- expressions ----------------------------------------------------------------------------------------
    def value(self, node: ast.expr, chunk: int, mask: Expression | None) -> Value:
        """An expression; ``mask`` has the lanes that need it."""
        if not self.varies(node):
            return self.statements.expressions.value(node)
        if isinstance(node, ast.Name):
            return self.name(node, chunk)
        if isinstance(node, ast.Subscript):
            assert isinstance(node.value, ast.Name)
            return self.of(self.memory.load(node, chunk, mask), self.context.dtype_of(node.value.id))
        if isinstance(node, ast.BinOp):
            return self.fused(node, chunk, mask) or self.binary(node, chunk, mask)
        if isinstance(node, ast.UnaryOp):
            return self.unary(node, chunk, mask)
        if isinstance(node, ast.Compare):
            return self.comparison(node, chunk, mask)
        if isinstance(node, ast.BoolOp):
            return self.logical(node, chunk, mask)
        if isinstance(node, ast.IfExp):
            return self.choice(node, chunk, mask)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self.call(node.func.id, node, chunk, mask)
        raise Unsupported("not an expression of the grammar", node)

    def of(self, register: Expression, dtype: str) -> Value:
        self.instructions.type_of(dtype)
        return Value(register, dtype, lanes=True)

    def name(self, node: ast.Name, chunk: int) -> Value:
        if node.id == self.lane:
            return self.of(self.instructions.lane_numbers(chunk * self.instructions.width), "int32")
        local = self.context.locals[node.id]
        return self.of(symbol(local.names[(chunk,)]), local.dtype)

    def binary(self, node: ast.BinOp, chunk: int, mask: Expression | None) -> Value:
        operator = OPERATORS.get(type(node.op))
        if operator is None:
            raise Unsupported("the grammar has no such operator", node)
        left, right = self.value(node.left, chunk, mask), self.value(node.right, chunk, mask)
        if operator.least == WEAK_FLOAT:
            left, right = self.floating(left), self.floating(right)
        dtype = self.joint(left, right)
        dtype = "int32" if dtype == "bool" else dtype
        if operator.of_integers:
            if dtype != "int32":
                raise Unsupported(f"{operator.symbol} is for integers", node, "divide and call floor")
            divisor = self.register(right, dtype)
            return self.of(self.instructions.floored(operator, self.register(left, dtype), right, divisor), dtype)
        sides = self.register(left, dtype), self.register(right, dtype)
        return self.of(self.instructions.binary(operator, *sides, dtype), dtype)

    def floating(self, value: Value) -> Value:
        if not value.lanes:
            return as_float(value)
        return value if value.is_float else self.of(self.register(value, "float32"), "float32")

    def fused(self, node: ast.BinOp, chunk: int, mask: Expression | None) -> Value | None:
        """A product and a sum as one instruction, where contraction is on and the product is one of lanes."""
        if not self.context.contract or not isinstance(node.op, (ast.Add, ast.Sub)):
            return None
        product, other, name = node.left, node.right, "fmadd" if isinstance(node.op, ast.Add) else "fmsub"
        if not self.is_product(product):
            product, other, name = (
                node.right,
                node.left,
                "fmadd" if isinstance(node.op, ast.Add) else "fnmadd",
            )
        if not self.is_product(product):
            return None
        assert isinstance(product, ast.BinOp)
        a, b, c = (self.value(part, chunk, mask) for part in (product.left, product.right, other))
        if self.joint(a, b) != "float32" or (c.literal is None and c.dtype == "float64"):
            return None
        return self.of(
            self.instructions.fused(name, *(self.register(part, "float32") for part in (a, b, c))), "float32"
        )

    def is_product(self, node: ast.expr) -> bool:
        return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and self.varies(node)

    def unary(self, node: ast.UnaryOp, chunk: int, mask: Expression | None) -> Value:
        if isinstance(node.op, ast.Not):
            return self.of(self.instructions.mask_not(self.lanes(node.operand, "bool", chunk, mask), None), "bool")
        value = self.value(node.operand, chunk, mask)
        dtype = "int32" if value.dtype == "bool" else value.dtype
        if isinstance(node.op, ast.UAdd):
            return value
        if isinstance(node.op, ast.USub):
            return self.of(self.instructions.negate(self.register(value, dtype), dtype), dtype)
        raise Unsupported("the grammar has no such operator", node)

    # --- truth values ---------------------------------------------------------------------------------------
    def comparison(self, node: ast.Compare, chunk: int, mask: Expression | None) -> Value:
        result: Expression | None = None
        left = self.value(node.left, chunk, mask)
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.value(comparator, chunk, mask)
            dtype = self.joint(left, right)
            dtype = "int32" if dtype == "bool" else dtype
            sides = self.register(left, dtype), self.register(right, dtype)
            result = self.both(result, self.instructions.compare(COMPARISONS[type(op)].symbol, *sides, dtype))
            left = right
        assert result is not None
        return self.of(result, "bool")

    def logical(self, node: ast.BoolOp, chunk: int, mask: Expression | None) -> Value:
        """``and``, ``or``: as in Python, the right side is wanted only where the left one does not decide."""
        is_and = isinstance(node.op, ast.And)
        first, *others = self.context.undecided(node)
        result = self.lanes(first, "bool", chunk, mask)
        for part in others:
            wanted = self.both(mask, result) if is_and else self.instructions.mask_not(result, mask)
            result = self.instructions.mask_op("&" if is_and else "|", result, self.lanes(part, "bool", chunk, wanted))
        return self.of(result, "bool")

    def choice(self, node: ast.IfExp, chunk: int, mask: Expression | None) -> Value:
        known = self.context.truth(node.test)
        if known is not None:
            return self.value(node.body if known else node.orelse, chunk, mask)
        parts = self.parted(node.test)
        if parts is not None:
            inner = ast.IfExp(parts[1], node.body, node.orelse)
            return self.choice(ast.IfExp(parts[0], inner, node.orelse), chunk, mask)
        if not self.varies(node.test):
            branches = self.value(node.body, chunk, mask), self.value(node.orelse, chunk, mask)
            dtype = self.joint(*branches)
            condition = self.statements.expressions.condition(node.test)
            return self.of(TernaryOp(condition, *(self.register(branch, dtype) for branch in branches)), dtype)
        condition = self.lanes(node.test, "bool", chunk, mask)
        then = self.value(node.body, chunk, self.both(mask, condition))
        otherwise = self.value(node.orelse, chunk, self.instructions.mask_not(condition, mask))
        dtype = self.joint(then, otherwise)
        sides = self.register(then, dtype), self.register(otherwise, dtype)
        return self.of(self.instructions.select(condition, *sides, dtype), dtype)

    # --- calls ----------------------------------------------------------------------------------------------
    def call(self, name: str, node: ast.Call, chunk: int, mask: Expression | None) -> Value:
        args = [self.value(arg, chunk, mask) for arg in node.args]
        if name in CASTS:
            return self.of(self.register(args[0], name), name)
        if name in ("min", "max"):
            return self.extremum(name, args)
        if name == "rand":
            return self.random(node, args)
        if name == "abs" and args[0].dtype == "int32":
            return self.of(self.instructions.function(name, [self.register(args[0], "int32")]), "int32")
        if name in LIBRARY:
            registers = [self.register(self.floating(arg), self.floating(arg).dtype) for arg in args]
            if (product := small_power(name, args)) is not None:
                return self.of(call(product, registers[0]), "float32")
            return self.of(self.instructions.function(name, registers), "float32")
        raise Unsupported(f"there is no call {name}", node)

    def extremum(self, name: str, args: list[Value]) -> Value:
        """``min`` or ``max``, from the left."""
        result = args[0]
        for other in args[1:]:
            dtype = self.joint(result, other)
            plain = result.literal is not None and result.literal == result.literal
            sides = self.register(result, dtype), self.register(other, dtype)
            result = self.of(self.instructions.extremum(name, *sides, dtype, plain), dtype)
        return result

    def random(self, node: ast.Call, args: list[Value]) -> Value:
        if any(arg.lanes for arg in args[:3]):
            raise Unsupported("only the index of rand may differ from lane to lane", node)
        words = [converted(arg, "int32") for arg in args[:3]]
        return self.of(self.instructions.random([*words, self.register(args[3], "int32")]), "float32")
