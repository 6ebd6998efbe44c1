"""What a command is: declared once, found by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec

from swirl.ir.nest import Program
from swirl.ir.types import explicit

P = ParamSpec("P")
Command = Callable[Concatenate[Program, P], Program]
COMMANDS: dict[str, Callable[..., Program]] = {}
"""Every command by name: a pure function program → program that raises :class:`Refused` where it would change
the meaning."""


@dataclass(frozen=True)
class Assumption:
    """What a command takes for granted of the numbers that a program is run on; ``explain`` says it wherever the
    command changed something.

    Args:
        text: a sentence, after "assumes that".
        option: the switch that has to be on for it; None is always.
    """

    text: str
    option: str | None = None


ASSUMPTIONS: dict[str, Assumption] = {}
"""By the command's name."""


def command(*names: str, assumes: Assumption | None = None) -> Callable[[Command[P]], Command[P]]:
    """Registers a command under ``names`` (its own name, and the names that older recipes use).

    Args:
        names: other names.
        assumes: what it takes for granted of the data.

    It gets the program with every conversion of types spelled out: an update of a whole number by a fraction, which
    loses something at each step, is then no sum whose order may change.
    """

    def register(function: Command[P]) -> Command[P]:
        @wraps(function)
        def run(program: Program, *arguments: P.args, **options: P.kwargs) -> Program:
            return function(explicit(program), *arguments, **options)

        for name in (function.__name__, *names):
            COMMANDS[name] = run
            if assumes is not None:
                ASSUMPTIONS[name] = assumes
        return run

    return register
