"""Recipes of chains that build on the recipes of their layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Building:
    """The recipe that a chain's recipe is building on, if it is.

    Args:
        kind: of the layer whose recipe it is, or "".
        phase: whose function it is, or "".
        instead: that phase → the one whose nests it is applied to.
    """

    kind: str = ""
    phase: str = ""
    instead: Mapping[str, str] = field(default_factory=dict)
