"""canonical: neighbouring nests share an outermost loop that needs no order."""

from __future__ import annotations

from swirl.ir.nest import Program
from swirl.ir.types import explicit
from swirl.transforms.rewrites.loops.shared_loops import with_shared_loops


def canonicalise(program: Program) -> Program:
    """Fuse neighbouring nests under a common outermost loop without dependences, and so on inwards; see
    :mod:`swirl.transforms.rewrites.loops.shared_loops`."""
    return with_shared_loops(explicit(program))
