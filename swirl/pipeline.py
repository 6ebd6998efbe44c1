"""The compiler as one table: from the programs of an ensemble to C++, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from swirl.codegen.emit import KernelSource, emit
from swirl.codegen.physical import physical
from swirl.ir.nest import Program
from swirl.ir.validate import validate
from swirl.memo import Memo
from swirl.recipe import Outcome, Recipe, Schedule
from swirl.target import Target, get_target
from swirl.transforms.canonical import canonicalise
from swirl.transforms.hoist import hoist
from swirl.transforms.scalars import scalar_replace
from swirl.transforms.tidy import tidy

BEFORE_RECIPE: tuple[tuple[str, Callable[[Program], Program]], ...] = (("canonical", canonicalise),)
AFTER_RECIPE: tuple[tuple[str, Callable[[Program], Program]], ...] = (
    ("tidy", tidy),
    ("scalars", scalar_replace),
    ("hoist", hoist),
    ("physical", physical),
)


@dataclass(frozen=True)
class Stage:
    """A program after one stage of the compiler.

    Args:
        name: of the stage; a command of a recipe is a stage of its own, named after the command.
        program: what came out.
        seconds: what the stage took; ``recipe``, behind the last command, has the sum of the commands.
        command: the command as it was written.
    """

    name: str
    program: Program
    seconds: float
    command: str = ""


@dataclass(frozen=True)
class Scheduled:
    """The programs of one ensemble after the recipe, and what became of its commands."""

    stages: Mapping[str, tuple[Stage, ...]]
    outcomes: tuple[Outcome, ...]


def schedule(
    programs: Mapping[str, Program],
    recipe: Recipe | None,
    target: Target,
    owned: Sequence[str] = ("",),
    memo: Memo | None = None,
) -> Scheduled:
    """Validate and canonicalise the programs of one ensemble, and apply its recipe.

    Args:
        programs: phase → program as lowered or derived.
        recipe: None leaves the canonical program: correct, and not tuned.
        target: what code is made for.
        owned: prefixes of the storage names whose layout is for the ensemble to choose.
        memo: where results of passes and commands are kept; by default all is computed.

    Raises:
        CommandError, Refused, RecipeError, LayoutError: see :class:`swirl.recipe.Schedule`.
    """
    memo = memo or Memo()
    stages: dict[str, list[Stage]] = {}
    for phase, program in programs.items():
        stages[phase] = [Stage("lowered", validate(program), 0.0)]
        for name, rewrite in BEFORE_RECIPE:
            stages[phase].append(_stage(name, rewrite, stages[phase][-1].program, memo))
    if recipe is None:
        return Scheduled({phase: tuple(found) for phase, found in stages.items()}, ())
    start = perf_counter()
    commands = Schedule({phase: found[-1].program for phase, found in stages.items()}, target, owned, memo)
    recipe.apply(commands)
    finished = commands.finished()
    seconds = (perf_counter() - start) / max(1, len(stages))
    for traced in commands.trace:
        stages[traced.phase].append(Stage(traced.command.name, traced.program, 0.0, traced.command.text))
    for phase, program in finished.items():
        stages[phase].append(Stage("recipe", program, seconds))
    return Scheduled({phase: tuple(found) for phase, found in stages.items()}, tuple(commands.outcomes))


def finish(stages: tuple[Stage, ...], memo: Memo | None = None) -> tuple[Stage, ...]:
    """The stages behind the recipe: scalars, hoisting, layouts made physical."""
    result = list(stages)
    for name, rewrite in AFTER_RECIPE:
        result.append(_stage(name, rewrite, result[-1].program, memo or Memo()))
    return tuple(result)


def _stage(name: str, rewrite: Callable[[Program], Program], program: Program, memo: Memo) -> Stage:
    start = perf_counter()
    return Stage(name, memo.program(rewrite, program), perf_counter() - start)


def generate(
    stages: tuple[Stage, ...], target: Target, *, contract: bool = True, memo: Memo | None = None
) -> KernelSource:
    """The C++ of a finished program."""
    return (memo or Memo()).value(_emitted, stages[-1].program, (target.name, contract), {}, asdict, _source)


def _emitted(program: Program, target: str, contract: bool) -> KernelSource:
    return emit(program, get_target(target), contract=contract)


def _source(value: Mapping[str, Any]) -> KernelSource:
    return KernelSource(value["name"], value["source"], tuple(value["buffers"]))
