"""Commands as they were written, their outcomes and places: errors name the line of the recipe or program."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

from swirl.errors import CommandError, LatteError, Refused, nearest
from swirl.ir.nest import Program
from swirl.schedule.memo import Memo
from swirl.transforms import COMMANDS, LAYOUT_COMMANDS

ALIKE = 4  # from this many equal elements of a list in a row on, their number is written


@dataclass(frozen=True)
class Recorded:
    """A command as it was written: to be applied, or replayed.

    Args:
        name, arguments, options: of the command.
        location: ``file:line`` where it was written.
        called_on: what commands are written after there: ``s.`` in a recipe.
        of: of a command on a layout, the kind of layer in a chain whose names it uses; "" for the chain's own.
    """

    name: str
    arguments: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]
    location: str | None
    called_on: str = ""
    of: str = ""

    @property
    def phase(self) -> str | None:
        """The phase that it names; None of a command on a layout."""
        named = dict(self.options).get("phase", self.arguments[0] if self.arguments else None)
        return None if self.name in LAYOUT_COMMANDS or not isinstance(named, str) else named

    @property
    def given(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments and options that the command itself gets, without the phase."""
        options = {name: value for name, value in self.options if name not in ("phase", "optional")}
        skipped = 0 if self.name in LAYOUT_COMMANDS or "phase" in dict(self.options) else 1
        return self.arguments[skipped:], options

    @property
    def text(self) -> str:
        """``tile_loop('forward', 'c', 16, tail='peel')``."""
        given = [_written(argument) for argument in self.arguments]
        given += [f"{key}={_written(value)}" for key, value in self.options]
        return f"{self.name}({', '.join(given)})"


def given_text(text: str, of: str) -> str:
    """The text of a command on a layout as the recipe of a chain gives it: with the kind of layer that it is of."""
    return f"{text[:-1]}, of={of!r})" if of else text


def _written(value: Any) -> str:
    """The value as Python; many equal tile sizes (:meth:`swirl.schedule.queries.Questions.combination`) are
    abbreviated: ``[13] * 231 + [12] * 9``."""
    if not isinstance(value, list):
        return repr(value)
    runs = [(text, sum(1 for _ in same)) for text, same in groupby(map(repr, value))]
    if not value or len(value) < ALIKE * len(runs):
        return repr(value)
    return " + ".join(f"[{text}] * {count}" if count > 1 else f"[{text}]" for text, count in runs)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command: ``applied`` or ``skipped``, with the reason.

    Args:
        command: as it was written.
        status: of it.
        reason: for it.
        cautions: what it does that will hardly have been meant, see :mod:`swirl.schedule.cautions`.
        function: the phase whose function of the recipe gave it; empty where it was recorded on a layer.
    """

    command: Recorded
    status: str
    reason: str = ""
    cautions: tuple[str, ...] = ()
    function: str = ""


@dataclass(frozen=True)
class EntryUse:
    """What has become of an entry of a tuned recipe; see :mod:`swirl.schedule.entries`.

    Args:
        name, location: of its function.
        phase: that it is for.
        how: ``exact``: it is used; ``nearest``: it is used, and was found for other sizes; ``stale``, ``refused``: it
            is not used.
        told: more about it.
    """

    name: str
    location: str
    phase: str
    how: str
    told: str

    @property
    def is_used(self) -> bool:
        """Whether the phase has its commands."""
        return self.how in ("exact", "nearest")

    def __str__(self) -> str:
        return f"{self.phase}: the entry {self.name}, {self.location}{', ' if self.told else ''}{self.told}"


@dataclass(frozen=True)
class Traced:
    """The program of one phase after a command that changed it.

    Args:
        phase: of the program.
        command: as it was written.
        program: after it.
        function: the phase whose function of the recipe it stands in; empty where it was recorded on a layer.
    """

    phase: str
    command: Recorded
    program: Program
    function: str = ""


def unknown_command(name: str, location: str | None) -> CommandError:
    """The error for a command that does not exist, with the nearest one that does."""
    return CommandError(
        f"no command named {name!r}",
        location=location,
        way_out=f"{nearest(name, COMMANDS)}the commands are {', '.join(sorted(COMMANDS))}",
    )


def run_command(
    memo: Memo, name: str, program: Program, arguments: Sequence[Any], options: Mapping[str, Any]
) -> Program:
    """The program after a command.

    Raises:
        CommandError: a wrong argument. Refused, LayoutError: see :data:`swirl.transforms.COMMANDS`.
    """
    COMMANDS[name].bound(arguments, options)
    return memo.program(COMMANDS[name], program, *arguments, **options)


def located(error: LatteError, command: Recorded) -> LatteError:
    """The error with the command and its place."""
    found = in_phase(error, command, command.phase)
    found.message, found.location = f"{command.text}: {error.message}", command.location
    return found


def in_phase(error: LatteError, command: Recorded, phase: str | None) -> LatteError:
    """The error with the commands in its way out written as the refused one was, to be pasted there.

    Args:
        error: that the command has raised.
        command: as it was written.
        phase: that it was for; None of one on a layout.
    """
    if isinstance(error, Refused):
        return error.offering(lambda: pasted(error.way_out, command.called_on, phase))
    return type(error)(error.message, location=error.location, way_out=error.way_out)


def pasted(way_out: str | None, called_on: str, phase: str | None) -> str | None:
    """A way out with its commands as they are written: ``s.split('forward', 'i', [3])`` for ``split('i', [3])``."""

    def written(call: re.Match[str]) -> str:
        name, end = call.groups()
        if name in LAYOUT_COMMANDS or phase is None:  # which have no phase
            return f"{called_on}{name}({end}"
        return f"{called_on}{name}({phase!r}{end or ', '}"

    return way_out and _CALL.sub(written, way_out)


def names_command(way_out: str) -> bool:
    """Whether a way out has a command to paste."""
    return _CALL.search(way_out) is not None


_CALL = re.compile(rf"(?<![\w.])({'|'.join(COMMANDS)})\((\)?)")


def caller() -> str | None:
    """``file:line`` of the nearest frame outside this package, or in the default schedule."""
    frame: FrameType | None = sys._getframe(1)
    package = str(Path(__file__).parents[1]) + os.sep
    rules = str(Path(__file__).with_name("rules")) + os.sep
    while frame is not None and (file := frame.f_code.co_filename).startswith(package) and not file.startswith(rules):
        frame = frame.f_back
    return None if frame is None else f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}"


def shown(filename: str) -> str:
    """The path relative to the current folder, if it is below that."""
    path = Path(filename)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return filename
