"""Schedules around a known one: its commands with other sizes, in another order, on other loops, or without some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from swirl.errors import LatteError
from swirl.ir.nest import Program
from swirl.ir.phases import PHASE_ALIASES
from swirl.schedule.command_log import Outcome, Recorded
from swirl.schedule.memo import Memo
from swirl.schedule.pipeline import finished_program
from swirl.schedule.plan_layouts import finished
from swirl.schedule.recipe import Schedule
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from swirl.transforms.rewrites.sites import loop_names

SIZED = ("tile_loop", "unroll", "unroll_and_jam")
"""Commands with a size."""
LEFT_OUT = (*SIZED, "pack", "parallelize", "prefetch", "privatize", "reorder", "vectorize")
"""Commands without which the others often make sense."""
MOST_CHANGES = 3
TRIES = 40
"""Draws for each candidate that is asked for: many are refused, or end in a program that is known."""


@dataclass(frozen=True)
class Subject:
    """A phase of a layer, or of layers that are compiled together, before any command.

    Args:
        program: of the phase, canonical.
        phase: its name.
        lays_out: prefixes of the storage that its commands may lay out.
        target: what code is made for.
    """

    program: Program
    phase: str
    lays_out: tuple[str, ...]
    target: Target

    def after(self, commands: Sequence[Recorded], memo: Memo | None = None) -> Candidate:
        """What is left of commands, of which those that are refused are left out."""
        memo = memo or Memo()
        schedule = Schedule.alone({self.phase: self.program}, self.target, self.lays_out, memo)
        applied = []
        for command in commands:
            try:
                schedule.apply(command)
            except LatteError:
                continue
            applied.append(command)
        region = next(iter(schedule.state.regions))
        made = finished(schedule.state, region, self.phase, self.target.simd_width)
        return Candidate(tuple(applied), made, finished_program(made, memo))


@dataclass(frozen=True)
class Candidate:
    """A schedule of a phase.

    Args:
        commands: that are applied.
        scheduled: the program after them.
        program: the same after all passes.
    """

    commands: tuple[Recorded, ...]
    scheduled: Program
    program: Program


def commands_for(phase: str, outcomes: Sequence[Outcome]) -> tuple[Recorded, ...]:
    """The commands for a phase, and those on layouts, among what a recipe has applied."""
    applied = (outcome.command for outcome in outcomes if outcome.status == "applied")
    return tuple(each for each in applied if PHASE_ALIASES.get(each.phase or phase, each.phase or phase) == phase)


def around(subject: Subject, commands: Sequence[Recorded], count: int, seed: int) -> list[Candidate]:
    """A schedule, and at most ``count`` others, each after one to three changes; no two have the same program.

    Args:
        subject: what is scheduled.
        commands: of the known schedule.
        count: of others.
        seed: of the draws.
    """
    random, memo = Random(seed), Memo()
    found = [subject.after(commands, memo)]
    known = {found[0].program.text}
    for _ in range(count * TRIES):
        if len(found) > count:
            break
        changed = list(found[0].commands)
        for _ in range(random.randint(1, MOST_CHANGES)):
            changed = random.choice(CHANGES)(changed, subject, random)
        made = subject.after(changed, memo)
        if made.program.text not in known:
            known.add(made.program.text)
            found.append(made)
    return found


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
