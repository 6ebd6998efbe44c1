"""The distance in memory between neighbouring iterations' elements."""

from __future__ import annotations

import ast

from swirl.ir.addresses import element_address
from swirl.ir.buffers import Buffer
from swirl.ir.layouts import in_memory
from swirl.ir.trees import names_in


def memory_stride(buffer: Buffer, indices: list[ast.expr], var: str, ranges: dict[str, tuple[int, int]]) -> int | None:
    """Elements in memory between neighbouring values of ``var``; None where that is not constant."""
    physical = in_memory(buffer.layout, indices, ranges)
    moving = [index if var in names_in(index) else ast.Constant(0) for index in physical]
    address = element_address(buffer.physical_shape, moving, ranges)
    if address is None or any(key != var and var in names_in(address.atoms[key]) for key in address.terms):
        return None
    return address.coefficient(var)
