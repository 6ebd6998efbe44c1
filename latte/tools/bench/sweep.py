"""``latte bench --sweep``: our side along lines through base shapes, and where its rate falls between neighbours."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from latte.model.checks import is_integer, is_number
from latte.tools.bench.alternate import run_count, turn, write_data
from latte.tools.bench.cases import KINDS, Case, parsed
from latte.tools.bench.ours import IN_BLOCKS
from latte.tools.bench.workers import OURS, Side, Workers
from latte.tools.results import write_results
from swirl.errors import LatteError

BASES = {
    "conv": "16,64,64,56 16,128,128,28 16,256,256,14 16,512,512,7 16,64,256,56,1 16,512,128,28,1 16,128,128,56,3,2 "
    "16,3,64,112,7,2 16,48,128,7,5",
    "cbr": "16,64,64,56 16,64,256,56,1",
    "bn": "16,64,56 16,192,28 16,512,7",
    "bn-relu": "16,256,14",
    "relu": "16,64,56",
    "pool": "16,64,112 16,192,28,3,1",
    "fc": "64,2048,1000 64,4096,512",
}
"""The twenty shapes that lines go through."""
FALL = 0.5
"""Of the better neighbour's share of the limit: what is below is listed."""
SHORT = 5e-5
"""Seconds: what takes less is not called slow, as starting threads takes longer."""
ROUNDS = 2


@dataclass(frozen=True)
class Point:
    """A case, and whether its source is in blocks of channels."""

    case: Case
    blocks: bool

    def __str__(self) -> str:
        return f"{self.case} {'blocks' if self.blocks else 'plain'}"


@dataclass(frozen=True)
class Rates:
    """What was measured at a point.

    Args:
        seconds: by phase, the least.
        shares: by phase, of the machine's limit at the same time.
        untuned: phases that a recipe has left to the default schedule, with the reasons.
        failed: why nothing could be measured.
        times: how often it was measured.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    untuned: Sequence[str] = ()
    failed: str = ""
    times: int = 1

    @property
    def measured(self) -> bool:
        """Whether all of it is what measuring gives: in a file, it may be anything."""
        by_phase = all(isinstance(each, dict) for each in (self.seconds, self.shares))
        if not (by_phase and isinstance(self.failed, str) and is_integer(self.times) and self.times >= 1):
            return False
        if not self.failed and (not self.seconds or self.seconds.keys() != self.shares.keys()):
            return False
        numbers = [*self.seconds.values(), *self.shares.values()]
        told = isinstance(self.untuned, (list, tuple)) and all(isinstance(each, str) for each in self.untuned)
        return told and all(is_number(each) and math.isfinite(each) and each > 0 for each in numbers)

    def better(self, other: Rates) -> Rates:
        """The best of two measurements of one point."""
        seconds = {phase: min(taken, other.seconds.get(phase, taken)) for phase, taken in self.seconds.items()}
        shares = {phase: max(share, other.shares.get(phase, share)) for phase, share in self.shares.items()}
        return replace(self, seconds=seconds, shares=shares, times=self.times + other.times)


@dataclass(frozen=True)
class Fall:
    """A place where the rate falls.

    Args:
        point, neighbour: on one line.
        phase: of the layer.
        share, beside: of the limit, at the point and at the neighbour.
        reasons: that the compiler gave for this point.
    """

    point: str
    neighbour: str
    phase: str
    share: float
    beside: float
    reasons: tuple[str, ...]

    @property
    def expected(self) -> float:
        """The neighbour's share, but no more than the limit, which small arrays exceed that stay in the caches."""
        return min(1.0, self.beside)

    def __str__(self) -> str:
        why = f"; {'; '.join(self.reasons)}" if self.reasons else ""
        return (
            f"{self.point} {self.phase}: {self.share:.1%} of the limit, where {self.neighbour} has "
            f"{self.beside:.1%}{why}"
        )


def bases(kind: str | None, shapes: Sequence[str] = ()) -> list[Case]:
    """The base shapes: those given, or the twenty, or those of a kind.

    Raises:
        click.BadParameter: see :func:`latte.tools.bench.cases.parsed`.
    """
    if kind is not None and shapes:
        return [parsed(kind, text) for text in shapes]
    return [parsed(name, text) for name, texts in BASES.items() if kind in (None, name) for text in texts.split()]


def lines(base: Case, blocks: bool | None = None) -> Iterator[list[Point]]:
    """Lines through a base shape: points that differ in one extent, or in the source's layout, in order.

    Args:
        base: the shape.
        blocks: only such sources; both by default.
    """
    own = base.comes_in_blocks if blocks is None else blocks
    own = own and base.kind in IN_BLOCKS
    for name in KINDS[base.kind]:
        values = _values(base, name)
        if len(values) > 1:
            yield [Point(_with(base, name, value), own) for value in values]
    if blocks is None and base.kind in IN_BLOCKS:
        yield [Point(base, False), Point(base, True)]


def _with(base: Case, name: str, value: int) -> Case:
    changed: dict[str, Any] = {name: value}
    return replace(base, **changed)


