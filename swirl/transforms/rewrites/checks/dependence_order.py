"""Statements in another order: whether every dependence still points forwards."""

from __future__ import annotations

import ast

from swirl.analysis.dependences import NotProved, reordered
from swirl.analysis.statements import statements, statements_at, tag
from swirl.ir.nest import Nest, clones
from swirl.ir.paths import Path
from swirl.transforms.rewrites.checks.refusals import WayOut, refuse

# --- shared pieces ---------------------------------------------------------------------------------------


def check_order(
    old: list[ast.stmt],
    new: list[ast.stmt],
    nest: Nest,
    path: Path,
    note: str,
    way_out: WayOut = None,
    *,
    inside: bool = False,
) -> None:
    """Raises Refused where ``new``, a rearrangement of the tagged statements of ``old``, reverses a dependence.

    Args:
        old, new: the whole body of the nest; or, ``inside``, what is at ``path`` before and after: the order of other
            statements does not change.
    """
    before, after = (statements_at(nest.body, path, body) if inside else statements(body) for body in (old, new))
    try:
        conflict = reordered(before, after)
    except NotProved:
        raise refuse("not proved within the time allowed", nest, path, note) from None
    if conflict is not None:
        raise refuse("a dependence would be reversed", nest, path, note, witness=conflict, way_out=way_out)


def tagged(body: list[ast.stmt]) -> list[ast.stmt]:
    """A private copy of ``body`` whose leaf statements are numbered."""
    result = clones(body)
    tag(result)
    return result
