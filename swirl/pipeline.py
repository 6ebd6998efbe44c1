"""The compiler as one table: from the programs of an ensemble to C++, stage by stage."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from pathlib import Path
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

from swirl.codegen.emit import KernelSource, emit
from swirl.codegen.physical import physical
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program
from swirl.ir.validate import validate
from swirl.memo import Memo
from swirl.questions import INFERENCE
from swirl.recipe import Chained, Recipe, Schedule
from swirl.recorded import Outcome
from swirl.target import Target, get_target
from swirl.transforms.passes.canonical import canonicalise
from swirl.transforms.passes.hoist import hoist
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from swirl.transforms.passes.whole_vectors import whole_vectors
from swirl.transforms.relayout import Reorder
from swirl.transforms.rewrites.joined_programs import Part, join

P = ParamSpec("P")
R = TypeVar("R")

BEFORE_RECIPE: tuple[tuple[str, Callable[[Program], Program]], ...] = (("canonical", canonicalise),)
AFTER_RECIPE: tuple[tuple[str, Callable[[Program], Program]], ...] = (
    ("tidy", tidy),
    ("scalars", scalar_replace),
    ("hoist", hoist),
    ("vectors", whole_vectors),
    ("physical", physical),
)


def uncollected(function: Callable[P, R]) -> Callable[P, R]:
    """Without Python's garbage collector, which looks through all trees again and again: a third of the time. What is
    dropped meanwhile is freed at once, but for the little that refers to itself."""

    @wraps(function)
    def run(*arguments: P.args, **options: P.kwargs) -> R:
        collects = gc.isenabled()
        gc.disable()
        try:
            return function(*arguments, **options)
        finally:
            if collects:
                gc.enable()

    return run


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
    """The programs of one ensemble after the recipe, what became of its commands, and the files they came from."""

    stages: Mapping[str, tuple[Stage, ...]]
    outcomes: tuple[Outcome, ...]
    files: tuple[Path, ...] = ()
    apart: Mapping[str, Program] = field(default_factory=dict)
    """Programs of a chain's layers that are not joined, as the layouts have made them, by their names."""
    reorders: tuple[tuple[str, Reorder], ...] = ()
    """What those will copy: the program's name, and the copy."""
    untouched: Mapping[str, Buffer] = field(default_factory=dict)
    """Storage that has been laid out, but that no program touches any more."""


@uncollected
def schedule(
    programs: Mapping[str, Program],
    recipe: Recipe | None,
    target: Target,
    owned: str | Sequence[str] = "",
    memo: Memo | None = None,
    *,
    chained: Chained | None = None,
    laid_out: Mapping[str, Program] | None = None,
    elsewhere: Mapping[str, Buffer] | None = None,
    reorders: Sequence[tuple[str, Reorder]] = (),
) -> Scheduled:
    """Validate and canonicalise the programs of one ensemble, and apply its recipe.

    Args:
        programs: phase → program as lowered or derived.
        recipe: None leaves the canonical program: correct, and not tuned.
        target: what code is made for.
        owned: prefixes of the storage names whose layout is for the ensemble to choose.
        memo: where results of passes and commands are kept; by default all is computed.
        chained: of a chain, whose programs are joined of canonical ones.
        laid_out: canonical programs to which layouts have been applied already, by their names.
        elsewhere: buffers of the ensemble in phases that are scheduled with another one's, by its names for them.
        reorders: a program's name, and what is copied there: of those that are laid out.

    Raises:
        CommandError, Refused, RecipeError, LayoutError: see :class:`swirl.recipe.Schedule`.
    """
    memo = memo or Memo()
    stages: dict[str, list[Stage]] = {}
    for phase, program in programs.items():
        stages[phase] = [Stage("lowered", validate(program), 0.0)]
        for name, rewrite in BEFORE_RECIPE if chained is None else ():
            stages[phase].append(_stage(name, rewrite, stages[phase][-1].program, memo))
        if laid_out is not None and program.name in laid_out:
            stages[phase].append(Stage("layouts", laid_out[program.name], 0.0))
    copies = [(phase, reorder) for phase, p in programs.items() for name, reorder in reorders if name == p.name]
    if recipe is None and not copies:
        return Scheduled({phase: tuple(found) for phase, found in stages.items()}, ())
    recipe = recipe or Recipe("none", {})
    start = perf_counter()
    separate = INFERENCE in recipe.functions
    given = {phase: found[-1].program for phase, found in stages.items()}
    commands = Schedule(given, target, owned, memo, chained=chained, elsewhere=elsewhere,
                        reorders=copies, separate=separate)  # fmt: skip
    recipe.apply(commands)
    finished = commands.finished()
    seconds = (perf_counter() - start) / max(1, len(stages))
    for traced in commands.trace:
        stages[traced.phase].append(Stage(traced.command.name, traced.program, 0.0, traced.command.text))
    for phase, program in finished.items():
        stages[phase].append(Stage("recipe", program, seconds))
    left = {phase: tuple(found) for phase, found in stages.items() if phase in commands.programs}
    files = dict.fromkeys(read.path for read in (recipe, *commands.composed) if read.path is not None)
    reordered = tuple(entry for entry in commands.reorders if entry[0] in commands.apart)
    return Scheduled(left, tuple(commands.outcomes), tuple(files), commands.apart, reordered, commands.untouched)


def together(name: str, parts: Sequence[Part], names: Mapping[str, str], memo: Memo | None = None) -> Program:
    """The programs of neighbouring layers, each canonical, as one; see
    :func:`swirl.transforms.rewrites.joined_programs.join`."""
    return join(name, [replace(part, program=canonical(part.program, memo)) for part in parts], names)


def canonical(program: Program, memo: Memo | None = None) -> Program:
    """The program as a recipe gets it."""
    program = validate(program)
    for _, rewrite in BEFORE_RECIPE:
        program = (memo or Memo()).program(rewrite, program)
    return program


@uncollected
def finish(stages: tuple[Stage, ...], memo: Memo | None = None) -> tuple[Stage, ...]:
    """The stages behind the recipe: scalars, hoisting, layouts made physical."""
    result = list(stages)
    for name, rewrite in AFTER_RECIPE:
        result.append(_stage(name, rewrite, result[-1].program, memo or Memo()))
    return tuple(result)


def _stage(name: str, rewrite: Callable[[Program], Program], program: Program, memo: Memo) -> Stage:
    start = perf_counter()
    return Stage(name, memo.program(rewrite, program), perf_counter() - start)


@uncollected
def generate(
    stages: tuple[Stage, ...], target: Target, *, contract: bool = True, memo: Memo | None = None
) -> KernelSource:
    """The C++ of a finished program."""
    return (memo or Memo()).value(_emitted, stages[-1].program, (target.name, contract), {}, asdict, _source)


def _emitted(program: Program, target: str, contract: bool) -> KernelSource:
    return emit(program, get_target(target), contract=contract)


def _source(value: Mapping[str, Any]) -> KernelSource:
    return KernelSource(value["name"], value["source"], tuple(value["buffers"]))
