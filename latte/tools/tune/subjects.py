"""What of a net can be tuned: the phases of its layers and chains, each as its recipe finds it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from latte.autodiff.differentiated import differentiate
from latte.frontend.lowered import lower_layers
from latte.net import Net
from latte.planning.plan import ScheduledUnit, make_plan
from latte.planning.recipes import named_by_net
from latte.planning.units import Unit
from swirl.analysis.work import Work, program_work
from swirl.errors import CommandError, LatteError, nearest
from swirl.ir.phases import INFERENCE, PHASE_ALIASES
from swirl.schedule.kept_schedules import KeptSchedules
from swirl.schedule.memo import Memo, Memos
from swirl.schedule.pipeline import finished_program, state_before
from swirl.schedule.plan_layouts import finished
from swirl.schedule.plan_state import PlanState
from swirl.schedule.rules.schedule import FOR_RECIPES
from swirl.target.targets import Target
from swirl.transforms import LAYOUT_COMMANDS
from swirl.tune.candidates import Candidate, Subject, own_commands
from swirl.tune.log import subject_key
from swirl.tune.spaces import Around, Chosen, Decided, Point, Several, Space


@dataclass(frozen=True)
class Tunable:
    """A phase of a layer, or of a chain.

    Args:
        unit: what is compiled together.
        phase: of it.
        subject: the phase, to be scheduled.
        known: the schedule that it has.
        space: of schedules.
        default: that by the default schedule with the layouts that the phase has, where the known one is another.
        key: see :func:`swirl.tune.log.subject_key`.
        work: operations and bytes.
        alike: names of the units of these kinds that have the same phase: what is found is theirs, too.
        searched_by: the search, where it does not follow from the method alone; see
            :data:`swirl.tune.methods.METHODS`.
        together: where layouts are chosen: the phases whose times are added up.
        lays_out: whether layouts that were searched are chosen by its commands. They are for these sizes alone.
    """

    unit: Unit
    phase: str
    subject: Subject
    known: Candidate
    space: Space
    default: Point | None
    key: str
    work: Work
    alike: list[str] = field(default_factory=list)
    searched_by: str = ""
    together: Together | None = None
    lays_out: bool = False

    @property
    def name(self) -> str:
        """``conv1_relu1 forward``, or ``conv1_relu1 layouts``."""
        return self.phase_name if self.together is None else f"{self.unit.name} layouts"

    @property
    def phase_name(self) -> str:
        """``conv1_relu1 forward``, also where layouts are chosen."""
        return f"{self.unit.name} {self.phase}"

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of the layers."""
        return tuple(member.kind for member in self.unit.members)


@dataclass(frozen=True)
class Together:
    """Phases that a choice of layouts is for.

    Args:
        phases: as they are now; the first one's commands choose.
        after: a schedule of the first one → the phases as they are then. Raises :class:`LatteError` where there are
            others.
    """

    phases: tuple[Tunable, ...]
    after: Callable[[Candidate], list[Tunable]]


@dataclass(frozen=True)
class Left:
    """A phase that cannot be tuned by itself, and why."""

    name: str
    reason: str


