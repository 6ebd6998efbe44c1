"""The default schedule: a recipe for phases that no recipe schedules, written by the rules of :mod:`.order`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from swirl.build.cache import cache_key
from swirl.errors import ChoiceError, CommandError
from swirl.ir.phases import PHASE_ALIASES, PHASES
from swirl.schedule.recipe import DEFAULT_SCHEDULE, Recipe, Schedule
from swirl.schedule.rules.engine import run
from swirl.schedule.rules.order import PHASE
from swirl.schedule.rules.trials import Decision, Trials
from swirl.target.targets import Target

IDENTITY = "default schedule"
"""Its sources are the package's, which everything that is kept depends on."""
NO_CHOICES: Mapping[str, int] = MappingProxyType({})


def default_schedule(
    s: Schedule, target: Target, phase: str, choices: Mapping[str, int] = NO_CHOICES
) -> Sequence[Decision]:
    """Schedule a phase by the rules.

    Args:
        s: what is scheduled.
        target: what code is made for.
        phase: of ``s``.
        choices: the name of a decision → the number of its candidate that is tried before the others. Decisions that
            are not met are left out: another choice may have taken away what they were about.

    Returns:
        the decisions, in the order in which they were met. Those whose candidates were all refused are not told, nor
        those with one candidate.

    Raises:
        CommandError: there is no such phase.
        ChoiceError: a number is none, or negative.
    """
    phase = s.actual_phase(PHASE_ALIASES.get(phase, phase))
    if phase not in s.programs:
        raise CommandError(f"there is no phase {phase!r} here", way_out=f"phases: {', '.join(s.programs)}")
    for name, number in choices.items():
        if not isinstance(number, int) or number < 0:
            raise ChoiceError(f"the candidate of {name} is {number!r}", way_out="candidates are numbered from 0 on")
    trials = Trials(s, target, phase, choices=choices)
    run(PHASE, trials)
    return tuple(trials.decisions)


def with_defaults(recipe: Recipe | None, left: Collection[str] = ()) -> Recipe:
    """A recipe with the default schedule for the phases that it has no function for, or has left; inference follows
    forward."""
    if recipe is None:
        return Recipe(DEFAULT_SCHEDULE, DEFAULTS, identity=IDENTITY, shares=True)
    own = {phase: function for phase, function in recipe.functions.items() if phase not in left}
    identity = identity_with_defaults(recipe.identity, *sorted(left))
    return replace(recipe, functions={**DEFAULTS, **own}, identity=identity)


def identity_with_defaults(*parts: str | None) -> str | None:
    """The identity of a recipe that builds on the default schedule; None where a part of it has none."""
    known = [part for part in parts if part is not None]
    return cache_key(IDENTITY, *known) if len(known) == len(parts) else None


def _default(phase: str, s: Schedule, target: Target) -> None:
    phase = s.actual_phase(phase)
    s.chosen(phase, partial(run, PHASE, Trials(s, target, phase)))


DEFAULTS: Mapping[str, Callable[[Schedule, Target], None]] = {phase: partial(_default, phase) for phase in PHASES}
"""Phase → the default schedule, as a function of a recipe."""
FOR_RECIPES = Recipe(
    DEFAULT_SCHEDULE, {**DEFAULTS, "inference": partial(_default, "inference")}, identity=IDENTITY, shares=True
)
"""For recipes that ask for it, also where inference does not follow forward."""
