"""Inference's own schedule: it follows forward where each of forward's commands applies to it, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from swirl.errors import LatteError
from swirl.ir.phases import INFERENCE
from swirl.schedule.layer_recipes import Building
from swirl.schedule.plan_state import Region
from swirl.schedule.recipe import DEFAULT_SCHEDULE, Recipe, Schedule
from swirl.target.targets import Target


def scheduled_anew(s: Schedule, recipe: Recipe, before: Region) -> str:
    """Schedule inference by itself where it could not follow forward: by the recipe's function for forward, or else by
    the default schedule, if there is one. The layouts stay as forward has chosen them.

    Args:
        s: the region after its recipe; the commands for inference take the place of those that it has followed.
        recipe: of the region.
        before: the region before its recipe.

    Returns:
        why it is the default schedule although there is a recipe, or "".
    """
    if s.unfollowed is None or INFERENCE not in s.programs:
        return ""
    own = recipe.functions.get("forward")
    ways: list[Callable[[Schedule, Target], None]] = [] if own is None else [own]
    if s.has_default:
        ways.append(lambda trial, target: trial.default(INFERENCE))
    reasons = [s.unfollowed]
    for way in ways:
        region = replace(before, phases={INFERENCE: before.phases[INFERENCE]}, follows=False, keeps_layouts=True)
        trial = s.begun_again(region, Building(instead={"forward": INFERENCE}))
        try:
            with trial.with_choices(recipe.choices):
                way(trial, s.target)
        except LatteError as error:
            reasons.append(error.message)
            continue
        s.accept_phase(INFERENCE, trial)
        return "" if way is own or recipe.name == DEFAULT_SCHEDULE else reasons[-1]
    return ""
