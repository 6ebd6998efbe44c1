"""Which cache serves a data reuse, and what that costs: algorithm 2 and equation 1 of PolyDL (section 4.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from swirl.cost.time import Rates
from swirl.measure.rates import Limits, latency_sizes
from swirl.target.targets import Target
from swirl.tune.polydl.working_sets import Reuse

LEVELS = ("level 1", "level 2", "level 3", "memory")
"""Of each statistic, in this order; a level that a machine does not have serves nothing."""
Statistics = tuple[float, ...]
"""Bytes of the working sets that each of :data:`LEVELS` serves."""


@dataclass(frozen=True)
class Level:
    """A level of the memory hierarchy.

    Args:
        bytes: that it holds; 0 where there is no such cache. Memory holds everything.
        latency: seconds from a load to one that needs its result.
        bandwidth: bytes a second, of all threads.
    """

    bytes: int
    latency: float
    bandwidth: float

    @property
    def cost(self) -> float:
        """Of a byte of a working set, by equation 1."""
        return self.latency / self.bandwidth if self.bandwidth else 0.0


@dataclass(frozen=True)
class Hierarchy:
    """The caches of a machine, and its memory.

    Args:
        caches: of levels 1 to 3.
        memory: where all else comes from; its size does not count.
    """

    caches: tuple[Level, Level, Level]
    memory: Level


def measured_hierarchy(target: Target, limits: Limits, rates: Rates, level3_bytes: int) -> Hierarchy:
    """This machine's; the probes of latencies take about a second.

    Args:
        target: with the sizes of a core's own caches.
        limits: probes with the threads that are used.
        rates: that they have found.
        level3_bytes: of the cache of all cores; 0 where there is none.
    """
    among = latency_sizes(target.l1_bytes, target.l2_bytes, level3_bytes)
    waits = {level: limits.latency(size) for level, size in among.items()}
    level1 = Level(target.l1_bytes, waits["level 1"], limits.level1_rate())
    level2 = Level(target.l2_bytes, waits["level 2"], rates.level2)
    level3 = Level(level3_bytes, waits["level 3"], rates.level3) if level3_bytes else Level(0, 0.0, 0.0)
    return Hierarchy((level1, level2, level3), Level(0, waits["memory"], rates.memory))


def sizes(found: Iterable[Reuse]) -> list[int]:
    """Bytes of the working sets that count."""
    return [size.bytes for each in found for size in each.sizes]


def served(working_sets: Iterable[int], hierarchy: Hierarchy) -> Statistics:
    """Bytes of the working sets that each level serves: algorithm 2.

    From the smallest one on, each is in the first cache that has room for it beside those that are there already:
    caches are exclusive, and fully associative. Lines 4 to 7 are missing in our copy of the paper; that those before
    it take room follows from the order, which would otherwise not matter.

    Args:
        working_sets: bytes of each.
        hierarchy: of the machine.
    """
    found = [0.0] * len(LEVELS)
    for size in sorted(working_sets):
        fitting = (n for n, cache in enumerate(hierarchy.caches) if found[n] + size <= cache.bytes)
        found[next(fitting, len(hierarchy.caches))] += size
    return tuple(found)


def cost(statistics: Sequence[float], hierarchy: Hierarchy) -> float:
    """Equation 1: bytes that a level serves times its latency, divided by its bandwidth. The unit is of no use; the
    variant with the least cost should be the fastest."""
    levels = (*hierarchy.caches, hierarchy.memory)
    return sum(served_ * level.cost for served_, level in zip(statistics, levels, strict=True))
