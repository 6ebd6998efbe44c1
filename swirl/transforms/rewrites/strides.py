"""The distance in memory between neighbouring iterations' elements."""

from __future__ import annotations

import ast

from swirl.ir.affine import affine, coefficients
from swirl.ir.buffers import Buffer
from swirl.ir.layouts import in_memory
from swirl.ir.trees import names_in


# --- contiguity -----------------------------------------------------------------------------------------
def memory_stride(buffer: Buffer, indices: list[ast.expr], var: str, ranges: dict[str, tuple[int, int]]) -> int | None:
    """Elements in memory between neighbouring values of ``var``; None where that is not constant."""
    strides = [1]
    for extent in reversed(buffer.physical_shape[1:]):
        strides.insert(0, strides[0] * extent)
    total = 0
    for index, stride in zip(in_memory(buffer.layout, indices, ranges), strides, strict=True):
        coefficient = coefficients(index, var) if affine(index) is not None else None
        if coefficient is None:
            if var not in names_in(index):
                continue
            return None
        total += coefficient * stride
    return total
