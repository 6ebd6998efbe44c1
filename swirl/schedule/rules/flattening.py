"""Directly nested loops over contiguous memory become one."""

from __future__ import annotations

from math import prod

from swirl.analysis.loop_facts import perfect_chains
from swirl.schedule.rules.trials import Trials

COUNTED = 2**31
"""Iterations of one loop must be fewer: loops count in 32 bits."""


def flatten(trials: Trials) -> None:
    """Directly nested loops over contiguous memory become one.

    rewrite:
        for y in range(7):                        for yx in range(49):
            for x in range(7):              →         b[yx] = 2.0 * a[yx]
                b[y, x] = 2.0 * a[y, x]

    Hardware: lanes of a short row leave the rest of a vector empty at the end of each; those of a long one at its end.
    """
    tried: set[tuple[str, ...]] = set()
    for nest in trials.program.nests:
        for chain in perfect_chains(nest):
            for start in range(len(chain) - 1):
                part = chain[start:]
                names = tuple(loop.var for loop in part)
                if names in tried or prod(loop.extent or COUNTED for loop in part) >= COUNTED:
                    continue
                tried.add(names)
                if trials.apply("they run over contiguous memory", "flatten", list(names)):
                    break
