"""The compiler as one table: from the programs of an ensemble to C++, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from typing import Any

from swirl.build.process_lock import alone
from swirl.codegen.emit import KernelSource, emit
from swirl.codegen.physical import physical
from swirl.errors import Declined
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program
from swirl.ir.phases import INFERENCE
from swirl.ir.validate import validate
from swirl.schedule.cautions import with_cautions
from swirl.schedule.choices import Knob
from swirl.schedule.command_log import EntryUse, Outcome
from swirl.schedule.declared import Declared
from swirl.schedule.inference import scheduled_anew
from swirl.schedule.memo import Memo, is_ours
from swirl.schedule.plan_layouts import finished, with_layer_region
from swirl.schedule.plan_state import PlanState, joined_in, lone_region, region_of, resolve, seen_by
from swirl.schedule.recipe import Recipe, Schedule
from swirl.target.targets import Target, get_target
from swirl.transforms import COMMANDS
from swirl.transforms.passes.canonical import canonicalise
from swirl.transforms.passes.hoist import hoist
from swirl.transforms.passes.items import bound_items
from swirl.transforms.passes.long_sums import long_sums
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from swirl.transforms.passes.whole_vectors import whole_vectors
from swirl.transforms.rewrites.joined_programs import Part, join

BEFORE_RECIPE: tuple[tuple[str, Callable[[Program], Program]], ...] = (("canonical", canonicalise),)
AFTER_RECIPE: tuple[tuple[str, Callable[[Program], Program]], ...] = (
    ("tidy", tidy),
    ("scalars", scalar_replace),
    ("sums", long_sums),
    ("hoist", hoist),
    ("vectors", whole_vectors),
    ("items", bound_items),
    ("physical", physical),
)


@dataclass(frozen=True)
class Stage:
    """A program after one stage of the compiler.

    Args:
        name: of the stage; a command of a recipe is a stage of its own, named after the command.
        made: what came out, or makes it when somebody looks.
        seconds: what the stage took; ``recipe``, after the last command, has the sum of the commands.
        command: the command as it was written.
    """

    name: str
    made: Program | Callable[[], Program]
    seconds: float = 0.0
    command: str = ""

    @cached_property
    def program(self) -> Program:
        """What came out."""
        return self.made if isinstance(self.made, Program) else self.made()


@dataclass(frozen=True)
class Scheduled:
    """A region after its recipe.

    Args:
        state: of the plan, as far as the region sees it.
        region: its name.
        stages: phase → programs after each stage.
        outcomes: of the recipe's commands.
        files: that they came from.
        stored: phase → storage → the buffer as it was first, of storage that the recipe has made.
        built_on: kinds of layers whose recipes the recipe of a chain has built on.
        untuned: why inference has the default schedule, though there is a recipe; "" where it has not.
        knobs: the choices that its recipes have asked for.
        entries: of tuned recipes, that were met.
    """

    state: PlanState
    region: str
    stages: Mapping[str, Sequence[Stage]]
    outcomes: Sequence[Outcome] = ()
    files: tuple[Path, ...] = ()
    stored: Mapping[str, Mapping[str, Buffer]] = field(default_factory=dict)
    built_on: tuple[str, ...] = ()
    untuned: str = ""
    knobs: tuple[Knob, ...] = ()
    entries: tuple[EntryUse, ...] = ()


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
        CommandError, Refused, RecipeError, LayoutError: see :class:`swirl.schedule.recipe.Schedule`.
    """
    own = state.regions[region]
    stages = {phase: list((before or {}).get(phase, ())) for phase in own.phases}
    for phase, nests in own.phases.items():
        if nests.program.commands:
            stages[phase].append(Stage("layouts", resolve(state, region, phase)))
    programs = {phase: resolve(state, region, phase) for phase in own.phases}
    if recipe is not None:
        state = state.with_region(replace(own, follows=INFERENCE not in recipe.functions))
    start = perf_counter()
    commands = Schedule(state, region, target, memo, recipes)
    untuned = ""
    try:
        if recipe is not None:
            recipe.apply(commands)
            untuned = scheduled_anew(commands, recipe, own)
    except Declined as declined:
        declined.built_on = tuple(dict.fromkeys(commands.built_on))
        declined.knobs = tuple(commands.knobs.values())
        return declined
    seconds = (perf_counter() - start) / max(1, len(stages))
    known = {phase: {b.name for made in _made(each) for b in made.buffers.values()} for phase, each in stages.items()}
    for phase, nests in own.phases.items():  # what chains have asked for is there already
        known[phase] -= {copy.storage for copy in nests.copies}
    for traced in commands.trace:
        stages[traced.phase].append(Stage(traced.command.name, traced.program, 0.0, traced.command.text))
    state = commands.state
    for phase, nests in state.regions[region].phases.items():
        if recipe is not None or nests.copies:
            stages[phase].append(Stage("recipe", finished(state, region, phase, target.simd_width), seconds))
    left = {phase: tuple(stages[phase]) for phase in state.regions[region].phases}
    read = [recipe] if recipe is not None else []
    files = dict.fromkeys(used.path for used in (*read, *commands.composed) if used.path is not None)
    stored = {phase: _first_seen(made, known[phase]) for phase, made in left.items()}
    asked = tuple(dict.fromkeys(commands.built_on))
    state = replace(state, joined={**state.joined, **joined_in(state, region)})
    knobs, outcomes = tuple(commands.knobs.values()), tuple(commands.outcomes)
    used = tuple(commands.used_entries)
    if recipe is not None:
        outcomes = with_cautions(outcomes, commands.trace, programs, target, recipe.is_questioned)
    return Scheduled(state, region, left, outcomes, tuple(files), stored, asked, untuned, knobs, used)


