"""Other systems' sides of tables of searches: a convolution or a product, computed in a process of its own.

A side is a script that gives :func:`serve` what prepares the work; :class:`SideProcess` starts the script and asks it
for seconds. What a side computes is compared with plain NumPy, at random places, before it is timed. Between short runs
something else is read, as between those of our side: caches do not hold the operands.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

PLACES = 200
"""Results that are compared."""
TOLERANCE = 1e-4
"""Of the greatest of them: sums of at most 50,000 products of numbers near 1."""
FLUSHED = 1 << 25
"""Numbers that are read between runs: 128 MiB."""
LONG = 0.02
"""Seconds of a run from which on what is left in the caches does not matter."""
WARM = 2
"""Runs of a turn that are not counted."""


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
        """Images (in NCHW), filters (in OIHW) and a bias; or two matrices."""
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


@dataclass(frozen=True)
class Prepared:
    """What a side has made of its work.

    Args:
        run: computes the value once.
        value: what the last run has computed, in NCHW.
        tried: schedules that were measured.
        seconds: that the search took.
        told: what a reader of the table should know.
    """

    run: Callable[[], object]
    value: Callable[[], np.ndarray]
    tried: int = 0
    seconds: float = 0.0
    told: str = ""


class SideFailed(Exception):
    """A side cannot compute the work; the message says why."""


class SideProcess:
    """A side that has prepared its work.

    Args:
        script: of this folder.
        asked: the work.
        environment: of its process.

    Raises:
        SideFailed: it is missing, or its results are wrong.
    """

    def __init__(self, script: str, asked: Asked, environment: dict[str, str]):
        command = [sys.executable, str(Path(__file__).with_name(script)), json.dumps(asdict(asked))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        try:
            told = self._answer()
        except SideFailed:
            self.close()
            raise
        self.tried, self.search_seconds, self.told = int(told["tried"]), float(told["seconds"]), str(told["told"])

    def seconds(self, runs: int) -> list[float]:
        """Of so many runs.

        Raises:
            SideFailed: its process has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{runs}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # why, is told below
        return [float(each) for each in self._answer()["times"]]

    def _answer(self) -> dict[str, list[float]]:
        assert self._process.stdout is not None and self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            lines = self._process.stderr.read().strip().splitlines()
            raise SideFailed(lines[-1] if lines else "it has ended without a word")
        found: dict[str, list[float]] = json.loads(line)
        if "failed" in found:
            raise SideFailed(str(found["failed"]))
        return found

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> SideProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- in the process of a side -------------------------------------------------------------------------------
def serve(prepare: Callable[[Asked, Sequence[np.ndarray]], Prepared]) -> None:
    """Prepare the work of the command line, then print the seconds of as many runs as each line of the standard input
    says."""
    channel, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    given = json.loads(sys.argv[1])
    asked = Asked(**{**given, "shape": tuple(given["shape"])})
    operands = asked.operands
    try:
        made = prepare(asked, operands)
        made.run()
        check(asked, operands, made.value())
    except SideFailed as error:
        print(json.dumps({"failed": str(error)}), file=channel, flush=True)
        return
    print(json.dumps({"tried": made.tried, "seconds": made.seconds, "told": made.told}), file=channel, flush=True)
    other = np.ones(FLUSHED, np.float32)
    for line in sys.stdin:
        print(json.dumps({"times": timed(made.run, int(line), other)}), file=channel, flush=True)


def timed(run: Callable[[], object], runs: int, other: np.ndarray) -> list[float]:
    """Seconds of each run; ``other`` is read before short ones."""
    found: list[float] = []
    for _ in range(runs + WARM):
        if not found or found[-1] < LONG:
            other.sum()
        start = perf_counter()
        run()
        found.append(perf_counter() - start)
    return found[WARM:]


def check(asked: Asked, operands: Sequence[np.ndarray], value: np.ndarray) -> None:
    """Compare a value with its definition at some places.

    Raises:
        SideFailed: it has another shape, or one of them differs.
    """
    if value.shape != asked.result:
        raise SideFailed(f"its result has shape {value.shape} instead of {asked.result}")
    found, wanted = (np.array(each) for each in zip(*_places(asked, operands, value), strict=True))
    difference = np.abs(found - wanted).max() / np.abs(wanted).max()
    if not difference <= TOLERANCE:
        raise SideFailed(f"its results differ by {difference:.2g} of the greatest")


def _places(asked: Asked, operands: Sequence[np.ndarray], value: np.ndarray) -> Iterator[tuple[float, float]]:
    """Some results, each with what it should be."""
    generator = np.random.default_rng(1)
    a, b = (each.astype(np.float64) for each in operands[:2])
    if asked.kind == "conv":
        *_, kernel, stride, pad = asked.shape
        a = np.pad(a, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    for _ in range(PLACES):
        place = tuple(int(generator.integers(extent)) for extent in value.shape)
        if asked.kind == "product":
            wanted = a[place[0]] @ b[:, place[1]]
        else:
            item, one, *pixel = place
            rows, columns = (slice(stride * at, stride * at + kernel) for at in pixel)
            wanted = (a[item, :, rows, columns] * b[one]).sum() + operands[2][one]
        yield float(value[place]), float(wanted)
