"""Statements in another order: whether every dependence still points forwards."""

from __future__ import annotations

import ast

from swirl.ir.deps import NotProved, reordered
from swirl.ir.nest import Nest, clones
from swirl.ir.paths import Path
from swirl.ir.statements import tag
from swirl.transforms.rewrites.refusals import WayOut, refuse

# --- shared pieces ---------------------------------------------------------------------------------------


def check_order(
    old: list[ast.stmt], new: list[ast.stmt], nest: Nest, path: Path, note: str, way_out: WayOut = None
) -> None:
    """Raises Refused where ``new``, a rearrangement of the tagged statements of ``old``, reverses a dependence."""
    try:
        conflict = reordered(old, new)
    except NotProved:
        raise refuse("not proved within the time allowed", nest, path, note) from None
    if conflict is not None:
        raise refuse("a dependence would be reversed", nest, path, note, witness=conflict, way_out=way_out)


def tagged(body: list[ast.stmt]) -> list[ast.stmt]:
    """A private copy of ``body`` whose leaf statements are numbered."""
    result = clones(body)
    tag(result)
    return result
