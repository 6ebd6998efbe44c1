"""What a loop nest asks of a processor, by a simple model: the instructions that it issues
(:mod:`swirl.cost.instruction_counts`), the bytes that come into each cache (:mod:`swirl.cost.traffic`), and how long a
machine of known rates needs for that.

The model of Georganas et al. (*Anatomy of high-performance deep learning convolutions on SIMD architectures*, SC 2018,
sections II-B and II-D) in short: the slowest part takes the time, and threads that begin take some more. Sums wait for
themselves; there are no other latencies, and no prefetches; the caches of several cores count as one. What it leaves
out is what a measurement beside it shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from math import hypot, prod

from swirl.analysis.loop_tree import loop_tree
from swirl.analysis.work import nests_footprints
from swirl.cost.instruction_counts import count_instructions, used_share, vector_lanes
from swirl.cost.traffic import bytes_into_cache, streamed_buffers, traffic_bytes
from swirl.ir.item_numbers import whole_batch
from swirl.ir.names import with_distinct_names
from swirl.ir.nest import Nest, Program
from swirl.target.targets import Target

GATHERED = 3
"""Loads that could be issued in the time of one lane of a gather, or of a scatter."""
LATENCY = 4
"""Cycles from a multiply-add to one that needs its result."""
ISSUED = 5
"""Instructions that a core begins in a cycle."""
REGION = 1e-6
"""Seconds from the beginning of a parallel loop to the first of its iterations, and from the last one on."""


@dataclass(frozen=True)
class Rates:
    """What a machine can do at the best, all threads together; see :class:`swirl.measure.rates.Limits`.

    Args:
        peak: floating-point operations a second, multiply-adds counting two.
        level2, level3, memory: bytes a second that are read from the level-2 caches, from the level-3 cache, and from
            memory.
    """

    peak: float
    level2: float
    level3: float
    memory: float


@dataclass(frozen=True)
class Demand:
    """What one run of a loop nest asks for.

    Args:
        multiply_adds: of whole vectors, or operations that take as long.
        loads, stores: vectors and broadcasts that are loaded, vectors that are stored.
        lanes: share of the vectors' lanes whose operations are wanted; where there are none, whose elements are.
        level1, level2: bytes that come into these caches, as if all threads had one: what several of them read comes
            into each, and counts once.
        memory: bytes that are touched, each counted once; what is written counts twice, unless it passes the caches.
        shares: iterations that threads share; 1 where one thread does all, 0 where their number is not known.
        gathered: of the loads and stores, those of single lanes.
        waits: multiply-adds each of which waits for the one before it.
        spills: loads and stores of sums for which there is no register.
        iterations: of loops that run.
        regions: times that threads begin, and wait for each other.
    """

    multiply_adds: int
    loads: int
    stores: int
    lanes: float
    level1: int
    level2: int
    memory: int
    shares: int
    gathered: int = 0
    waits: int = 0
    spills: int = 0
    iterations: int = 0
    regions: int = 0

    @property
    def multiply_adds_per_load(self) -> float:
        """Multiply-adds for each load."""
        return self.multiply_adds / self.loads if self.loads else 0.0

    def resource_times(self, rates: Rates, target: Target, threads: int, level3_bytes: int) -> dict[str, float]:
        """Seconds that each part takes alone.

        Args:
            rates: of the machine with that many threads.
            target: what the nest is made for: two vectors are multiplied and added, or loaded, in the time that one is
                stored.
            threads: that run it.
            level3_bytes: bytes of the level-3 cache: what is not larger comes from there, not from memory.
        """
        imbalance = (
            threads if self.shares == 1 else -(-self.shares // threads) * threads / self.shares if self.shares else 1
        )
        vectors_per_second = rates.peak / (2 * target.simd_width)
        cycles_per_second = vectors_per_second / _pipes(vectors_per_second / threads)
        single, spills = (GATHERED - 1) * self.gathered, self.spills / 2
        issued = self.multiply_adds + self.loads + self.stores + self.spills + single + self.iterations
        from_memory = self.memory if self.memory > level3_bytes else 0
        from_level3 = max(0, self.level2 - self.memory) if from_memory else self.level2
        seconds = {
            "multiply-adds": self.multiply_adds / vectors_per_second,
            "loads": (self.loads + spills + single) / vectors_per_second,
            "stores": 2 * (self.stores + spills) / vectors_per_second,
            "issue": issued / (ISSUED * cycles_per_second),
            "sums": self.waits * LATENCY / cycles_per_second,
            "level 2": self.level1 / rates.level2,
            "memory" if from_memory else "level 3": from_memory / rates.memory + from_level3 / rates.level3,
        }
        of_all_cores = ("level 3", "memory")
        return {part: time * (1 if part in of_all_cores else imbalance) for part, time in seconds.items()}

    def price(self, rates: Rates, target: Target, threads: int, level3_bytes: int) -> float:
        """Seconds by which schedules are ordered: the parts overlap, but not wholly, so the root of the sum of their
        squares; and what threads take that begin. See :meth:`resource_times`; ``benchmarks/ranking.py`` measures how
        often the order is right."""
        parts = self.resource_times(rates, target, threads, level3_bytes).values()
        return hypot(*parts) + self._beginning(threads)

    def seconds(self, rates: Rates, target: Target, threads: int, level3_bytes: int) -> tuple[float, str]:
        """The seconds that are needed at least, if all parts overlap wholly, and the part that takes most of them; see
        :meth:`resource_times`."""
        parts = self.resource_times(rates, target, threads, level3_bytes)
        slowest = max(parts, key=lambda part: parts[part])
        begun = self._beginning(threads)
        return parts[slowest] + begun, slowest if parts[slowest] >= begun else "threads"

    def _beginning(self, threads: int) -> float:
        """Seconds that threads take to begin, and to wait for each other."""
        return self.regions * REGION if threads > 1 else 0.0


def _pipes(vectors_per_second: float) -> int:
    """Multiply-adds that a core begins in a cycle, by how many it begins in a second: clocks are between 2 and 5.5 GHz,
    and slower ones of two pipes are rarer than fast ones of one."""
    return 1 if vectors_per_second < 5.5e9 else 2


def program_demand(program: Program, target: Target) -> Demand:
    """What a finished program asks for, for a whole batch: of one that :func:`swirl.ir.separate.separate` has taken
    apart, a loop nest."""
    program = whole_batch(program)
    nests, buffers = [with_distinct_names(nest) for nest in program.nests], program.buffers
    counts = [
        count_instructions(nest, buffers, vector_lanes(nest, buffers, target), target.registers) for nest in nests
    ]
    bypassing = {name for nest in nests for name in streamed_buffers(nest)}
    touched = nests_footprints(nests, buffers)
    compulsory = traffic_bytes(touched, bypassing)

    def cache_traffic(size: int) -> int:
        return (
            compulsory
            if sum(each.bytes for each in touched) <= size
            else max(compulsory, sum(bytes_into_cache(nest, buffers, bypassing, size) for nest in nests))
        )

    return Demand(
        multiply_adds=sum(each.multiply_adds for each in counts),
        loads=sum(each.loads for each in counts),
        stores=sum(each.stores for each in counts),
        lanes=used_share([each.computed_lanes for each in counts])
        or used_share([each.stored_lanes for each in counts])
        or 1.0,
        level1=cache_traffic(target.l1_bytes),
        level2=cache_traffic(target.l2_bytes),
        memory=compulsory,
        shares=min(map(_shared_iterations, nests), default=1),
        gathered=sum(each.gathered for each in counts),
        waits=sum(each.waits for each in counts),
        spills=sum(each.spills for each in counts),
        iterations=sum(each.iterations for each in counts),
        regions=sum(loop.entries for nest in nests for loop in loop_tree(nest).regions()),
    )


def _shared_iterations(nest: Nest) -> int:
    """Those that the threads share in a nest, of the parallel loops that are directly in each other; 1 without such
    loops, 0 where the number is not constant."""
    tree = loop_tree(nest)
    regions = tree.regions()
    if not regions:
        return 1
    directly = takewhile(lambda loop: loop.kind == "parallel", tree.chain(regions[0].path))
    return prod(loop.extent or 0 for loop in directly)
