"""Schedules around a known one: its commands with other sizes, in another order, on other loops, or without some."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from typing import Any

from swirl.errors import LatteError
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.nest import Program
from swirl.ir.phases import INFERENCE, PHASE_ALIASES, PHASES
from swirl.schedule.command_log import Outcome, Recorded
from swirl.schedule.entries import key_of
from swirl.schedule.memo import Memo
from swirl.schedule.pipeline import finished_program
from swirl.schedule.plan_layouts import finished
from swirl.schedule.plan_state import PLAIN, PlanState
from swirl.schedule.recipe import DEFAULT_SCHEDULE, Schedule
from swirl.target.targets import Target
from swirl.transforms import COMMANDS, LAYOUT_COMMANDS
from swirl.transforms.rewrites.sites import loop_names

SIZED = ("tile_loop", "unroll", "unroll_and_jam")
"""Commands with a size."""
LEFT_OUT = (*SIZED, "pack", "parallelize", "prefetch", "privatize", "reorder", "vectorize")
"""Commands without which the others often make sense."""
MOST_CHANGES = 3
ORDER = (*PHASES, INFERENCE)
"""In which the functions of a recipe are applied."""
KEPT = 2000
"""Schedules of a subject that are kept."""
TRIES = 40
"""Draws for each candidate that is asked for: many are refused, or end in a program that is known."""


@dataclass(frozen=True)
class Subject:
    """A phase of a layer, or of layers that are compiled together, as its function of a recipe finds it.

    Args:
        begun: the schedule so far: the recipe's functions for other phases have been applied.
        phase: that is scheduled.
        behind: commands on layouts of the recipe's functions for later phases: they change the loops of this one, too.
        known: the schedules after first commands of candidates: others often begin alike.
    """

    begun: Schedule
    phase: str
    behind: tuple[Recorded, ...] = ()
    known: dict[tuple[str, ...], Schedule] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def alone(cls, program: Program, phase: str, lays_out: Sequence[str], target: Target) -> Subject:
        """A phase that belongs to no net.

        Args:
            program: of the phase, canonical.
            phase: its name.
            lays_out: prefixes of the storage that its commands may lay out.
            target: what code is made for.
        """
        return cls(Schedule.alone({phase: program}, target, lays_out, Memo()), phase)

    @classmethod
    def of(cls, state: PlanState, region: str, phase: str, outcomes: Sequence[Outcome], target: Target) -> Subject:
        """A phase of a region of a net's plan.

        Args:
            state: of the plan; the region has had no commands.
            region: its name.
            phase: its name.
            outcomes: of the region's recipe.
            target: what code is made for.
        """
        own = replace(state.regions[region], follows=False)  # inference follows a recipe, not each candidate
        begun = Schedule(state.with_region(own), region, target, Memo())
        done = [each for each in outcomes if each.status == "applied"]
        before = ORDER[: ORDER.index(phase)]
        for each in done:
            if each.function in before:
                begun.applying = each.function
                applies(begun, each.command)
        begun.applying = phase
        layouts = (each.command for each in done if each.function not in (phase, *before))
        return cls(begun, phase, tuple(each for each in layouts if each.name in LAYOUT_COMMANDS))

    @property
    def target(self) -> Target:
        """What code is made for."""
        return self.begun.target

    @property
    def program(self) -> Program:
        """The phase before its commands."""
        return self.begun.programs[self.phase]

    def after(self, commands: Sequence[Recorded]) -> Candidate:
        """What is left of commands, of which those that are refused are left out."""
        applied: tuple[Recorded, ...] = ()
        path: tuple[str, ...] = ()
        schedule = self.begun
        for command in commands:
            further = (*path, f"{command.text} {command.of}")
            known = self.known.get(further)
            if known is None:
                known = schedule.copy()
                if not applies(known, command):
                    known = schedule  # refused
                if len(self.known) >= KEPT:
                    self.known.clear()
                self.known[further] = known
            if known is not schedule:
                applied, path, schedule = (*applied, command), further, known
        return self._finished(schedule.copy(), applied)

    def by(self, function: Callable[[Schedule, Target], None], layouts: Sequence[Recorded] = ()) -> Candidate:
        """What a function of a recipe makes of it.

        Args:
            function: takes a schedule, and a target.
            layouts: commands that are applied before it; those that are refused are left out.

        Raises:
            LatteError: as the function.
        """
        schedule = self.begun.copy()
        known = len(schedule.outcomes)
        for command in layouts:
            applies(schedule, command)
        function(schedule, self.target)
        made = [each.command for each in schedule.outcomes[known:] if each.status == "applied"]
        return self._finished(schedule, tuple(made))

    def _finished(self, schedule: Schedule, applied: tuple[Recorded, ...]) -> Candidate:
        for command in self.behind:
            applies(schedule, command)
        region = schedule.region
        own = f"{self.program.name}."  # copies that only this phase has
        layouts = {
            name: layout
            for name, layout in schedule.state.layouts.items()
            if layout != PLAIN and not name.startswith(own)
        }
        return Candidate(applied, finished(schedule.state, region, self.phase, self.target.simd_width), layouts)


def applies(schedule: Schedule, command: Recorded) -> bool:
    """Apply a command, unless it is refused; whether it was not."""
    try:
        schedule.apply(replace(command, location=DEFAULT_SCHEDULE))  # nobody wants to know a way out
    except LatteError:
        return False
    return True


@dataclass(frozen=True)
class Candidate:
    """A schedule of a phase.

    Args:
        commands: that are applied.
        scheduled: the program after them.
        layouts: of storage, where they are not plain. The recipe's functions for later phases build on them, also on
            those of storage that this phase does not touch, but not on copies that its commands make for itself.
    """

    commands: tuple[Recorded, ...]
    scheduled: Program
    layouts: Mapping[str, Layout] = field(default_factory=dict)

    @cached_property
    def program(self) -> Program:
        """The program after all passes."""
        return finished_program(self.scheduled)

    def buffer(self, name: str) -> Buffer:
        """A buffer of the program, with its logical shape and its layout: the last pass makes layouts physical, and
        there its shape is that of memory."""
        return self.scheduled.buffers.get(name) or self.program.buffers[name]

    @cached_property
    def key(self) -> str:
        """The same for two candidates exactly if their programs are, whichever commands have led to them."""
        return key_of(replace(self.program, commands=(), remarks=()))


def commands_for(phase: str, outcomes: Sequence[Outcome]) -> tuple[Recorded, ...]:
    """The commands for a phase, and those on layouts, among what a recipe has applied."""
    applied = (outcome.command for outcome in outcomes if outcome.status == "applied")
    return tuple(each for each in applied if PHASE_ALIASES.get(each.phase or phase, each.phase or phase) == phase)


def own_commands(phase: str, outcomes: Sequence[Outcome]) -> tuple[Recorded, ...]:
    """The commands that a recipe's function for a phase has applied."""
    return tuple(each.command for each in outcomes if each.status == "applied" and each.function == phase)


