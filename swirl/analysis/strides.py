"""The distance in memory between neighbouring iterations' elements."""

from __future__ import annotations

import ast

from swirl.ir.addresses import element_address
from swirl.ir.buffers import Buffer
from swirl.ir.layouts import in_memory
from swirl.ir.trees import names_in

LINE = 64
"""Bytes of a cache line."""


def memory_stride(buffer: Buffer, indices: list[ast.expr], var: str, ranges: dict[str, tuple[int, int]]) -> int | None:
    """Elements in memory between neighbouring values of ``var``; None where that is not constant."""
    physical = in_memory(buffer.layout, indices, ranges)
    moving = [index if var in names_in(index) else ast.Constant(0) for index in physical]
    address = element_address(buffer.physical_shape, moving, ranges)
    return None if address is None or not address.plain({var}) else address.coefficient(var)
