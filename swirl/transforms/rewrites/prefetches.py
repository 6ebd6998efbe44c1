"""Nests without their prefetches."""

from __future__ import annotations

import ast

from swirl.ir.hints import prefetch_of
from swirl.ir.nest import Nest
from swirl.ir.paths import walk
from swirl.transforms.rewrites.blocks import rebuilt


def without_prefetches(nest: Nest, buffer: str | None = None) -> Nest:
    """The nest without its prefetches, those of one buffer or all."""
    found = ((node, prefetch_of(node)) for _, node in walk(nest.body))
    gone: dict[int, list[ast.stmt]] = {id(node): [] for node, it in found if it and buffer in (None, it.buffer)}
    return nest.with_body(rebuilt(nest.body, gone)) if gone else nest
