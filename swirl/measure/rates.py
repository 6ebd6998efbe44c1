"""Timing kernels beside the limits of the machine, alternately: clocks and memory speed vary within a minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from statistics import median
from time import perf_counter

import numpy as np

from swirl.build.jit import Kernel, build, load
from swirl.build.translation_unit import TranslationUnit
from swirl.cost.time import Rates
from swirl.run.memory import allocate
from swirl.run.runner import Phase, Runner
from swirl.target.targets import Target

STEPS = 1_000_000  # of the multiply-add probe: a millisecond or two, much longer than a barrier
READ_BYTES = 128 * 1024 * 1024  # of a probe; where the last-level cache holds more, its rate is taken for memory's
LEVEL1 = 0.5  # level-1 caches whose bytes a thread reads, again and again, from it
LEVEL2, LEVEL3 = 0.5, 2  # level-2 caches whose bytes a thread reads, again and again, from that level
LINE = 64  # bytes of a cache line
PORTABLE_LANES = 4  # of a vector that every processor of the portable target has

Step = tuple[Kernel, Sequence[np.ndarray]]


@dataclass(frozen=True)
class Times:
    """Seconds of several runs."""

    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.runs)

    @property
    def minimum(self) -> float:
        return min(self.runs)

    @property
    def spread(self) -> tuple[float, float]:
        """The limits of the middle half: the lower and the upper quartile."""
        ordered = sorted(self.runs)
        quarter = len(ordered) // 4
        return ordered[quarter], ordered[-1 - quarter]


def latency_sizes(level1: int, level2: int, level3: int) -> dict[str, int]:
    """Level → bytes among which a load is timed for the latency of that level.

    Args:
        level1, level2, level3: bytes of the caches; 0 where there is none, and then no latency of it.
    """
    third = max(2 * level2, level3 // 4) if level3 else 0
    found = {
        "level 1": level1 // 2,
        "level 2": level2 // 2,
        "level 3": third,
        "memory": max(4 * level3, 2 * READ_BYTES),
    }
    return {level: size for level, size in found.items() if size}


def lower_quartile(runs: Sequence[float]) -> float:
    """Of the seconds of several runs."""
    return Times(tuple(runs)).spread[0]


@dataclass(frozen=True)
class Measured:
    """Kernels and limits, timed in turn.

    Args:
        kernels: one for each kernel, in their order.
        peak: floating-point operations a second, multiply-adds counting two.
        bandwidth: bytes a second, read from memory.
    """

    kernels: tuple[Times, ...]
    peak: float
    bandwidth: float


class Limits:
    """Probes of what a machine can do with the instructions of a target: compiled, and run beside kernels.

    Args:
        target: whose vectors are used.
        runner: whose threads run them.

    Raises:
        CompilerMissing, CompilerFailed, LatteError: as :func:`swirl.build.jit.build`.
    """

    def __init__(self, target: Target, runner: Runner):
        self.runner, self._target = runner, target
        self._lanes = target.simd_width if target.isa_flags else PORTABLE_LANES
        sizes = {"out": runner.threads * self._lanes, "in": READ_BYTES // 4}
        self._arrays = allocate({name: ((size,), np.float32) for name, size in sizes.items()}, runner)
        self._steps = self._probes([("swirl_multiply_add", 1), ("swirl_read", 1)])
        self._phase = runner.phase(self._steps)
        self._operations = 2 * 12 * STEPS * self._lanes * runner.threads

    def _probes(self, wanted: Sequence[tuple[str, float]]) -> list[Step]:
        """Kernels of the template: the function's name, and the share of the large array that it reads, again and again
        until it has read as many bytes as the array has."""
        source = (resources.files("swirl") / "codegen" / "templates" / "limits.cpp").read_text(encoding="utf-8")
        vector = 4 * self._lanes
        units = []
        for name, share in wanted:
            count = int(READ_BYTES * share) // (8 * vector) * 8  # the template reads eight vectors at once
            values = {
                "LANES": self._lanes,
                "ROUNDS": f"{STEPS}L",
                "COUNT": f"{count}L",
                "TIMES": f"{READ_BYTES // (count * vector)}L",
                "READ": name if "read" in name else "swirl_read",
            }
            defined = "".join(f"#define {key} {value}\n" for key, value in values.items())
            units.append(TranslationUnit(name, defined + source))
        return [(load(found), [self._arrays["out"], self._arrays["in"]]) for found in build(units, self._target)]

    def rates(self) -> tuple[float, float]:
        """Operations a second and bytes a second, of one run of each probe. The best of several runs are the limits."""
        multiply_add, read = self._phase.run_timed()
        return self._operations / multiply_add, READ_BYTES / read

    def best(self, rounds: int) -> Rates:
        """The best rates of so many runs of each probe."""
        found = [(*self.rates(), *self.cache_rates()) for _ in range(rounds)]
        peak, memory, level2, level3 = (max(each) for each in zip(*found, strict=True))
        return Rates(peak, level2, level3, memory)

    def flush(self) -> None:
        """Fill the caches with something else."""
        self._reading.run()

    @cached_property
    def _reading(self) -> Phase:
        return self.runner.phase(self._steps[1:])

    def cache_rates(self) -> tuple[float, float]:
        """Bytes a second that all threads read from their level-2 caches, and from the level-3 cache, in one run."""
        level2, level3 = self._cache_phase.run_timed()
        return READ_BYTES / level2, READ_BYTES / level3

    @cached_property
    def _cache_phase(self) -> Phase:
        share = self.runner.threads * self._target.l2_bytes / READ_BYTES
        names = ("swirl_read_level2", LEVEL2), ("swirl_read_level3", LEVEL3)
        return self.runner.phase(self._probes([(name, min(1, part * share)) for name, part in names]))

    def level1_rate(self) -> float:
        """Bytes a second that all threads read from their level-1 caches. The best of three runs, after one."""
        share = LEVEL1 * self.runner.threads * self._target.l1_bytes / READ_BYTES
        phase = self.runner.phase(self._probes([("swirl_read_level1", share)]))
        return max(READ_BYTES / phase.run_timed()[0] for _ in range(4))

    def latency(self, size: int) -> float:
        """Seconds from a load to one that needs its result, among so many bytes in random order: of the smallest cache
        that holds them, on huge pages if the machine has them. The best of three runs."""
        lines = max(2, size // LINE)
        arrays = allocate({"out": ((1,), np.int64), "chain": ((lines * LINE // 8,), np.int64)}, self.runner)
        order = np.random.default_rng(0).permutation(lines) * (LINE // 8)
        arrays["chain"][order] = np.roll(order, -1)
        ((kernel, _),) = self._probes([("swirl_chase", 1)])
        phase = self.runner.phase([(kernel, [arrays["out"], arrays["chain"]])])
        return min(phase.run_timed()[0] for _ in range(4)) / STEPS

    def measure(self, kernels: Sequence[Step], *, seconds: float = 0.4, rounds: int = 40) -> Measured:
        """Time kernels and limits in turn, for so many seconds or rounds, whichever is first.

        At least three rounds, or as many as begin within four times these seconds. Each kernel runs twice in a row, and
        the second run counts: small data then come from the caches. For the limits, the best run counts.
        """
        steps = [*self._steps, *(kernel for kernel in kernels for _ in range(2))]
        phase = self.runner.phase(steps)
        start = perf_counter()
        taken: list[list[float]] = []
        while len(taken) < rounds and perf_counter() - start < (seconds if len(taken) >= 3 else 4 * seconds):
            taken.append(phase.run_timed())
        limits, times = len(self._steps), list(zip(*taken, strict=True))
        found = tuple(Times(times[limits + 2 * place + 1]) for place in range(len(kernels)))
        return Measured(found, self._operations / min(times[0]), READ_BYTES / min(times[1]))
