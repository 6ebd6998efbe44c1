"""Connections: the edges of a net."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from latte.model.mapping import Window

if TYPE_CHECKING:
    from latte.model.ensemble import Ensemble


@dataclass(frozen=True, eq=False)
class Connection:
    """An edge of the net: ``sink`` reads ``source``.

    Args:
        name: of the source's value in the sink's bodies: ``inputs``, ``inputs1``, …, or ``label``.
        windows: for each dimension of the source (as seen through ``reshape``) the positions that a neuron
            reads; None where the sink's body has explicit loops.
        padding: (before, after) for each dimension: positions outside the source that read as zero.
        clamp: positions outside read the nearest edge.
        reshape: the shape in which the sink sees the source, if not its own.
        one_to_one: every neuron reads the element at its own index.
        place: ``file:line`` that made the connection.
    """

    source: Ensemble
    sink: Ensemble
    name: str
    windows: tuple[Window, ...] | None = None
    padding: tuple[tuple[int, int], ...] = ()
    clamp: bool = False
    reshape: tuple[int, ...] | None = None
    one_to_one: bool = False
    place: str | None = None

    @property
    def is_label(self) -> bool:
        """Labels have no gradient."""
        return self.name == "label"

    @property
    def shape(self) -> tuple[int, ...]:
        """The source's shape as the sink sees it, without the batch."""
        return self.reshape or self.source.shape
