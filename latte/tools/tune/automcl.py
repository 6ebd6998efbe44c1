"""``latte tune --method automcl``: phases whose space is that of AutoMCL's schedules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from latte.tools.tune.session import Machine
from latte.tools.tune.subjects import Tunable
from swirl.build.cache import cache_folder
from swirl.errors import CommandError
from swirl.tune.automcl.choice import load_choice
from swirl.tune.automcl.roles import Product
from swirl.tune.automcl.search import CONFIGURATIONS
from swirl.tune.automcl.space import Configurations

AUTOMCL = "automcl"
"""The method's name."""
OTHERWISE = "regression"
"""The search of phases without a product or a convolution."""


def with_configurations(tunable: Tunable, machine: Machine, folder: Path) -> tuple[Tunable, str]:
    """A phase with the space of AutoMCL's schedules, and why it has none: it is then searched as by default.

    Of a product, the trained choice of this machine says the schedule, if there is one; else all four candidates are
    in the space.

    Args:
        tunable: the phase.
        machine: that it is for.
        folder: which may have the trained choice; else the cache folder.

    Raises:
        LatteError: the trained choice is damaged.
    """
    try:
        space = Configurations(tunable.subject, tunable.known.commands, machine.threads)
    except CommandError as error:
        why = f"{tunable.name} has no schedules of AutoMCL: {error.message}; searched by {OTHERWISE}"
        return replace(tunable, searched_by=OTHERWISE), why
    choice = load_choice(machine.target, machine.name, machine.threads, (folder, cache_folder()))
    if choice is not None and isinstance(space.own, Product):
        chosen = choice.choose(*space.own.extents)
        if any(each["schedule"] == chosen for each in space.every):
            space = replace(space, schedules=(chosen,))
    return replace(tunable, space=space, searched_by=CONFIGURATIONS), ""
