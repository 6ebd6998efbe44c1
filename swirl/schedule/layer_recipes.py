"""Recipes of chains that build on the recipes of their layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Building:
    """The recipe that a chain's recipe is building on, if it is.

    Args:
        kind: of the layer whose recipe it is, or "".
        phase: whose function it is, or "".
        instead: phase of that function → the one whose nests it is applied to.
    """

    kind: str = ""
    phase: str = ""
    instead: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def on(self, phase: str, other: str | None, kind: str | None = None) -> Iterator[None]:
        """Inside of the context, the function for a phase is applied.

        Args:
            phase: of the function.
            other: whose nests it is applied to; None for those of the same phase.
            kind: of the layer whose recipe it is; None for the recipe that is building already.
        """
        outer = self.kind, self.phase, self.instead
        wanted = phase if other is None else other
        actual = self.instead.get(wanted, wanted)
        self.instead = {} if actual == phase else {phase: actual}
        if kind is not None:
            self.kind, self.phase = kind, phase
        try:
            yield
        finally:
            self.kind, self.phase, self.instead = outer
