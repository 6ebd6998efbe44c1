"""The compiler as one table: from the programs of an ensemble to C++, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from swirl.alone import alone
from swirl.codegen.emit import KernelSource, emit
from swirl.codegen.physical import physical
from swirl.errors import Declined
from swirl.ir.nest import Program
from swirl.ir.validate import validate
from swirl.memo import Memo
from swirl.phases import INFERENCE
from swirl.plan_layouts import finished
from swirl.plan_state import PlanState, lone_region, resolve
from swirl.recipe import Recipe, Schedule
from swirl.recorded import Outcome
from swirl.target import Target, get_target
from swirl.transforms.passes.canonical import canonicalise
from swirl.transforms.passes.hoist import hoist
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from swirl.transforms.passes.whole_vectors import whole_vectors
from swirl.transforms.rewrites.joined_programs import Part, join

BEFORE_RECIPE: tuple[tuple[str, Callable[[Program], Program]], ...] = (("canonical", canonicalise),)
AFTER_RECIPE: tuple[tuple[str, Callable[[Program], Program]], ...] = (
    ("tidy", tidy),
    ("scalars", scalar_replace),
    ("hoist", hoist),
    ("vectors", whole_vectors),
    ("physical", physical),
)


@dataclass(frozen=True)
class Stage:
    """A program after one stage of the compiler.

    Args:
        name: of the stage; a command of a recipe is a stage of its own, named after the command.
        program: what came out.
        seconds: what the stage took; ``recipe``, after the last command, has the sum of the commands.
        command: the command as it was written.
    """

    name: str
    program: Program
    seconds: float
    command: str = ""


@dataclass(frozen=True)
class Scheduled:
    """A region after its recipe.

    Args:
        state: of the plan.
        stages: phase → programs after each stage.
        outcomes: of the recipe's commands.
        files: that they came from.
    """

    state: PlanState
    stages: Mapping[str, tuple[Stage, ...]]
    outcomes: tuple[Outcome, ...] = ()
    files: tuple[Path, ...] = ()


@alone
def schedule(
    state: PlanState,
    region: str,
    recipe: Recipe | None,
    target: Target,
    memo: Memo | None = None,
    *,
    before: Mapping[str, tuple[Stage, ...]] | None = None,
    recipes: Callable[[str], Recipe | None] = lambda kind: None,
) -> Scheduled | Declined:
    """Apply a recipe to a region of a plan, or say which phase the recipe declines, and why.

    Args:
        state: of the plan; the region's programs are canonical, except for layouts that others have chosen.
        region: name of the region.
        recipe: None leaves the programs as they are: correct, and not tuned.
        target: what code is made for.
        memo: where results of commands are kept; by default all is computed.
        before: phase → stages that have led to the programs.
        recipes: finds the recipe of a kind of layer, for a chain's recipe.

    Raises:
        CommandError, Refused, RecipeError, LayoutError: see :class:`swirl.recipe.Schedule`.
    """
    own = state.regions[region]
    stages = {phase: list((before or {}).get(phase, ())) for phase in own.phases}
    for phase, nests in own.phases.items():
        if nests.program.commands:
            stages[phase].append(Stage("layouts", resolve(state, region, phase), 0.0))
    if recipe is not None:
        state = state.with_region(replace(own, follows=INFERENCE not in recipe.functions))
    start = perf_counter()
    commands = Schedule(state, region, target, memo, recipes)
    try:
        if recipe is not None:
            recipe.apply(commands)
    except Declined as declined:
        return declined
    seconds = (perf_counter() - start) / max(1, len(stages))
    for traced in commands.trace:
        stages[traced.phase].append(Stage(traced.command.name, traced.program, 0.0, traced.command.text))
    state = commands.state
    for phase, nests in state.regions[region].phases.items():
        if recipe is not None or nests.copies:
            stages[phase].append(Stage("recipe", finished(state, region, phase, target.simd_width), seconds))
    left = {phase: tuple(stages[phase]) for phase in state.regions[region].phases}
    read = [recipe] if recipe is not None else []
    files = dict.fromkeys(used.path for used in (*read, *commands.composed) if used.path is not None)
    return Scheduled(state, left, tuple(commands.outcomes), tuple(files))


def schedule_alone(
    programs: Mapping[str, Program],
    recipe: Recipe | None,
    target: Target,
    lays_out: str | Sequence[str] = "",
    memo: Memo | None = None,
) -> Scheduled:
    """Validate and canonicalise programs that belong to no net, and apply a recipe.

    Args:
        programs: phase → program as lowered or derived.
        recipe: see :func:`schedule`.
        target: what code is made for.
        lays_out: prefixes of the storage names whose layout the recipe chooses.
        memo: where results of passes and commands are kept.

    Raises:
        CommandError, Refused, RecipeError, LayoutError: see :class:`swirl.recipe.Schedule`.
        Declined: the recipe declines a phase, which nobody else schedules here.
    """
    before = {phase: canonical_stages(program, memo) for phase, program in programs.items()}
    state, region = lone_region({phase: stages[-1].program for phase, stages in before.items()}, lays_out)
    done = schedule(state, region, recipe, target, memo, before=before)
    if isinstance(done, Declined):
        raise done
    return done


def canonical_stages(program: Program, memo: Memo | None = None) -> tuple[Stage, ...]:
    """The stages of a program as it was lowered or derived, and as a recipe gets it."""
    stages = [Stage("lowered", validate(program), 0.0)]
    for name, rewrite in BEFORE_RECIPE:
        stages.append(_stage(name, rewrite, stages[-1].program, memo or Memo()))
    return tuple(stages)


def together(name: str, parts: Sequence[Part], names: Mapping[str, str], memo: Memo | None = None) -> Program:
    """The programs of neighbouring layers, each canonical, as one; see
    :func:`swirl.transforms.rewrites.joined_programs.join`."""
    canonical = [replace(part, program=canonical_stages(part.program, memo)[-1].program) for part in parts]
    return join(name, canonical, names)


@alone
def finish(stages: tuple[Stage, ...], memo: Memo | None = None) -> tuple[Stage, ...]:
    """The stages after the recipe: scalars, hoisting, layouts made physical."""
    result = list(stages)
    for name, rewrite in AFTER_RECIPE:
        result.append(_stage(name, rewrite, result[-1].program, memo or Memo()))
    return tuple(result)


def _stage(name: str, rewrite: Callable[[Program], Program], program: Program, memo: Memo) -> Stage:
    start = perf_counter()
    return Stage(name, memo.program(rewrite, program), perf_counter() - start)


@alone
def generate(
    stages: tuple[Stage, ...], target: Target, *, contract: bool = True, memo: Memo | None = None
) -> KernelSource:
    """The C++ of a finished program."""
    return (memo or Memo()).value(_emitted, stages[-1].program, (target.name, contract), {}, asdict, _source)


def _emitted(program: Program, target: str, contract: bool) -> KernelSource:
    return emit(program, get_target(target), contract=contract)


def _source(value: Mapping[str, Any]) -> KernelSource:
    return KernelSource(value["name"], value["source"], tuple(value["buffers"]))
