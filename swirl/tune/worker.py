"""A process that runs candidates: one that crashes, hangs or spoils memory takes this process with it, not the search.
It is replaced then.

The process has the data of one subject. A kernel is *checked* before it is timed: it runs once on fresh data, and what
it leaves is compared with what the first one has left. Candidates *race* in turns; before each run, the caches are
flushed where that matters, as the layers around would.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import Pipe
from typing import Any

from swirl.config import child_environment
from swirl.dump.compare import usual_tolerance
from swirl.dump.write import contents
from swirl.errors import LatteError
from swirl.ir.names import stored_in
from swirl.ir.nest import Program
from swirl.target.targets import Target
from swirl.tune.served import RUNS, Checked, Job, Spec

LEAST_SECONDS = 1.0
"""That a kernel may take."""
SLOWEST = 10
"""Times as long as the fastest may a kernel take."""
STARTING, CHECKING = 60.0, 1.0
"""Seconds in which the process has its threads and data, and a kernel its memory; and in which results are compared."""


def spec_of(program: Program, target: Target, threads: int, items: int) -> Spec:
    """What the kernels of a program before its commands have in common."""
    names = stored_in(statement for nest in program.nests for statement in nest.body)
    written = (program.buffers[name] for name in names if name in program.buffers)
    storage = tuple(dict.fromkeys(buffer.name for buffer in written if buffer.role != "temporary"))
    values = {program.buffers[name].name: value for name, value in contents(program).items()}
    return Spec(target.name, threads, items, values, storage, usual_tolerance(program))


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
        self._process: subprocess.Popen[bytes] | None = None
        self.best = self._start().seconds
        """Seconds of the fastest kernel that was checked."""

    def _start(self) -> Checked:
        here, there = Pipe()
        command = [sys.executable, "-c", f"from swirl.tune.served import serve; serve({there.fileno()})"]
        self._process = subprocess.Popen(command, pass_fds=[there.fileno()], env=child_environment())
        there.close()
        self._connection = here
        try:
            self._ask("start", self._spec, within=STARTING)
            self._ask("prepare", self._reference, within=STARTING)
            found: Checked = self._ask("check", self._reference, within=STARTING)
        except Lost as error:
            raise LatteError(f"the schedule that the layer has cannot be run by itself: {error}") from error
        return found

    def check(self, job: Job) -> Checked:
        """Run a kernel once, and compare its results.

        Raises:
            Lost: it crashed, or took too long; another process has taken this one's place.
        """
        within = max(LEAST_SECONDS, SLOWEST * self.best)
        try:
            self._ask("prepare", job, within=STARTING)
            found: Checked = self._ask("check", job, within=within + CHECKING)
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
        assert self._process is not None
        try:
            code: int | None = self._process.wait(1)
        except subprocess.TimeoutExpired:
            code = None
        self.close()
        return code

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._connection.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
