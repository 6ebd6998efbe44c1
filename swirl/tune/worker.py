"""A process that runs candidates: one that crashes, hangs or spoils memory takes this process with it, not the search.
It is replaced then.

The process has the data of one subject. A kernel is *checked* before it is timed: it runs once on fresh data, and what
it leaves is compared with what the first one has left. Candidates *race* in turns; before each run, the caches are
flushed where that matters, as the layers around would.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from swirl.build.jit import load
from swirl.build.libraries import Built
from swirl.dump.compare import differences, usual_tolerance
from swirl.dump.write import contents
from swirl.errors import LatteError
from swirl.ir.buffers import DTYPES, Buffer
from swirl.ir.item_numbers import value_of
from swirl.ir.names import stored_in
from swirl.ir.nest import Program
from swirl.measure.rates import Limits
from swirl.run.memory import allocate
from swirl.run.runner import Runner
from swirl.target.targets import Target, get_target
from swirl.tune.arrays import synthetic_array

LEAST_SECONDS = 1.0
"""That a kernel may take."""
SLOWEST = 10
"""Times as long as the fastest may a kernel take."""
STARTING = 60.0
"""Seconds in which the process has its threads and data, and a kernel its memory."""
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

    @classmethod
    def of(cls, program: Program, target: Target, threads: int, items: int) -> Spec:
        """That of a program before its commands."""
        names = stored_in(statement for nest in program.nests for statement in nest.body)
        written = (program.buffers[name] for name in names if name in program.buffers)
        storage = tuple(dict.fromkeys(buffer.name for buffer in written if buffer.role != "temporary"))
        values = {program.buffers[name].name: value for name, value in contents(program).items()}
        return cls(target.name, threads, items, values, storage, usual_tolerance(program))


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


class Lost(Exception):
    """The process has ended, or had to be ended: a kernel crashed, or hung."""


class Worker:
    """The process, from here.

    Args:
        spec: of the subject.
        reference: the kernel whose results are the right ones.

    Raises:
        LatteError: the reference cannot be run.
    """

    def __init__(self, spec: Spec, reference: Job):
        self._spec, self._reference = spec, reference
        self._process: Any = None
        self.best = self._start().seconds
        """Seconds of the fastest kernel that was checked."""

    def _start(self) -> Checked:
        here, there = multiprocessing.Pipe()
        # Not by fork: OpenMP has threads in this process.
        self._process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,), daemon=True)
        self._process.start()
        there.close()
        self._connection = here
        try:
            self._ask("start", self._spec, within=STARTING)
            found: Checked = self._ask("check", self._reference, within=STARTING)
        except Lost as error:
            raise LatteError(f"the schedule that the layer has cannot be run by itself: {error}") from error
        return found

    def check(self, job: Job) -> Checked:
        """Run a kernel once, and compare its results.

        Raises:
            Lost: it crashed, or took too long; another process has taken this one's place.
        """
        within = STARTING if self.best > LEAST_SECONDS else max(LEAST_SECONDS, SLOWEST * self.best) + 1
        try:
            found: Checked = self._ask("check", job, within=within)
        except Lost:
            self._start()
            raise
        if not found.wrong:
            self.best = min(self.best, found.seconds)
        return found

    def race(self, jobs: Sequence[Job], runs: int = RUNS, keep: int = 2) -> list[list[float]]:
        """Time kernels in turns.

        Args:
            jobs: that were checked; the first one is timed in every round.
            runs: of each in the first round.
            keep: how many are timed in every round.

        Returns:
            the seconds of each run, for each kernel.

        Raises:
            Lost: as :meth:`check`.
        """
        try:
            found: list[list[float]] = self._ask(
                "race", jobs, runs, keep, within=STARTING + 200 * self.best * len(jobs)
            )
        except Lost:
            self._start()
            raise
        return found

    def _ask(self, *message: Any, within: float) -> Any:
        try:
            self._connection.send(message)
            if not self._connection.poll(within):
                self.close()
                raise Lost(f"no end after {within:.1f} s")
            answer = self._connection.recv()
        except (EOFError, ConnectionError, OSError) as error:
            code = self._ended()
            raise Lost(f"the process ended{f' by signal {-code}' if code is not None and code < 0 else ''}") from error
        if isinstance(answer, LatteError):
            raise Lost(str(answer))
        return answer

    def _ended(self) -> int | None:
        self._process.join(1)
        code: int | None = self._process.exitcode
        self.close()
        return code

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(connection: Connection) -> None:
    """Answer, until nobody asks."""
    try:
        _, spec = connection.recv()
        bench = _Bench(spec)
        connection.send(None)
        while True:
            name, *arguments = connection.recv()
            try:
                connection.send(bench.check(*arguments) if name == "check" else bench.race(*arguments))
            except LatteError as error:
                connection.send(LatteError(str(error)))
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        return


class _Bench:
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

    def check(self, job: Job) -> Checked:
        arrays = self._arrays(job, fresh=True)
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
            others.sort(key=lambda number: sorted(times[number])[len(times[number]) // 4])
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
