"""What compiling took."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from latte.model.source_location import user_stacklevel
from latte.planning.plan import Untuned
from latte.planning.unused_recipes import UnusedRecipe
from swirl.build.libraries import Built

PYTHON = ("lowering", "differentiating", "scheduling", "generating")
"""The parts of a compilation that come before the C++ compiler."""


class NotTuned(UserWarning):
    """A layer's recipe has left a phase to the default schedule: given once, for the first."""


class DoubtfulCommand(UserWarning):
    """A command of your own recipe does nothing, little, or harm. Given once, for the first one."""


class RecipeUnused(UserWarning):
    """A file in the folder ``LATTE_RECIPES`` has nobody's name: given once, for the first."""


@dataclass(frozen=True)
class FixedSize:
    """A phase of a layer, or of layers that are compiled together, that is right for whole batches alone.

    Args:
        layer: its name, or theirs.
        phase: of the layer.
        reason: why.
    """

    layer: str
    phase: str
    reason: str

    def __str__(self) -> str:
        return f"{self.layer} {self.phase}: {self.reason}"


@dataclass(frozen=True)
class CompileReport:
    """What compiling took.

    Args:
        kernels: number of kernels; ``cached`` of them were found on disk.
        seconds: of this compilation, all in all.
        times: where they went: ``lowering``, ``differentiating``, ``scheduling`` (recipes and layouts), ``generating``
            (C++), ``compiling`` (waiting for the C++ compiler), ``binding`` (memory and initial values).
        units: layers and chains that were scheduled; ``known`` of them were kept from before, or are equal to others.
        compiler_seconds: what the C++ compiler took for all kernels when they were compiled (kept with the cache).
        folder: of the generated code.
        built: the kernels, by their libraries.
        untuned: phases that a layer's recipe has left to the default schedule, with the reasons.
        fixed: phases that are right for whole batches alone, with the reasons: for each other number of items, the net
            is compiled again when it first has so many (for inference, if one of them is of inference).
        cautions: commands of your own recipes that do nothing, little, or harm, with their places.
        unused: files in the folder ``LATTE_RECIPES`` that no layer gets, as their names are nobody's.
    """

    kernels: int
    cached: int
    seconds: float
    times: Mapping[str, float]
    units: int
    known: int
    compiler_seconds: float
    folder: Path
    built: Mapping[Path, Built] = field(default_factory=dict, repr=False)
    untuned: Sequence[Untuned] = ()
    fixed: Sequence[FixedSize] = ()
    cautions: Sequence[str] = ()
    unused: Sequence[UnusedRecipe] = ()

    @property
    def generating(self) -> float:
        """Seconds of this compilation in passes and recipes."""
        return sum(self.times.get(part, 0.0) for part in PYTHON)

    @property
    def compiled(self) -> int:
        """Number of kernels that the C++ compiler made now."""
        return self.kernels - self.cached


class Times:
    """Where the time of a compilation goes: ``with times("scheduling"): …``."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @property
    def total(self) -> float:
        """Seconds so far, all in all."""
        return sum(self.seconds.values())

    def add(self, part: str, seconds: float) -> None:
        """Count seconds for a part."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Count what is done inside for a part."""
        start = perf_counter()
        try:
            yield
        finally:
            self.add(part, perf_counter() - start)


def make_report(
    built: Iterable[Built],
    seconds: float,
    times: Mapping[str, float],
    units: int = 0,
    known: int = 0,
    untuned: Iterable[Untuned] = (),
    fixed: Iterable[FixedSize] = (),
    cautions: Iterable[str] = (),
    unused: Iterable[UnusedRecipe] = (),
) -> CompileReport:
    """What compiling ``built`` took; a kernel that occurs twice counts once."""
    unique: dict[Path, Built] = {}
    for item in built:
        unique.setdefault(item.path, item)
    folder = next(iter(unique)).parent.parent if unique else Path()
    cached = sum(item.cached for item in unique.values())
    compiler_seconds = sum(item.seconds for item in unique.values())
    left, nobodys = tuple(dict.fromkeys(untuned)), tuple(dict.fromkeys(unused))
    sized, doubts = tuple(dict.fromkeys(fixed)), tuple(dict.fromkeys(cautions))
    numbers = len(unique), cached, seconds, times, units, known, compiler_seconds
    return CompileReport(*numbers, folder, unique, left, sized, doubts, nobodys)


def sum_of_reports(reports: Sequence[CompileReport]) -> CompileReport:
    """Several compilations as one; a kernel that one made and later ones found counts as made."""
    built = (item for report in reports for item in report.built.values())
    untuned = (each for report in reports for each in report.untuned)
    fixed = (each for report in reports for each in report.fixed)
    cautions = (each for report in reports for each in report.cautions)
    unused = (each for report in reports for each in report.unused)
    times: Counter[str] = Counter()
    for report in reports:
        times.update(report.times)
    seconds, units, known = (sum(getattr(r, name) for r in reports) for name in ("seconds", "units", "known"))
    return make_report(built, seconds, dict(times), units, known, untuned, fixed, cautions, unused)


def warn_not_tuned(report: CompileReport) -> None:
    """Warn of the phases that recipes have left."""
    first, *others = report.untuned
    more = f" (and {len(others)} more, in net.report.untuned)" if others else ""
    message = f"not tuned: {first}{more}; the default schedule takes its place"
    warnings.warn(message, NotTuned, stacklevel=user_stacklevel())


def warn_doubtful(report: CompileReport) -> None:
    """Warn of commands that do nothing, little, or harm."""
    first, *others = report.cautions
    more = f" (and {len(others)} more, in net.report.cautions)" if others else ""
    warnings.warn(f"{first}{more}", DoubtfulCommand, stacklevel=user_stacklevel())


def warn_unused(report: CompileReport) -> None:
    """Warn of the recipes that no layer gets."""
    first, *others = report.unused
    more = f" (and {len(others)} more, in net.report.unused)" if others else ""
    warnings.warn(f"a recipe that no layer gets: {first}{more}", RecipeUnused, stacklevel=user_stacklevel())
