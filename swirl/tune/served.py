"""What the process does that runs candidates: see :mod:`swirl.tune.worker`. It imports little, to start soon."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from swirl.build.jit import load
from swirl.build.libraries import Built
from swirl.dump.differences import differences
from swirl.errors import LatteError
from swirl.ir.buffers import DTYPES, Buffer
from swirl.ir.item_numbers import value_of
from swirl.measure.rates import Limits, lower_quartile
from swirl.run.memory import allocate
from swirl.run.runner import Runner
from swirl.target.targets import get_target
from swirl.tune.arrays import synthetic_array

PR_SET_PDEATHSIG = 1
LONG = 0.02
"""Seconds of a run from which on what is left in the caches does not matter."""
RUNS, SHARE = 3, 0.1
"""Runs of each candidate in the first round of a race, or as many as take so many seconds."""
ROUNDS = 3
"""Of a race, each with half of the candidates and twice the runs of the one before."""


@dataclass(frozen=True)
class Spec:
    """What the kernels of a subject have in common.

    Args:
        target: name of the target.
        threads: that run them.
        items: of a batch.
        values: buffer of the program before its commands → what it must hold; see :func:`swirl.dump.write.contents`.
        written: storage that is compared.
        tolerance: relative to the largest value.
    """

    target: str
    threads: int
    items: int
    values: Mapping[str, Any]
    written: tuple[str, ...]
    tolerance: float


@dataclass(frozen=True)
class Job:
    """A kernel.

    Args:
        built: the compiled file.
        buffers: of its table, in order.
    """

    built: Built
    buffers: tuple[Buffer, ...]


@dataclass(frozen=True)
class Checked:
    """What a kernel did when it ran once.

    Args:
        seconds: that it took.
        wrong: where its results are not those of the first kernel, or "".
    """

    seconds: float
    wrong: str = ""


def serve(handle: int) -> None:
    """Answer, until nobody asks.

    Args:
        handle: of the pipe's end.
    """
    if sys.platform == "linux":  # a kernel that hangs ends with the process that asked for it, however that ends
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    connection = Connection(handle)
    try:
        _, spec = connection.recv()
        bench = Bench(spec)
        connection.send(None)
        while True:
            name, *arguments = connection.recv()
            try:
                connection.send(getattr(bench, name)(*arguments))
            except LatteError as error:
                connection.send(LatteError(str(error)))
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        return


class Bench:
    """The data of a subject, and its kernels.

    Args:
        spec: of the subject.
    """

    def __init__(self, spec: Spec):
        self._spec = spec
        self._runner = Runner(spec.threads)
        self._limits = Limits(get_target(spec.target), self._runner)
        self._logical: dict[str, np.ndarray] = {}
        self._memory: dict[tuple[Any, ...], np.ndarray] = {}
        self._right: dict[str, np.ndarray] = {}

    def prepare(self, job: Job) -> None:
        """Make a kernel's memory, with fresh data."""
        self._arrays(job, fresh=True)

    def check(self, job: Job) -> Checked:
        """Run a kernel once on the data that there are, and compare."""
        arrays = self._arrays(job, fresh=False)
        (seconds,) = self._runner.phase([(load(job.built), arrays)]).run_timed()
        made = {
            buffer.name: buffer.layout.unpack(array, buffer.shape).ravel()
            for buffer, array in zip(job.buffers, arrays, strict=True)
            if buffer.name in self._spec.written
        }
        if not self._right:
            self._right = {name: values.copy() for name, values in made.items()}
        missing = [name for name in self._right if name not in made]
        if missing:
            return Checked(seconds, f"{missing[0]} is not computed")
        for found in differences(self._right, made, self._spec.tolerance):
            if found.first is not None:
                return Checked(seconds, str(found))
        return Checked(seconds)

    def race(self, jobs: Sequence[Job], runs: int, keep: int) -> list[list[float]]:
        """Time kernels in turns; see :meth:`swirl.tune.worker.Worker.race`."""
        phases = [self._runner.phase([(load(job.built), self._arrays(job, fresh=False))]) for job in jobs]
        times: list[list[float]] = [[] for _ in jobs]
        running = list(range(len(jobs)))
        for number in running:
            phases[number].run()
        for _ in range(ROUNDS):
            for turn in range(runs):
                for number in running if turn % 2 == 0 else running[::-1]:
                    if not times[number] or times[number][-1] < LONG:
                        self._limits.flush()
                    times[number] += phases[number].run_timed()
            first, *others = running
            others.sort(key=lambda number: lower_quartile(times[number]))
            running = [first, *others[: max(keep, len(others) // 2)]]
            runs = 2 * runs if sum(min(times[number]) for number in running) * runs < SHARE * ROUNDS else runs
        return times

    def _arrays(self, job: Job, fresh: bool) -> list[np.ndarray]:
        """The arrays of a kernel: of a storage with a layout there is one for all kernels."""
        keys = [(b.name, b.physical_shape, b.dtype, repr(b.layout)) for b in job.buffers]
        missing = {key: b for key, b in zip(keys, job.buffers, strict=True) if key not in self._memory}
        if missing:
            sizes = {str(n): (b.physical_shape, DTYPES[b.dtype]) for n, b in enumerate(missing.values())}
            made = allocate(sizes, self._runner)
            self._memory |= {key: made[str(n)] for n, key in enumerate(missing)}
        for key, buffer in zip(keys, job.buffers, strict=True):
            if fresh or key in missing:
                self._fill(self._memory[key], buffer)
        return [self._memory[key] for key in keys]

    def _fill(self, array: np.ndarray, buffer: Buffer) -> None:
        if buffer.formula:
            array[0] = value_of(buffer.formula, self._spec.items)
            return
        known = self._logical.get(buffer.name)
        if known is None or known.size != np.prod(buffer.shape, dtype=int):
            known = self._logical[buffer.name] = synthetic_array(buffer, self._spec.values.get(buffer.name))
        array[...] = buffer.layout.pack(known.reshape(buffer.shape))