def tunables(
    net: Net, target: Target, threads: int, layers: Collection[str] = (), phases: Collection[str] = ()
) -> tuple[list[Tunable], list[Left]]:
    """The phases of a net that have a schedule, those that are equal once, in the order of execution.

    Args:
        net: declared; it need not be compiled.
        target: what code is made for.
        threads: that run it.
        layers: names of layers or chains; all by default.
        phases: all by default; inference follows forward.

    Raises:
        CommandError: there is no such layer or phase, or it has commands of its own.
        LatteError: the net cannot be compiled.
    """
    wanted = [PHASE_ALIASES.get(phase, phase) for phase in phases]
    graph = net.graph
    found: dict[tuple[str, tuple[str, ...]], Tunable] = {}
    left: list[Left] = []
    with Memos() as memos, KeptSchedules(memos, target) as kept:
        plan = make_plan(graph, differentiate(graph, lower_layers(graph, net.batch_size)), kept)
        _check(plan.scheduled, layers, wanted)
        before = PlanState()
        for item in plan.scheduled:
            names = {item.unit.name, *(member.name for member in item.unit.members)}
            if (not layers or names & set(layers)) and item.result.stages:
                state = state_before(item.unit.region, before, Memo())
                for phase in item.result.stages:
                    if phase == INFERENCE or (wanted and phase not in wanted):
                        continue
                    if named_by_net(graph, item.unit.members):
                        reason = "net.use_recipe names its recipe, which counts more than those of folders"
                        left.append(Left(f"{item.unit.name} {phase}", reason))
                        continue
                    made = _tunable(item, phase, state, target, threads)
                    if isinstance(made, Left):
                        left.append(made)
                    else:
                        found.setdefault((made.key, made.kinds), made).alike.append(item.unit.name)
            before = item.state
    return list(found.values()), left


def _check(scheduled: Sequence[ScheduledUnit], layers: Collection[str], phases: Collection[str]) -> None:
    units = [item.unit for item in scheduled]
    names = {name for unit in units for name in (unit.name, *(member.name for member in unit.members))}
    for layer in layers:
        if layer not in names:
            raise CommandError(
                f"no layer or chain named {layer!r}", way_out=f"{nearest(layer, names)}there are {', '.join(names)}"
            )
        own = [m for unit in units for m in unit.members if m.commands and layer in (m.name, unit.name)]
        if own:
            raise CommandError(
                f"{layer} has commands of its own, which replace those of a file",
                location=own[0].commands[0].location,
                way_out="put them into a recipe file",
            )
    known = {phase for item in scheduled for phase in item.result.stages if phase != INFERENCE}
    for phase in phases:
        if phase not in known:
            why = "; inference follows forward" if phase == INFERENCE else ""
            raise CommandError(f"no phase {phase!r} can be tuned{why}", way_out=f"there are {', '.join(sorted(known))}")


def _tunable(item: ScheduledUnit, phase: str, state: PlanState, target: Target, threads: int) -> Tunable | Left:
    unit, name = item.unit, f"{item.unit.name} {phase}"
    if unit.recipe is None or any(member.commands for member in unit.members):
        return Left(name, "it has no recipe" if unit.recipe is None else "it has commands of its own")
    subject = Subject.of(state, unit.region.name, phase, item.result.outcomes, target)
    commands = own_commands(phase, item.result.outcomes)
    known = subject.after(commands)
    made = finished_program(finished(item.state, unit.name, phase, target.simd_width))
    if known.program.text != made.text:
        return Left(name, "its commands, given again, make another program: a recipe has looked at more than its phase")
    if not made.nests:
        return Left(name, "it computes nothing")
    spaces: list[Space] = [Around(subject, known.commands)]
    recipe = unit.recipe
    if phase in recipe.functions and not unit.joined:
        chosen = Chosen(subject, recipe)
        try:
            if chosen.knobs:
                spaces.append(chosen)
        except LatteError:
            pass  # it builds on other recipes, which are found in a plan alone
    default, layouts = None, [each for each in known.commands if each.name in LAYOUT_COMMANDS]
    try:
        found = subject.by(FOR_RECIPES.functions[phase], layouts)
        if found.layouts == known.layouts:
            default = Point(found, origin="default") if found.key != known.key else None
            decided = Decided(subject, layouts)
            spaces += [decided] if decided.usual else []
    except LatteError:
        pass  # then there is none
    if default is not None:
        spaces.append(Around(subject, default.candidate.commands))
    space = spaces[0] if len(spaces) == 1 else Several(spaces)
    key = subject_key(subject, threads)
    return Tunable(unit, phase, subject, known, space, default, key, program_work(made))
