"""Checks of phases and shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latte.place import user_place
from swirl.errors import DeclarationError

# Each phase with the methods that may spell it, in order of preference.
PHASES = {"forward": ("forward",), "backward": ("backward",), "update": ("update", "update_internal")}


def check_phase(phase: str) -> str:
    """The phase, aliases resolved.

    Raises:
        DeclarationError: for an unknown one.
    """
    for canonical, names in PHASES.items():
        if phase in names:
            return canonical
    raise DeclarationError(f"unknown phase {phase!r}", way_out=f"one of {', '.join(PHASES)}")


def check_shape(shape: int | Sequence[int], place: str | None = None) -> tuple[int, ...]:
    """A shape as a tuple of positive integers.

    Raises:
        DeclarationError: if it is none.
    """
    extents = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    if not extents or not all(
        isinstance(extent, (int, np.integer)) and not isinstance(extent, bool) and extent > 0
        for extent in extents
    ):
        raise DeclarationError(
            f"the shape {shape!r} must be one or more positive integers, without the batch",
            place=place or user_place(),
        )
    return tuple(map(int, extents))
