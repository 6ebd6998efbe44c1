"""Timing kernels beside the limits of the machine, alternately: clocks and memory speed vary within a minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from statistics import median
from time import perf_counter

import numpy as np

from swirl.jit import Kernel, build, load
from swirl.memory import allocate
from swirl.runner import Runner
from swirl.target import Target
from swirl.translation_unit import TranslationUnit

STEPS = 1_000_000  # of the multiply-add probe: a millisecond or two, much longer than a barrier
READ_BYTES = 128 * 1024 * 1024  # more than a last-level cache of these machines holds

Step = tuple[Kernel, Sequence[np.ndarray]]


@dataclass(frozen=True)
class Times:
    """Seconds of several runs."""

    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.runs)

    @property
    def spread(self) -> tuple[float, float]:
        """The limits of the middle half."""
        ordered = sorted(self.runs)
        quarter = len(ordered) // 4
        return ordered[quarter], ordered[-1 - quarter]


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
        CompilerMissing, CompilerFailed, LatteError: as :func:`swirl.jit.build`.
    """

    def __init__(self, target: Target, runner: Runner):
        self.runner = runner
        lanes = target.simd_width if target.isa_flags else 4  # available on every processor of the portable target
        count = READ_BYTES // (4 * lanes)
        source = (resources.files("swirl") / "codegen" / "templates" / "limits.cpp").read_text()
        text = f"#define LANES {lanes}\n#define ROUNDS {STEPS}L\n#define COUNT {count}L\n{source}"
        names = ("swirl_multiply_add", "swirl_read")
        built = build([TranslationUnit(name, text) for name in names], target)
        multiply_add, read = (load(found) for found in built)
        sizes = {"out": runner.threads * lanes, "in": count * lanes}
        arrays = allocate({name: ((size,), np.float32) for name, size in sizes.items()}, runner)
        self._steps: list[Step] = [(multiply_add, [arrays["out"], arrays["in"]]), (read, [arrays["out"], arrays["in"]])]
        self._phase = runner.phase(self._steps)
        self._operations = 2 * 12 * STEPS * lanes * runner.threads

    def rates(self) -> tuple[float, float]:
        """Operations a second and bytes a second, of one run of each probe. The best of several runs are the limits."""
        multiply_add, read = self._phase.run_timed()
        return self._operations / multiply_add, READ_BYTES / read

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
