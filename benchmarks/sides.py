"""Other systems' sides of tables of searches: a convolution or a product, computed in a process of its own.

A side is a script that gives :func:`serve` what prepares the work; :class:`SideProcess` starts the script and asks it
for seconds. What a side computes is compared with NumPy, everywhere, before it is timed. Before each short run all
threads read something else, as between runs of our side: the cores' own caches do not hold the operands then.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from select import select
from tempfile import TemporaryFile
from time import perf_counter
from typing import Any

import numpy as np

TOLERANCE = 1e-4
"""Of the greatest result: sums of at most 50,000 products of numbers near 1."""
FLUSHED = 1 << 25
"""Numbers that are read between runs: 128 MiB."""
LONG = 0.02
"""Seconds of a run from which on what is left in the caches does not matter."""
WARM = 2
"""Runs of a turn that are not counted."""
PREPARING, ANSWERING = 600.0, 600.0
"""Seconds that a side may take to start, and for an answer."""
A_TRIAL = 120.0
"""Seconds that a side may take for each schedule that it measures."""


@dataclass(frozen=True)
class Asked:
    """The work of a side.

    Args:
        kind: ``conv`` or ``product``.
        shape: images, channels, height, width, filters, kernel, stride, padding; rows, columns, length.
        threads: that compute it.
        avx512: whether vectors may be of 64 bytes; otherwise of 32.
        trials: schedules that a side may measure.
    """

    kind: str
    shape: tuple[int, ...]
    threads: int
    avx512: bool = True
    trials: int = 0

    @property
    def operands(self) -> tuple[np.ndarray, ...]:
        """Images (in NCHW), filters (in OIHW) and a bias; or the two matrices whose product is added to another one."""
        generator = np.random.default_rng(0)
        if self.kind == "product":
            rows, columns, length = self.shape
            shapes: list[tuple[int, ...]] = [(rows, length), (length, columns)]
        else:
            items, channels, height, width, filters, kernel, *_ = self.shape
            shapes = [(items, channels, height, width), (filters, channels, kernel, kernel), (filters,)]
        return tuple(generator.standard_normal(shape, np.float32) for shape in shapes)

    @property
    def result(self) -> tuple[int, ...]:
        """The shape of the value, in NCHW."""
        if self.kind == "product":
            return self.shape[:2]
        items, _, height, width, filters, kernel, stride, pad = self.shape
        return items, filters, *((extent + 2 * pad - kernel) // stride + 1 for extent in (height, width))

    def innermost(self, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Images with channels innermost and zeros around, weights with filters innermost, the bias; or two matrices,
        and one of zeros."""
        if self.kind == "product":
            return [*operands, np.zeros(self.result, np.float32)]
        x, weights, bias = operands
        pad = self.shape[-1]
        padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        return [
            np.ascontiguousarray(each) for each in (padded.transpose(0, 2, 3, 1), weights.transpose(2, 3, 1, 0), bias)
        ]

    @property
    def innermost_result(self) -> tuple[int, ...]:
        """The shape of the value with channels innermost."""
        if self.kind == "product":
            return self.result
        items, filters, height, width = self.result
        return items, height, width, filters

    def outermost(self, value: np.ndarray) -> np.ndarray:
        """A value with channels innermost in NCHW."""
        return value if self.kind == "product" else value.transpose(0, 3, 1, 2)


@dataclass(frozen=True)
class Prepared:
    """What a side has made of its work.

    Args:
        run: computes the value once; of a product, adds it to what begins as zeros.
        value: what the last run has computed, in NCHW.
        tried: different schedules that were measured.
        seconds: that the search took.
    """

    run: Callable[[], object]
    value: Callable[[], np.ndarray]
    tried: int = 0
    seconds: float = 0.0


class SideFailed(Exception):
    """A side cannot compute the work; the message says why."""


