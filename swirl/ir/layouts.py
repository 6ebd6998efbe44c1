"""Subscripts in memory, under a buffer's layout."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from swirl.ir.affine import Ranges, affine, simplify
from swirl.ir.buffers import Layout
from swirl.ir.nest import expr


def in_memory(layout: Layout, indices: Sequence[ast.expr], ranges: Ranges) -> list[ast.expr]:
    """The subscripts of an element in memory, simplified with the ranges of the loops.

    A halo shifts the subscripts; a dimension blocked by ``f`` is indexed by ``index // f``, and by ``index % f``
    innermost: ``(c_outer * 16 + c_inner) // 16`` is ``c_outer``. The rest follows in the layout's order.
    """

    def part(text: str, index: ast.expr) -> ast.expr:
        made = expr(text, index=index)
        return simplify(made, ranges) if affine(index) is not None else made

    outer = list(indices)
    inner = []
    for dimension, (before, _) in enumerate(layout.halo):
        if before:
            outer[dimension] = part(f"index + {before}", outer[dimension])
    for dimension, factor in layout.blocks:
        index = outer[dimension]
        inner.append(part(f"index % {factor}", index))
        outer[dimension] = part(f"index // {factor}", index)
    return [*(outer[dimension] for dimension in layout.order or range(len(outer))), *inner]
