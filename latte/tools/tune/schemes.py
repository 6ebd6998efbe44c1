"""``latte tune --method ttile``: phases whose space is that of TTiLE's schemes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from latte.tools.tune.session import Machine
from latte.tools.tune.subjects import Tunable
from swirl.build.cache import cache_folder
from swirl.errors import CommandError
from swirl.tune.spaces import Several, Space
from swirl.tune.ttile.metric import caches_of
from swirl.tune.ttile.microkernels import load_table
from swirl.tune.ttile.space import Schemes

TTILE = "ttile"
"""The method's name."""
ITS_SEARCH, OTHERWISE = "random", "regression"
"""Searches of phases with a contraction, and of others."""


def with_schemes(tunable: Tunable, machine: Machine, folder: Path) -> tuple[Tunable, str]:
    """A phase with the space of its schemes, and why it has none: it is then searched as by default.

    Where layers are computed in the same loops, there are two spaces: in the other one each has loops of its own.

    Args:
        tunable: the phase.
        machine: that it is for.
        folder: which may have the table of micro-kernels; else that of the cache folder, or the one that ships.

    Raises:
        LatteError: the table of micro-kernels is damaged.
    """
    table = load_table(machine.target, machine.name, (folder, cache_folder()))
    caches = caches_of(machine.target, machine.rates, machine.level3_bytes)
    known = tunable.known.commands
    apart = tuple(command for command in known if command.name != "fuse_layers")
    spaces: list[Space] = []
    why = ""
    for commands in (known, apart) if apart != known else (known,):
        try:
            spaces.append(Schemes(tunable.subject, commands, tuple(table.kept), machine.threads, caches))
        except CommandError as error:
            why = why or error.message
    if not spaces:
        return replace(tunable, searched_by=OTHERWISE), f"{tunable.name} has no schemes: {why}; searched by {OTHERWISE}"
    return replace(tunable, space=spaces[0] if len(spaces) == 1 else Several(spaces), searched_by=ITS_SEARCH), ""