class SideProcess:
    """A side that has prepared its work.

    Args:
        script: of this folder, or a whole path.
        asked: the work.
        environment: of its process.

    Raises:
        SideFailed: it is missing, its results are wrong, or it takes too long.
    """

    def __init__(self, script: str, asked: Asked, environment: dict[str, str]):
        command = [sys.executable, str(Path(__file__).parent / script), json.dumps(asdict(asked))]
        self._errors = TemporaryFile("w+")  # noqa: SIM115 (close does)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
            start_new_session=True,
        )
        try:
            told = self._answer(PREPARING + A_TRIAL * asked.trials)
        except SideFailed:
            self.close()
            raise
        self.tried, self.search_seconds = int(told["tried"]), float(told["seconds"])

    def seconds(self, runs: int) -> list[float]:
        """Of so many runs.

        Raises:
            SideFailed: its process has ended, or takes too long.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # why, is told below
            self._process.stdin.write(f"{runs}\n")
            self._process.stdin.flush()
        return [float(each) for each in self._answer(ANSWERING)["times"]]

    def _answer(self, within: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select([self._process.stdout], [], [], within)
        if not ready:
            raise SideFailed(f"no answer in {within:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            lines = self._errors.read().strip().splitlines()
            raise SideFailed(lines[-1] if lines else "it has ended without a word")
        found: dict[str, Any] = json.loads(line)
        if "failed" in found:
            raise SideFailed(str(found["failed"]))
        return found

    def close(self) -> None:
        """End the process, and those that it has started."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._errors.close()

    def __enter__(self) -> SideProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- in the process of a side -------------------------------------------------------------------------------
class Clock:
    """Times runs, as all sides do.

    Args:
        threads: that read something else before short runs.
    """

    def __init__(self, threads: int):
        self._other, self._threads = np.ones(FLUSHED, np.float32), threads
        self._pool = ThreadPoolExecutor(threads)

    def seconds(self, run: Callable[[], object], runs: int) -> list[float]:
        """Seconds of each run."""
        found: list[float] = []
        for _ in range(runs + WARM):
            if not found or found[-1] < LONG:
                list(self._pool.map(lambda _: self._other.sum(), range(self._threads)))
            start = perf_counter()
            run()
            found.append(perf_counter() - start)
        return found[WARM:]

    def quartile(self, run: Callable[[], object], runs: int) -> float:
        """The lower quartile of so many runs: by it schedules are chosen."""
        return sorted(self.seconds(run, runs))[runs // 4]


def serve(prepare: Callable[[Asked, Sequence[np.ndarray], Clock], Prepared]) -> None:
    """Prepare the work of the command line, then print the seconds of as many runs as each line of the standard input
    says."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer
    sys.stdout = sys.stderr
    given = json.loads(sys.argv[1])
    asked = Asked(**{**given, "shape": tuple(given["shape"])})
    clock, operands = Clock(asked.threads), asked.operands
    try:
        made = prepare(asked, operands, clock)
        made.run()
        check(expected(asked, operands), made.value())
    except SideFailed as error:
        print(json.dumps({"failed": str(error)}), file=channel, flush=True)
        return
    print(json.dumps({"tried": made.tried, "seconds": made.seconds}), file=channel, flush=True)
    for line in sys.stdin:
        print(json.dumps({"times": clock.seconds(made.run, int(line))}), file=channel, flush=True)


def expected(asked: Asked, operands: Sequence[np.ndarray]) -> np.ndarray:
    """The value by its definition, a row of pixels at a time."""
    if asked.kind == "product":
        a, b = operands
        return a @ b
    x, weights, bias = operands
    *_, kernel, stride, pad = asked.shape
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), (2, 3))[:, :, ::stride, ::stride]
    flat = weights.reshape(len(weights), -1)
    found = np.empty(asked.result, np.float32)
    for item in range(found.shape[0]):
        for row in range(found.shape[2]):
            window = windows[item, :, row].transpose(0, 2, 3, 1).reshape(flat.shape[1], -1)
            found[item, :, row] = flat @ window + bias[:, None]
    return found


def check(wanted: np.ndarray, value: np.ndarray) -> None:
    """Compare a value with what it should be.

    Raises:
        SideFailed: it has another shape, or an element differs.
    """
    if value.shape != wanted.shape:
        raise SideFailed(f"its result has shape {value.shape} instead of {wanted.shape}")
    difference = np.abs(value - wanted).max() / np.abs(wanted).max()
    if not difference <= TOLERANCE:
        raise SideFailed(f"its results differ by {difference:.2g} of the greatest")
