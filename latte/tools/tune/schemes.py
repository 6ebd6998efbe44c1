"""``latte tune --method ttile`` and ``--method polydl``: phases whose space is one of loops around micro-kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from latte.tools.tune.session import Machine
from latte.tools.tune.subjects import Tunable
from swirl.build.cache import cache_folder
from swirl.errors import CommandError
from swirl.measure.rates import Limits
from swirl.run.runner import Runner
from swirl.schedule.command_log import Recorded
from swirl.tune.polydl.caches import Hierarchy, measured_hierarchy
from swirl.tune.polydl.ranker import load_ranker
from swirl.tune.polydl.variants import Variants
from swirl.tune.searches import RANKED
from swirl.tune.spaces import Several, SeveralRanked, Space
from swirl.tune.ttile.metric import caches_of
from swirl.tune.ttile.microkernels import load_table
from swirl.tune.ttile.space import Schemes

TTILE, POLYDL = "ttile", "polydl"
"""The methods' names."""
OTHERWISE = "regression"
"""The search of phases without a contraction."""


def with_schemes(tunable: Tunable, machine: Machine, folder: Path) -> tuple[Tunable, str]:
    """A phase with the space of its schemes, and why it has none: it is then searched as by default.

    Args:
        tunable: the phase.
        machine: that it is for.
        folder: which may have the table of micro-kernels; else that of the cache folder, or the one that ships.

    Raises:
        LatteError: the table of micro-kernels is damaged.
    """
    table = tuple(load_table(machine.target, machine.name, (folder, cache_folder())).kept)
    caches = caches_of(machine.target, machine.rates, machine.level3_bytes)
    found, why = _spaces(tunable, lambda known: Schemes(tunable.subject, known, table, machine.threads, caches))
    if why:
        return _searched_otherwise(tunable, "schemes", why)
    return replace(tunable, space=found[0] if len(found) == 1 else Several(found), searched_by="random"), ""


def with_variants(
    tunable: Tunable, machine: Machine, hierarchy: Hierarchy, folder: Path, seed: int, top: int
) -> tuple[Tunable, str]:
    """A phase with the space of PolyDL's variants, and why it has none; as :func:`with_schemes`. They are ranked by the
    trained ranker of the target, where there is one, else by equation 1.

    Args:
        tunable: the phase.
        machine: that it is for.
        hierarchy: its caches, with latencies.
        folder: which may have the table of micro-kernels, and the weights of a ranker.
        seed: of the draw of variants.
        top: how many of the ranking are measured; 0 for all.

    Raises:
        LatteError: the table, or the weights, are damaged.
    """
    folders = folder, cache_folder()
    table = tuple(load_table(machine.target, machine.name, folders).kept)
    ranker = load_ranker(machine.target, folders)

    def made(known: tuple[Recorded, ...]) -> Space:
        return Variants(tunable.subject, known, table, machine.threads, hierarchy, ranker, seed=seed, top=top)

    found, why = _spaces(tunable, made)
    if why:
        return _searched_otherwise(tunable, "variants", why)
    return replace(tunable, space=found[0] if len(found) == 1 else SeveralRanked(found, top), searched_by=RANKED), ""


def hierarchy_of(machine: Machine) -> Hierarchy:
    """The caches of this machine with their latencies, which are measured; about a second."""
    limits = Limits(machine.target, Runner(machine.threads))
    return measured_hierarchy(machine.target, limits, machine.rates, machine.level3_bytes)


def _spaces(tunable: Tunable, made: Callable[[tuple[Recorded, ...]], Space]) -> tuple[Sequence[Space], str]:
    """The spaces of a phase, and why it has none. Where layers are computed in the same loops, there are two: in the
    other one each has loops of its own."""
    known = tunable.known.commands
    apart = tuple(command for command in known if command.name != "fuse_layers")
    spaces: list[Space] = []
    why = ""
    for commands in (known, apart) if apart != known else (known,):
        try:
            spaces.append(made(commands))
        except CommandError as error:
            why = why or error.message
    return spaces, "" if spaces else why


def _searched_otherwise(tunable: Tunable, what: str, why: str) -> tuple[Tunable, str]:
    told = f"{tunable.name} has no {what}: {why}; searched by {OTHERWISE}"
    return replace(tunable, searched_by=OTHERWISE), told
