"""Single references and loops: what is assigned, what exists, what certainly runs."""

from __future__ import annotations

import ast

from swirl.ir.affine import bounds
from swirl.ir.nest import loop_of, subscripts


def runs(node: ast.For) -> bool:
    """Whether the loop has an iteration in every iteration of the loops around it."""
    loop = loop_of(node)
    return bool(loop.extent) or loop.kind == "vector"


def in_bounds(shape: tuple[int, ...], node: ast.Subscript, ranges: dict[str, tuple[int, int]]) -> bool:
    """Whether the element exists for all values in ``ranges``."""
    limits = [bounds(index, ranges) for index in subscripts(node)]
    return all(
        limit is not None and limit[0] >= 0 and limit[1] < extent for limit, extent in zip(limits, shape, strict=True)
    )
