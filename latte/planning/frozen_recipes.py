"""Recipes for layers that freezing changes: some phases are gone, others are not those that the recipes were written
for. Commands are checked as ever; where one does not apply, the phase is left to others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from latte.autodiff.differentiated import Differentiated
from latte.model.ensemble import Ensemble
from swirl.errors import LatteError, LeftApart
from swirl.phases import INFERENCE
from swirl.recipe import Recipe, Schedule
from swirl.target import Target


def as_frozen(recipe: Recipe, members: Sequence[Ensemble], of: Differentiated | None) -> Recipe:
    """A recipe for one layer, or for a chain, as far as it is for what is frozen of them.

    Where training runs the inference body of a layer, the commands for inference are those for forward, too; there are
    none for the gradients of that body.

    Args:
        recipe: for these layers.
        members: the layers.
        of: the programs of the net; None where nothing is frozen.
    """
    if of is None or not any(member.name in of.changed for member in members):
        return recipe
    functions = {phase: partial(_or_left, recipe, phase, phase) for phase in recipe.functions}
    if any(member.name in of.frozen.inferring for member in members) and recipe.path is not None:
        inference = functions.get(INFERENCE)
        as_forward = partial(_or_left, recipe, INFERENCE, "forward")
        functions = {} if inference is None else {"forward": as_forward, INFERENCE: inference}
    return replace(recipe, functions=functions)


def _or_left(recipe: Recipe, phase: str, on: str, s: Schedule, target: Target) -> None:
    """Apply the function of a recipe for a phase to the nests of one.

    Raises:
        LeftApart: a command does not apply.
    """
    try:
        s.instead(recipe, phase, on)
    except LeftApart:
        raise
    except LatteError as error:
        reason = f"layers are frozen, and a command does not apply: {error.message.splitlines()[0]}"
        raise LeftApart(reason, phase=on, location=error.location) from error