def _values(base: Case, name: str) -> list[int]:
    value = getattr(base, name)
    if name == "kernel":
        found = {2, 3, value} if base.kind == "pool" else {1, 3, 5, value}
    elif name == "stride":
        found = {1, 2, value}
    elif name == "batch":
        found = {1, value - 1, value}
    else:
        found = {value // 2, value - 1, value, value + 1}
    return sorted(number for number in found if number > 0)


def measure(point: Point, threads: int, target: str | None) -> Rates:
    """The rates of our side at a point."""
    try:
        with Workers(point.case, threads, target, point.blocks) as workers:
            ours = workers.start(Side(OURS, peer=False))
            data = workers.path("data.npz")
            write_data(point.case, ours.about["value"], data)
            ours.results(data)
            seconds: dict[str, float] = {}
            shares: dict[str, float] = {}
            for phase in ours.about["phases"]:
                runs = run_count(ours, phase)
                seconds[phase] = min(taken for _ in range(ROUNDS) for taken in turn(ours, phase, runs).seconds)
                work, limits = ours.ask(do="work", phase=phase), ours.ask(do="limits")
                least = max(work["operations"] / limits["peak"], work["bytes"] / limits["bandwidth"])
                shares[phase] = least / seconds[phase]
            return Rates(seconds, shares, ours.about["untuned"])
    except LatteError as error:
        return Rates(failed=error.message)


def falls(through: Iterable[Sequence[Point]], found: Mapping[str, Rates]) -> list[Fall]:
    """The places on lines where the rate is below a part of a neighbour's, each once: beside the best of its
    neighbours.

    Args:
        through: the lines.
        found: by the points' texts, what was measured; what was not is left out.
    """
    worst: dict[tuple[str, str], Fall] = {}
    for line in through:
        for pair in pairwise(line):
            for point, neighbour in (pair, pair[::-1]):
                own, other = found.get(str(point), Rates()), found.get(str(neighbour), Rates())
                for phase in own.shares.keys() & other.shares.keys():
                    if own.seconds[phase] < SHORT:
                        continue
                    reasons = tuple(why for why in own.untuned if f" {phase}," in why)
                    shares = own.shares[phase], other.shares[phase]
                    fall = Fall(str(point), str(neighbour), phase, *shares, reasons)
                    known = worst.get((str(point), phase))
                    if fall.share < FALL * fall.expected and (known is None or known.beside < fall.beside):
                        worst[str(point), phase] = fall
    return sorted(worst.values(), key=lambda fall: fall.share / fall.expected)


@dataclass
class Sweep:
    """A sweep that a file remembers: what is in it is not measured again.

    Args:
        cases: the base shapes.
        about: machine, target, threads: what rates depend on.
        blocks: only such sources; both by default.
        path: of the file; None forgets.
        found: by the points' texts, what was measured.
    """

    cases: Sequence[Case]
    about: Mapping[str, Any]
    blocks: bool | None = None
    path: Path | None = None
    found: dict[str, Rates] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lines = [line for case in self.cases for line in lines(case, self.blocks)]
        self.points = {str(point): point for line in self.lines for point in line}
        if self.path is not None and self.path.exists():
            self.found |= _read(self.path, self.about)

    @property
    def missing(self) -> list[Point]:
        """The points that have not been measured, or have failed."""
        return [point for text, point in self.points.items() if self.found.get(text, Rates(failed="not yet")).failed]

    def run(self, kernels: int, told: Callable[[str], None], measured: Callable[[Point], Rates]) -> None:
        """Measure what is missing, until so many kernels have been; then what has fallen a second time, beside its
        neighbour.

        Args:
            kernels: at the most.
            told: of each point that is done, and each that comes.
            measured: measures a point.
        """
        count = 0
        for point in self.missing:
            if count >= kernels:
                break
            told(f"{len(self.points) - len(self.missing)} of {len(self.points)} points: {point}")
            rates = measured(point)
            count += len(rates.seconds)
            self._keep(str(point), rates)
        again = dict.fromkeys(text for fall in falls(self.lines, self.found) for text in (fall.point, fall.neighbour))
        for text in again:
            if self.found[text].times > 1 or count >= kernels:
                continue
            told(f"a second time: {text}")
            rates = measured(self.points[text])
            count += len(rates.seconds)
            self._keep(text, self.found[text].better(rates))

    def _keep(self, text: str, rates: Rates) -> None:
        self.found[text] = rates
        if self.path is not None:  # after each point: an interrupted run loses nothing
            points = {name: asdict(each) for name, each in self.found.items()}
            listed = [asdict(fall) for fall in falls(self.lines, self.found)]
            write_results(self.path, json.dumps({**self.about, "points": points, "falls": listed}, indent=1) + "\n")


def code_digest() -> str:
    """Of the sources that rates depend on: rates of other ones are not mixed with theirs."""
    found = hashlib.sha256()
    for folder in (Path(str(resources.files(package))) for package in ("latte", "swirl")):
        for path in _sources(folder):
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _sources(folder: Path) -> list[Path]:
    """Python and templates of a package; recipes and layers are links in a checkout."""
    inside = [Path(where) / name for where, _, names in os.walk(folder, followlinks=True) for name in names]
    return sorted(path for path in inside if path.suffix in (".py", ".j2"))


def _read(path: Path, about: Mapping[str, Any]) -> dict[str, Rates]:
    """What a file remembers.

    Raises:
        LatteError: it is not a sweep's, or of another machine, target or number of threads.
    """
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        names = {each.name for each in fields(Rates)}
        points = {text: Rates(**{name: rates[name] for name in names}) for text, rates in kept["points"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LatteError(f"{path} is not the file of a sweep, or damaged", way_out="name another file") from error
    damaged = next((text for text, rates in points.items() if not rates.measured), None)
    if damaged is not None:
        raise LatteError(f"{path} is damaged at {damaged!r}", way_out="take this point out, or name another file")
    for name, value in about.items():
        if kept.get(name) != value:
            told = f"{path} was measured with {name} {kept.get(name)}, not {value}"
            raise LatteError(told, way_out="name another file")
    return points