def _first_seen(stages: Sequence[Stage], known: Collection[str]) -> dict[str, Buffer]:
    """Storage → the buffer in the first stage that has it, of all that is not known."""
    found: dict[str, Buffer] = {}
    for program in _made(stages):
        for record in program.buffers.values():
            if record.name not in known:
                found.setdefault(record.name, record)
    return found


def _made(stages: Sequence[Stage]) -> Iterator[Program]:
    """The programs of stages; of a chain as it was lowered, which nobody has looked at, there is its canonical form."""
    return (stage.made for stage in stages if isinstance(stage.made, Program))


def schedule_declared(
    declared: Declared,
    state: PlanState,
    recipe: Recipe | None,
    target: Target,
    memo: Memo,
    recipes: Callable[[str], Recipe | None],
) -> Scheduled | Declined:
    """Make a region of a plan of programs as they were lowered or derived, and apply a recipe.

    Args:
        declared: the programs.
        state: of the plan, or as much of it as :func:`swirl.schedule.plan_state.seen_by` leaves.
        recipe, target, memo, recipes: see :func:`schedule`.

    Raises:
        CommandError, Refused, RecipeError, LayoutError: see :func:`schedule`.
    """
    stages = declared_stages(declared, memo)
    programs = {phase: made[-1].program for phase, made in stages.items()}
    state, followed = with_layer_region(state, region_of(declared, programs), memo)
    made = schedule(state, declared.name, recipe, target, memo, before=stages, recipes=recipes)
    if isinstance(made, Declined):
        return made
    copies = [Outcome(each.command, "applied", "\n".join((f"by {each.chain}", *each.notes))) for each in followed]
    return replace(made, outcomes=(*copies, *made.outcomes))


def declared_stages(declared: Declared, memo: Memo) -> dict[str, tuple[Stage, ...]]:
    """Phase → the stages of its programs before any recipe; the last one is canonical."""
    stages: dict[str, tuple[Stage, ...]] = {}
    for phase, parts in declared.parts.items():
        if declared.joined:
            name = f"{declared.name}.{phase}"
            lowered = Stage("lowered", partial(join, name, parts, declared.local))
            stages[phase] = (lowered, Stage("canonical", together(name, parts, declared.local, memo)))
        else:
            stages[phase] = canonical_stages(parts[0].program, memo)
    return stages


def state_before(declared: Declared, state: PlanState, memo: Memo) -> PlanState:
    """The state of a plan with a region as its recipe finds it.

    Args:
        declared: the region's programs.
        state: of the plan before it.
        memo: where results are kept.
    """
    programs = {phase: made[-1].program for phase, made in declared_stages(declared, memo).items()}
    return with_layer_region(seen_by(state, declared), region_of(declared, programs), memo)[0]


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
        CommandError, Refused, RecipeError, LayoutError: see :class:`swirl.schedule.recipe.Schedule`.
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
        start = perf_counter()
        program = (memo or Memo()).program(rewrite, stages[-1].program)
        stages.append(Stage(name, program, perf_counter() - start))
    return tuple(stages)


def together(name: str, parts: Sequence[Part], names: Mapping[str, str], memo: Memo | None = None) -> Program:
    """The programs of neighbouring layers, each canonical, as one; see
    :func:`swirl.transforms.rewrites.joined_programs.join`."""
    canonical = [replace(part, program=canonical_stages(part.program, memo)[-1].program) for part in parts]
    return join(name, canonical, names)


@alone
def finish(stages: Sequence[Stage], memo: Memo | None = None) -> tuple[Stage, ...]:
    """The stages after the recipe: scalars, hoisting, layouts made physical. They are made when somebody looks."""
    result, memo = list(stages), memo or Memo()
    for name, rewrite in AFTER_RECIPE:
        result.append(Stage(name, partial(_rewritten, memo, rewrite, result[-1])))
    return tuple(result)


def finished_program(program: Program, memo: Memo | None = None) -> Program:
    """A program after the last of the stages that :func:`finish` adds, without those in between."""
    memo = memo or Memo()
    if not has_replaced_parts():
        return memo.program(_all_after_recipe, program)
    for _, rewrite in AFTER_RECIPE:
        program = memo.program(rewrite, program)
    return program


def has_replaced_parts() -> bool:
    """Whether a pass or a command is not this package's: what it makes is not kept under the names of those."""
    passes = [rewrite for _, rewrite in (*BEFORE_RECIPE, *AFTER_RECIPE)]
    return not all(map(is_ours, (*passes, *COMMANDS.values())))


def _all_after_recipe(program: Program) -> Program:
    for _, rewrite in AFTER_RECIPE:
        program = rewrite(program)
    return program


def _rewritten(memo: Memo, rewrite: Callable[[Program], Program], before: Stage) -> Program:
    return memo.program(rewrite, before.program)


@alone
def generate(program: Program, target: Target, *, contract: bool = True, memo: Memo | None = None) -> KernelSource:
    """The C++ of a finished program."""
    return (memo or Memo()).value(_emitted, program, (target.name, contract), {}, asdict, _source)


def _emitted(program: Program, target: str, contract: bool) -> KernelSource:
    return emit(program, get_target(target), contract=contract)


def _source(value: Mapping[str, Any]) -> KernelSource:
    return KernelSource(value["name"], value["source"], tuple(value["buffers"]), work=value["work"])
