"""Recipes for layers that freezing changes: some phases are gone, others are not those that the recipes were written
for. Commands are checked as ever; where one does not apply, the phase is left to others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from latte.autodiff.differentiated import Differentiated
from latte.model.ensemble import Ensemble
from swirl.errors import ChoiceError, Declined, LatteError
from swirl.ir.phases import INFERENCE
from swirl.schedule.memo import sources_identity
from swirl.schedule.recipe import Recipe, Schedule
from swirl.schedule.rules.schedule import identity_with_defaults
from swirl.target.targets import Target

PLANNING = sources_identity(Path(__file__).parent)
"""Changes with what is decided here and in default chains; None where the sources are not those imported."""


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
    functions = {phase: OrDeclined(recipe, phase, phase) for phase in recipe.functions}
    if any(member.name in of.frozen.inferring for member in members) and recipe.path is not None:
        inference = functions.get(INFERENCE)
        as_forward = OrDeclined(recipe, INFERENCE, "forward")
        functions = {} if inference is None else {"forward": as_forward, INFERENCE: inference}
    identity = identity_with_defaults(PLANNING, recipe.identity, "frozen", *sorted(functions))
    return replace(recipe, functions=functions, identity=identity)


@dataclass(frozen=True)
class OrDeclined:
    """The function of a recipe for a phase, applied to the nests of one; where a command does not apply, the phase is
    declined.

    Args:
        recipe: that has the function.
        phase: of the function.
        on: whose nests it is applied to.
    """

    recipe: Recipe
    phase: str
    on: str

    def __call__(self, s: Schedule, target: Target) -> None:
        try:
            s.instead(self.recipe, self.phase, self.on)
        except (ChoiceError, Declined):
            raise
        except LatteError as error:
            reason = f"layers are frozen, and a command does not apply: {error.message.splitlines()[0]}"
            raise Declined(reason, phase=self.on, location=error.location) from error
