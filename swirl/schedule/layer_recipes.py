"""Recipes of chains that build on the recipes of their layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from swirl.errors import Declined, LatteError
from swirl.schedule.imports import raised_at


class Named(Protocol):
    """A recipe that has a name and may be a file."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def path(self) -> Path | None:
        """Of the file."""


@contextmanager
def asked_by(asked_at: str, recipe: Named) -> Iterator[None]:
    """Errors inside say where the recipe was asked for, too.

    Args:
        asked_at: the place, and what it says there.
        recipe: whose function runs.
    """
    try:
        yield
    except Declined:
        raise  # an answer
    except LatteError as error:
        if error.location is None:  # a question, not a command
            error.location = raised_at(error, recipe.name, recipe.path)
        error.asked_by = (*error.asked_by, asked_at)
        raise


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
