"""Every error that Latte or SWIRL raises on purpose, under one base class.

An error says three things: what is wrong, the location that asked for it (file and line of the user's
code or recipe, where there is one), and a way out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any


class LatteError(Exception):
    """Base class of all errors raised on purpose.

    Args:
        message: what is wrong, in one sentence.
        location: ``file:line`` of the user's code that asked, or an ensemble's name.
        way_out: what to do about it.
    """

    def __init__(self, message: str, *, location: str | None = None, way_out: str | None = None):
        self.message = message
        self.location = location
        self.way_out = way_out
        self.asked_by: tuple[str, ...] = ()
        """The places that have asked for what the location asks, from the inside out, each with what it says there."""
        super().__init__(message)

    def __str__(self) -> str:
        return "\n".join([self._head(), *(f"  {part}" for part in (*self.asked_by, self.way_out) if part)])

    def _head(self) -> str:
        return f"{self.location}: {self.message}" if self.location else self.message


@contextmanager
def about(what: str) -> Iterator[None]:
    """Errors inside begin with what they are about."""
    try:
        yield
    except LatteError as error:
        error.message = f"{what}: {error.message}"
        raise


def nearest(name: object, known: Iterable[str]) -> str:
    """``did you mean 'parallelize'? `` where a known name is close, else nothing: what a way out begins with."""
    close = get_close_matches(str(name), list(known), 1)
    return f"did you mean {close[0]!r}? " if close else ""


def misspelt(name: str, known: Iterable[str]) -> str | None:
    """The known name that this one is nearly: nobody means another thing by it."""
    close = get_close_matches(name, list(known), 1, cutoff=0.8)
    return close[0] if close else None


class DeclarationError(LatteError):
    """A layer, ensemble, field or connection is declared wrongly (shapes, names, cycles, batch size)."""


class MappingError(DeclarationError):
    """A mapping is not affine, leaves its source, or yields the wrong number of ranges."""


class BodyError(DeclarationError):
    """A neuron's or ensemble's body uses something the language does not have."""


class DerivativeError(LatteError):
    """A body cannot be differentiated automatically; the message names the line.

    Args:
        line: of the statement, in the file of the body.
    """

    def __init__(
        self, message: str, *, location: str | None = None, way_out: str | None = None, line: int | None = None
    ):
        super().__init__(message, location=location, way_out=way_out)
        self.line = line


class WrongCall(DeclarationError, TypeError):
    """A function is called with arguments that it does not take (Python's TypeError, too, for who expects that)."""


class DataError(LatteError):
    """Data given at run time have the wrong shape, type or range."""


class TrainingError(LatteError):
    """Training cannot continue (no loss, NaN in the loss, phase not compiled)."""


class DoesNotFit(LatteError):
    """A net needs more memory than the machine has; nothing has been allocated."""


class ValidationError(LatteError):
    """A program breaks the grammar of the intermediate representation: a defect of the stage that made it."""


class LayoutError(LatteError):
    """Two ensembles ask for layouts of one buffer that disagree."""


class CommandError(LatteError):
    """A command names something that does not exist, has bad arguments, or comes too late."""


class UnknownName(CommandError, AttributeError):
    """A layer has no command, field or attribute of this name (so that ``hasattr`` answers False)."""


class Refused(CommandError):
    """A command is well formed, but would change the meaning of the program.

    Args:
        message: one line, ``parallelize('backward', 'y'): two iterations would update the same element``.
        location: ``file:line`` of the command.
        nest: the current nest as text, the loop in question marked.
        witness: the two statement instances that collide and the element they share, in words.
        way_out: commands that would help; or a function that finds them, called when they are read (commands are tried
            before they are named, and most refusals are never read).
    """

    def __init__(
        self,
        message: str,
        *,
        location: str | None = None,
        nest: str | None = None,
        witness: str | None = None,
        way_out: str | Callable[[], str | None] | None = None,
    ):
        self._find = way_out if callable(way_out) else None
        super().__init__(message, location=location, way_out=None if callable(way_out) else way_out)
        self.nest = nest
        self.witness = witness

    @property
    def way_out(self) -> str | None:
        """Commands that would help."""
        if self._find is not None:
            find, self._find = self._find, None
            self._way_out = find()
        return self._way_out

    @way_out.setter
    def way_out(self, way_out: str | None) -> None:
        self._way_out = way_out

    @property
    def has_to_look(self) -> bool:
        """Whether the way out has not been looked for."""
        return self._find is not None

    def witnessed(self, witness: str | None) -> Refused:
        """The same refusal with another witness."""
        return Refused(self.message, nest=self.nest, witness=witness, way_out=lambda: self.way_out)

    def offering(self, way_out: Callable[[], str | None]) -> Refused:
        """The same refusal with another way out."""
        return Refused(self.message, location=self.location, nest=self.nest, witness=self.witness, way_out=way_out)

    def __str__(self) -> str:
        lines = [self._head()]
        if self.nest:
            lines += ["    " + line for line in self.nest.splitlines()]
        lines += ["  " + part for part in (self.witness, *self.asked_by, self.way_out) if part]
        return "\n".join(lines)

    def to_json(self) -> str:
        """The same object for programs: a JSON object with the parts of the message."""
        parts = ("message", "location", "nest", "witness", "way_out")
        return json.dumps({part: getattr(self, part) for part in parts})


class Declined(LatteError):
    """A recipe leaves a phase to others; see :meth:`swirl.schedule.recipe.Schedule.decline`. The planner takes it as an
    answer.

    Args:
        message: why.
        phase: the one that is left.
        location: ``file:line`` of the recipe.
        chain: name of the layers, of a chain or of some of its neighbours, that cannot be together; by default all.
    """

    def __init__(self, message: str, *, phase: str, location: str | None = None, chain: str | None = None):
        super().__init__(message, location=location, way_out="only the recipe of a net's layer can decline a phase")
        self.phase, self.chain = phase, chain
        self.built_on: tuple[str, ...] = ()
        """The kinds of layers whose recipes the recipe has built on."""
        self.knobs: tuple[Any, ...] = ()
        """The choices that it has asked for (:class:`swirl.schedule.choices.Knob`)."""


class RecipeError(LatteError):
    """A recipe file cannot be read, or raised an exception of its own."""


class ChoiceError(RecipeError):
    """A choice that a recipe leaves open is set to something that it may not be."""


class CompilerMissing(LatteError):
    """No C++ compiler was found."""


class CompilerFailed(LatteError):
    """The C++ compiler refused generated code; the message keeps the compiler's own words."""


class TargetError(LatteError):
    """The target asked for is unknown, or this machine cannot run it."""
