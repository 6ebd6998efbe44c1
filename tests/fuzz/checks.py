"""What must hold for every program and every sequence of commands: refused, or the same results."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from swirl.errors import CommandError, LayoutError
from swirl.ir.nest import Program
from swirl.ir.validate import validate
from swirl.transforms import COMMANDS
from swirl.transforms.canonical import canonicalise
from swirl.transforms.hoist import hoist
from swirl.transforms.scalars import scalar_replace
from swirl.transforms.tidy import tidy
from tests.fuzz.programs import Command, Pick, ProgramMaker, make_command
from tests.support import difference

PASSES: dict[str, Callable[[Program], Program]] = {"canonicalise": canonicalise, "tidy": tidy}


@dataclass
class Case:
    """A program, the commands tried on it, and what they made of it."""

    program: Program
    commands: list[Command] = field(default_factory=list)
    applied: list[bool] = field(default_factory=list)
    result: Program | None = None

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
        self.case = case


def apply(program: Program, command: Command) -> Program | None:
    """The program after one command or pass; None where it is refused."""
    name, arguments, options = command
    try:
        return PASSES[name](program) if name in PASSES else COMMANDS[name](program, *arguments, **options)
    except (CommandError, LayoutError):
        return None


def make_case(pick: Pick[Any], commands: int, finish: bool) -> Case:
    """One random case, every step compared with the program at the start."""
    case = Case(ProgramMaker(pick).program())
    validate(case.program)
    program = case.program
    try:
        for _ in range(commands):
            command = make_command(program, pick)
            case.commands.append(command)
            after = apply(program, command)
            case.applied.append(after is not None)
            if after is not None:
                case.result = program = after
        if finish:
            for name, rewrite in (("tidy", tidy), ("scalar_replace", scalar_replace), ("hoist", hoist)):
                case.commands.append((name, (), {}))
                case.result = program = rewrite(program)
                case.applied.append(True)
        found = difference(case.program, program, seed=1)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        raise Wrong(
            case, f"{type(error).__name__}: {error} at {frames[-1].name}, line {frames[-1].lineno}"
        ) from error
    if found is not None:
        raise Wrong(case, found)
    return case


def random_pick(seed: int) -> Pick[Any]:
    """Choices of a plain generator."""
    generator = random.Random(seed)

    def pick(choices: Sequence[Any]) -> Any:
        return choices[generator.randrange(len(choices))]

    return pick
