"""What must hold for every program and every sequence of commands: refused, or the same results."""

from __future__ import annotations

import random
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

from swirl.errors import CommandError, LayoutError
from swirl.ir.execute import execute, random_arrays
from swirl.ir.nest import Program
from swirl.ir.validate import validate
from swirl.transforms import COMMANDS
from swirl.transforms.passes.canonical import canonicalise
from swirl.transforms.passes.long_sums import long_sums
from swirl.transforms.passes.tidy import tidy
from swirl.transforms.passes.whole_vectors import whole_vectors
from tests.fuzz.commands import RECIPES, Command, CommandMaker
from tests.fuzz.floats import ZEROS, State, floating_problem
from tests.fuzz.programs import INDEX_LIMIT, INDICES, Pick, ProgramMaker
from tests.support import difference

PASSES: dict[str, Callable[[Program], Program]] = {
    "canonicalise": canonicalise,
    "tidy": tidy,
    "whole_vectors": whole_vectors,
    "long_sums": partial(long_sums, long=5, part=3),
}
FINISH: tuple[Command, ...] = tuple(
    (name, (), {}) for name in ("tidy", "scalar_replace", "long_sums", "hoist", "whole_vectors")
)
"""What the compiler does after every recipe; sums of few terms are long ones here."""


SECONDS = 30.0
"""Processor time for one comparison over rationals: a recurrence may double the digits with every iteration."""


@dataclass
class Case:
    """A program, the commands tried on it, and their results."""

    program: Program
    commands: list[Command] = field(default_factory=list)
    applied: list[bool] = field(default_factory=list)
    result: Program | None = None
    floats: str = ""
    """How it was compared in floating point, see :func:`tests.fuzz.floats.floating_problem`; and whether fractions were
    too long."""

    def __str__(self) -> str:
        shown = [
            f"{'applied' if done else 'refused'}: {name}{arguments} {options or ''}"
            for (name, arguments, options), done in zip(self.commands, [*self.applied, True], strict=False)
        ]
        shapes = {name: buffer.shape for name, buffer in self.program.buffers.items()}
        result = self.result.text if self.result is not None else "-"
        return f"\nbuffers {shapes}\n{self.program.text}\n\n" + "\n".join(shown) + f"\n\nbecame\n{result}\n"


class Wrong(AssertionError):
    """A command changed the meaning, or broke."""

    def __init__(self, case: Case, what: str):
        super().__init__(f"{what}\n{case}")
        self.case, self.what = case, what


def apply(program: Program, command: Command) -> Program | None:
    """The program after one command or pass; None where it is refused."""
    name, arguments, options = command
    try:
        return PASSES[name](program) if name in PASSES else COMMANDS[name](program, *arguments, **options)
    except (CommandError, LayoutError):
        return None


def contents(program: Program, seed: int = 1) -> dict[str, Any]:
    """Exact random numbers for the buffers; subscripts in the array of subscripts."""
    given = random_arrays(program, seed, "rational")
    if INDICES in given:
        given[INDICES] = given[INDICES] % INDEX_LIMIT
    return given


class _TooLong(Exception):
    """Fractions have too many digits."""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raises after so much processor time."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def compare(before: Program, after: Program) -> str | None:
    """Where two programs differ, or None; also where the first one divides by zero and compares the quotient.

    Raises:
        _TooLong: fractions have too many digits.
    """
    try:
        return difference(before, after, seed=1, given=contents(before))
    except ZeroDivisionError as error:
        problem = f"{error} after the commands"
    try:
        execute(before, contents(before), arithmetic="rational")
    except ZeroDivisionError:
        return None
    return problem


def problem_of(program: Program, commands: Sequence[Command], seed: int = 0) -> tuple[str | None, Program]:
    """What is wrong with a program after commands, each applied where it is not refused, and that program.

    The first word is ``differs`` (over rationals), ``floats`` (in floating point), or the kind of an exception.

    Args:
        seed: of the floating-point data.
    """
    after = program
    states = [("", program)]
    try:
        for command in commands:
            after = apply(after, command) or after
            states.append((_name(command), after))
        return _problem(states, seed)[0], after
    except Exception as error:
        return _told(error), after


def _problem(states: Sequence[State], seed: int) -> tuple[str | None, str]:
    """What is wrong by one oracle or the other, and how the second one compared."""
    try:
        with _limited(SECONDS):
            found = compare(states[0][1], states[-1][1])
    except _TooLong:
        found, short = None, ", fractions too long"
    else:
        short = ""
    if found is not None:
        return f"differs: {found}", ""
    found, how = floating_problem(states, seed)
    return found and f"floats: {found}", how + short


def make_case(pick: Pick[Any], commands: int, finish: bool, seed: int = 0) -> Case:
    """One random case, the result compared with the program at the start.

    Args:
        seed: of the floating-point data.

    Raises:
        Wrong: it computes something else, or a command broke.
    """
    recipe = pick(RECIPES)
    case = Case(ProgramMaker(pick).program(CommandMaker.shape(recipe)))
    validate(case.program)
    program = case.program
    states = [("", program)]
    try:
        for number in range(commands + (len(FINISH) if finish else 0)):
            if number < commands:
                command = CommandMaker(program, pick).make(recipe[number] if number < len(recipe) else None)
            else:
                command = FINISH[number - commands]
            case.commands.append(command)
            after = apply(program, command)
            case.applied.append(after is not None)
            if after is not None:
                case.result = program = after
                states.append((_name(command), after))
        found, case.floats = _problem(states, seed)
    except Exception as error:
        raise Wrong(case, _told(error)) from error
    if found is not None:
        raise Wrong(case, found)
    return case


def _name(command: Command) -> str:
    """The command's name, for :data:`tests.fuzz.floats.ASSUME_FINITE`."""
    return command[0] + (ZEROS if command[2].get("zeros") else "")


def _told(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} at {frame.name}, line {frame.lineno}"


def random_pick(seed: int) -> Pick[Any]:
    """Choices of a plain generator."""
    generator = random.Random(seed)

    def pick(choices: Sequence[Any]) -> Any:
        return choices[generator.randrange(len(choices))]

    return pick
