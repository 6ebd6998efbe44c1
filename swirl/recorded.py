"""Commands as they were written, what became of them, and where: errors name the line of the recipe or program."""

from __future__ import annotations

import inspect
import os
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

from swirl.errors import CommandError, LatteError, Refused, nearest
from swirl.ir.nest import Program
from swirl.memo import Memo
from swirl.transforms import COMMANDS, LAYOUT_COMMANDS

ALIKE = 4  # equal elements of a list in a row, from which on their number is written


@dataclass(frozen=True)
class Recorded:
    """A command as it was written: to be applied, or replayed."""

    name: str
    arguments: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]
    place: str | None

    @property
    def text(self) -> str:
        """``tile_loop('forward', 'c', 16, tail='peel')``."""
        given = [_written(argument) for argument in self.arguments]
        given += [f"{key}={_written(value)}" for key, value in self.options]
        return f"{self.name}({', '.join(given)})"


def _written(value: Any) -> str:
    """The value as Python; of many equal tile sizes (:meth:`swirl.questions.Questions.combination`), how often each
    follows itself: ``[13] * 231 + [12] * 9``."""
    if not isinstance(value, list):
        return repr(value)
    runs = [(text, sum(1 for _ in same)) for text, same in groupby(map(repr, value))]
    if not value or len(value) < ALIKE * len(runs):
        return repr(value)
    return " + ".join(f"[{text}] * {count}" if count > 1 else f"[{text}]" for text, count in runs)


@dataclass(frozen=True)
class Outcome:
    """What became of a command: ``applied`` or ``skipped``, with the reason."""

    command: Recorded
    status: str
    reason: str = ""


@dataclass(frozen=True)
class Traced:
    """The program of one phase after a command that changed it."""

    phase: str
    command: Recorded
    program: Program


def unknown_command(name: str, place: str | None) -> CommandError:
    """The error for a command that does not exist, with the nearest one that does."""
    return CommandError(
        f"no command named {name!r}",
        place=place,
        way_out=f"{nearest(name, COMMANDS)}the commands are {', '.join(sorted(COMMANDS))}",
    )


def check_arguments(name: str, program: Program, arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Raises CommandError where a command does not take what it is given, with what it takes."""
    signature = _signature(name)
    try:
        given = signature.bind(program, *arguments, **options).arguments
    except TypeError as error:
        takes = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()][1:]
        unknown = next((key for key in options if key not in signature.parameters), None)
        hint = nearest(unknown, [parameter.name for parameter in takes]) if unknown is not None else ""
        if name not in LAYOUT_COMMANDS:
            takes.insert(0, inspect.Parameter("phase", inspect.Parameter.POSITIONAL_OR_KEYWORD))
        shown = signature.replace(parameters=takes, return_annotation=signature.empty)
        raise CommandError(str(error), way_out=f"{hint}it is {name}{shown}") from None
    for key, value in given.items():
        wanted = _wanted(signature.parameters[key])
        if wanted and not any(isinstance(value, kind) and (kind is bool) == isinstance(value, bool) for kind in wanted):
            kinds = " or ".join(_KINDS[kind] for kind in wanted)
            raise CommandError(f"{key} must be {kinds}, not {value!r}")
    nest = given.get("nest")
    labels = [candidate.label for candidate in program.nests]
    if nest is not None and nest not in (*labels, *range(len(labels))):
        raise CommandError(f"no nest {nest!r} in {program.name}", way_out=f"{nearest(nest, labels)}the nests are "
                           + ", ".join(f"{index} {label}" for index, label in enumerate(labels)))  # fmt: skip


def run_command(
    memo: Memo, name: str, program: Program, arguments: Sequence[Any], options: Mapping[str, Any]
) -> Program:
    """The program after a command.

    Raises:
        CommandError: it does not take what it is given.  Refused, LayoutError: see :data:`swirl.transforms.COMMANDS`.
    """
    check_arguments(name, program, arguments, options)
    return memo.program(COMMANDS[name], program, *arguments, **options)


_KINDS = {str: "a string", int: "a whole number", bool: "True or False", type(None): "None"}


@cache
def _signature(name: str) -> inspect.Signature:
    return inspect.signature(COMMANDS[name], eval_str=True)


def _wanted(parameter: inspect.Parameter) -> tuple[type, ...]:
    """The types that a parameter takes, where these are words, switches or a nest; what numbers and lists must be like,
    the command says itself."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return ()
    wanted = parameter.annotation
    kinds = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    plain = set(kinds) <= ({str, int, type(None)} if parameter.name == "nest" else {str, bool, type(None)})
    return kinds if plain else ()


def located(error: LatteError, command: Recorded) -> LatteError:
    message = f"{command.text}: {error.message}"
    if isinstance(error, Refused):
        return Refused(
            message, place=command.place, nest=error.nest, witness=error.witness, way_out=error.way_out
        )
    return type(error)(message, place=command.place, way_out=error.way_out)


def caller() -> str | None:
    """``file:line`` of the nearest frame outside this package."""
    frame: FrameType | None = sys._getframe(1)
    here = str(Path(__file__).parent) + os.sep
    while frame is not None and frame.f_code.co_filename.startswith(here):
        frame = frame.f_back
    return None if frame is None else f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}"


def shown(filename: str) -> str:
    """The path as people write it: relative to the current folder where it lies below."""
    path = Path(filename)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return filename
