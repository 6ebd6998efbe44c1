"""Arrays and lanes: contiguous loads and stores, gathers and scatters, and rows of arrays held in
registers.
"""

from __future__ import annotations

import ast
from math import prod

from swirl.codegen.context import Context, Local, Unsupported
from swirl.codegen.ctree_compat import Expression, Node, address_of, array_ref, binary, constant, symbol
from swirl.codegen.intrinsics import Instructions
from swirl.codegen.to_c import Statements, subscripts_fit
from swirl.ir.addresses import element_address
from swirl.ir.affine import Affine, affine
from swirl.ir.nest import reference, subscripts
from swirl.ir.operations import OPERATORS
from swirl.ir.printing import unparse


def register_place(
    context: Context, width: int, local: Local, node: ast.Subscript, lane: str, chunk: int
) -> tuple[tuple[int, ...], int]:
    """The register that holds the first lane of a chunk of ``array[…, lane + constant]``, and the place in it."""
    ranges = {name: limits for name, limits in context.ranges.items() if name != lane}
    forms = [affine(index, ranges, fix=True) for index in subscripts(node)]
    constants = [form.constant for form in forms if form is not None]
    register, position = divmod(constants[-1] + chunk * width, width)
    return (*constants[:-1], register), position


class LaneMemory:
    """Reads and writes of one vector loop, a chunk at a time."""

    def __init__(self, instructions: Instructions, statements: Statements, lane: str, values: LaneIndices):
        self.instructions = instructions
        self.statements = statements
        self.context = statements.context
        self.lane = lane
        self.values = values

    def load(self, node: ast.Subscript, chunk: int, mask: Expression | None) -> Expression:
        """The lanes of a reference; a mask is used only where an inactive lane might be outside of the array."""
        assert isinstance(node.value, ast.Name)
        local = self.context.locals.get(node.value.id)
        if local is not None and local.storage == "registers":
            return self.register(local, node, chunk, mask)
        dtype = self.context.dtype_of(node.value.id)
        stride = self.stride(node)
        if stride == 1:
            guard = None if mask is None or self.fits(node, chunk) else mask
            return self.instructions.load(self.address(node, chunk), dtype, guard)
        if stride is not None and stride in self.instructions.strides and dtype != "bool":
            return self.instructions.load_strided(self.address(node, chunk), stride, mask)
        base, index = self.scattered(node, chunk, mask)
        return self.instructions.gather(base, index, dtype, mask)

    def store(
        self, node: ast.Subscript, value: Expression, chunk: int, mask: Expression | None, past_caches: bool = False
    ) -> Node:
        """Writes the lanes of a reference; ``past_caches`` asks for a non-temporal store where the lanes are
        neighbours."""
        assert isinstance(node.value, ast.Name)
        dtype = self.context.dtype_of(node.value.id)
        stride = self.stride(node)
        if stride == 1:
            if past_caches and dtype != "bool":
                address, certain = self.address(node, chunk), mask is None and self.aligned(node, chunk)
                return self.instructions.stream(address, value, dtype, mask, certain)
            return self.instructions.store(self.address(node, chunk), value, dtype, mask)
        if stride is not None and stride in self.instructions.strides and dtype != "bool":
            return self.instructions.store_strided(self.address(node, chunk), value, stride, mask)
        base, index = self.scattered(node, chunk, mask)
        return self.instructions.scatter(base, index, value, dtype, mask)

    def register(self, local: Local, node: ast.Subscript, chunk: int, mask: Expression | None) -> Expression:
        """A row of an array held in registers, from any lane on; lanes beside the row are masked out."""
        width = self.instructions.width
        key, position = register_place(self.context, width, local, node, self.lane, chunk)
        here, following = local.names.get(key), local.names.get((*key[:-1], key[-1] + 1))
        assert here is not None or mask is not None, unparse(node)
        beside = next(iter(local.names.values()))  # its lanes are not looked at
        low, high = symbol(here or following or beside), symbol(following or here or beside)
        return low if position == 0 else self.instructions.shift_lanes(low, high, position)

    # --- addresses ------------------------------------------------------------------------------------------
    def stride(self, node: ast.Subscript) -> int | None:
        """The distance of neighbouring lanes in memory; None where that is not constant, or lanes are in different rows
        of the array."""
        assert isinstance(node.value, ast.Name)
        *rest, last = subscripts(node)
        if not any(self.values.varies(index) for index in rest):
            return self.coefficient(last)
        moving = [index if self.values.varies(index) else ast.Constant(0) for index in (*rest, last)]
        return self._along(element_address(self.context.shape_of(node.value.id), moving, self.context.ranges, fix=True))

    def coefficient(self, index: ast.expr) -> int | None:
        """By how much a subscript grows from lane to lane; None where that is not constant."""
        return self._along(affine(index, self.context.ranges, fix=True))

    def _along(self, form: Affine | None) -> int | None:
        """By how much a form grows from lane to lane; None where that is not constant."""
        if form is None or any(self.values.varies(form.atoms[key]) for key in form.terms if key != self.lane):
            return None
        return form.coefficient(self.lane)

    def fits(self, node: ast.Subscript, chunk: int) -> bool:
        first = chunk * self.instructions.width
        return subscripts_fit(self.context, node, **{self.lane: (first, first + self.instructions.width - 1)})

    def aligned(self, node: ast.Subscript, chunk: int) -> bool:
        """Whether the first lane of a chunk is certainly at a multiple of the register's size."""
        with self.context.scope():
            first = chunk * self.instructions.width
            self.context.ranges[self.lane] = (first, first)
            return self.context.alignment(node) % self.instructions.width == 0

    def address(self, node: ast.Subscript, chunk: int) -> Expression:
        """The place of the first lane of a chunk."""
        return self.pointer(node, subscripts(node), chunk * self.instructions.width)

    def pointer(self, node: ast.Subscript, indices: list[ast.expr], lane: int) -> Expression:
        """``&array[i][j + 16]``, at a lane; ``array[i] + (j - 1)`` where that lane may be masked out, and be outside of
        the row."""
        assert isinstance(node.value, ast.Name)
        *rest, last = self.at_lane(indices, lane)
        if subscripts_fit(self.context, reference(node.value.id, indices), **{self.lane: (lane, lane)}):
            return address_of(array_ref(self.c_name(node), [*rest, last]))
        return binary("+", array_ref(self.c_name(node), rest), last)

    def c_name(self, node: ast.Subscript) -> str:
        assert isinstance(node.value, ast.Name)
        local = self.context.locals.get(node.value.id)
        return self.context.names[node.value.id] if local is None else local.name

    def at_lane(self, indices: list[ast.expr], lane: int) -> list[Expression]:
        """Subscripts with the lane's number put in."""
        with self.context.scope():
            self.context.ranges[self.lane] = (lane, lane)
            return [self.statements.expressions.integer(index) for index in indices]

    def scattered(self, node: ast.Subscript, chunk: int, mask: Expression | None) -> tuple[Expression, Expression]:
        """A base address and a register of element distances from it, for lanes that are not neighbours."""
        assert isinstance(node.value, ast.Name)
        shape = self.context.shape_of(node.value.id)
        if prod(shape) >= 2**31:
            raise Unsupported("an array of 2^31 elements or more cannot be gathered from or scattered to", node)
        indices = subscripts(node)
        base: list[ast.expr] = []
        distance: Expression | None = None
        for dimension, index in enumerate(indices):
            coefficient = self.coefficient(index)
            stride = prod(shape[dimension + 1 :])
            if coefficient is None:  # the whole subscript goes into the register
                part = self.scaled(self.values.lanes(index, "int32", chunk, mask), stride)
                base.append(ast.Constant(0))
            else:  # what is the same for all lanes goes into the base
                base.append(index)
                if coefficient == 0:
                    continue
                part = self.scaled(
                    self.instructions.lane_numbers(chunk * self.instructions.width), coefficient * stride
                )
            plus = OPERATORS[ast.Add]
            distance = part if distance is None else self.instructions.binary(plus, distance, part, "int32")
        assert distance is not None
        return self.pointer(node, base, 0), distance

    def scaled(self, register: Expression, factor: int) -> Expression:
        if factor == 1:
            return register
        factors = self.instructions.broadcast(constant(factor, "int32"), "int32")
        return self.instructions.binary(OPERATORS[ast.Mult], register, factors, "int32")


class LaneIndices:
    """The questions of :class:`LaneMemory` about the expressions of its loop."""

    def varies(self, node: ast.expr) -> bool:
        """Whether an expression differs from lane to lane."""
        raise NotImplementedError

    def lanes(self, node: ast.expr, dtype: str, chunk: int, mask: Expression | None) -> Expression:
        """An expression as a register of ``dtype``."""
        raise NotImplementedError