def around(subject: Subject, commands: Sequence[Recorded], count: int, seed: int) -> list[Candidate]:
    """A schedule, and at most ``count`` others, each after one to three changes; no two have the same program.

    Args:
        subject: what is scheduled.
        commands: of the known schedule.
        count: of others.
        seed: of the draws.
    """
    random = Random(seed)
    found = [subject.after(commands)]
    known = {found[0].program.text}
    for _ in range(count * TRIES):
        if len(found) > count:
            break
        made = subject.after(varied(found[0].commands, subject, random))
        if made.program.text not in known:
            known.add(made.program.text)
            found.append(made)
    return found


def varied(commands: Sequence[Recorded], subject: Subject, random: Random) -> list[Recorded]:
    """Commands after one to three changes; some may be refused."""
    changed = list(commands)
    for _ in range(random.randint(1, MOST_CHANGES)):
        changed = random.choice(CHANGES)(changed, subject, random)
    return changed


# --- changes ------------------------------------------------------------------------------------------------
Change = Callable[[list[Recorded], Subject, Random], list[Recorded]]


def _size(commands: list[Recorded], subject: Subject, random: Random) -> list[Recorded]:
    """Another size of a tile, or of a body's copies."""

    def change(command: Recorded) -> Recorded:
        size = _argument(command, "factor")
        if not isinstance(size, int):
            return command
        sizes = {size * 2, size * 4, size // 2, size // 4, size + 1, size - 1, size + 2} - {size, 0, 1, -1}
        return _with(command, factor=random.choice(sorted(sizes)))

    return _one_changed(commands, random, SIZED, change)


def _left_out(commands: list[Recorded], subject: Subject, random: Random) -> list[Recorded]:
    """One command fewer."""
    places = [place for place, each in enumerate(commands) if each.name in LEFT_OUT]
    left = random.choice(places) if places else None
    return [each for place, each in enumerate(commands) if place != left]


def _order(commands: list[Recorded], subject: Subject, random: Random) -> list[Recorded]:
    """Two loops of an order change places."""

    def change(command: Recorded) -> Recorded:
        order = list(_argument(command, "order"))
        first, second = random.sample(range(len(order)), 2) if len(order) > 1 else (0, 0)
        order[first], order[second] = order[second], order[first]
        return _with(command, order=order)

    return _one_changed(commands, random, ("reorder",), change)


def _other_loop(commands: list[Recorded], subject: Subject, random: Random) -> list[Recorded]:
    """Lanes, or threads, along another loop."""

    def change(command: Recorded) -> Recorded:
        loop = random.choice(loop_names(subject.program))
        if command.name == "vectorize" and random.random() < 0.5:
            return _with(command, loop_var=loop, strided="gather")
        return _with(command, loop_var=loop)

    return _one_changed(commands, random, ("vectorize", "parallelize"), change)


def _earlier(commands: list[Recorded], subject: Subject, random: Random) -> list[Recorded]:
    """A command changes places with the one before it."""
    if len(commands) < 2:
        return commands
    place = random.randrange(1, len(commands))
    return [*commands[: place - 1], commands[place], commands[place - 1], *commands[place + 1 :]]


def _argument(command: Recorded, name: str) -> Any:
    """What a command is given for a parameter, by its place or by its name; None where it is given nothing."""
    arguments, options = command.given
    return COMMANDS[command.name].bound(arguments, options).arguments.get(name)


def _with(command: Recorded, **changed: Any) -> Recorded:
    """A command with other arguments."""
    arguments, options = command.given
    bound = COMMANDS[command.name].bound(arguments, options)
    bound.arguments.update(changed)
    kept = tuple((key, value) for key, value in command.options if key == "optional")
    return replace(command, arguments=(command.phase, *bound.args), options=(*bound.kwargs.items(), *kept))


def _one_changed(
    commands: list[Recorded], random: Random, names: Sequence[str], change: Callable[[Recorded], Recorded]
) -> list[Recorded]:
    places = [place for place, each in enumerate(commands) if each.name in names]
    if not places:
        return commands
    place = random.choice(places)
    return [*commands[:place], change(commands[place]), *commands[place + 1 :]]


CHANGES: tuple[Change, ...] = (_size, _size, _left_out, _order, _other_loop, _earlier)
"""What a candidate may differ by; sizes are drawn twice as often."""
