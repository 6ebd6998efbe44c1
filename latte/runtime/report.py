"""What compiling took."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from latte.model.source_location import user_stacklevel
from latte.planning.plan import Untuned
from swirl.libraries import Built


class NotTuned(UserWarning):
    """A layer's recipe has left a phase to the default schedule: given once, for the first."""


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
        seconds: of this compilation, all in all; ``generating`` of it in passes and recipes.
        compiler_seconds: what the C++ compiler took for all kernels when they were compiled (kept with the cache).
        folder: of the generated code.
        built: the kernels, by their libraries.
        untuned: phases that a layer's recipe has left to the default schedule, with the reasons.
        fixed: phases that are right for whole batches alone, with the reasons: for each other number of items, the net
            is compiled again when it first has so many (for inference, if one of them is of inference).
    """

    kernels: int
    cached: int
    seconds: float
    generating: float
    compiler_seconds: float
    folder: Path
    built: Mapping[Path, Built] = field(default_factory=dict, repr=False)
    untuned: Sequence[Untuned] = ()
    fixed: Sequence[FixedSize] = ()

    @property
    def compiled(self) -> int:
        """Number of kernels that the C++ compiler made now."""
        return self.kernels - self.cached


def make_report(
    built: Iterable[Built],
    seconds: float,
    generating: float,
    untuned: Iterable[Untuned] = (),
    fixed: Iterable[FixedSize] = (),
) -> CompileReport:
    """What compiling ``built`` took; a kernel that occurs twice counts once."""
    unique: dict[Path, Built] = {}
    for item in built:
        unique.setdefault(item.path, item)
    folder = next(iter(unique)).parent.parent if unique else Path()
    cached = sum(item.cached for item in unique.values())
    compiler_seconds = sum(item.seconds for item in unique.values())
    left, sized = tuple(dict.fromkeys(untuned)), tuple(dict.fromkeys(fixed))
    return CompileReport(len(unique), cached, seconds, generating, compiler_seconds, folder, unique, left, sized)


def sum_of_reports(reports: Sequence[CompileReport]) -> CompileReport:
    """Several compilations as one; a kernel that one made and later ones found counts as made."""
    built = (item for report in reports for item in report.built.values())
    untuned = (each for report in reports for each in report.untuned)
    fixed = (each for report in reports for each in report.fixed)
    return make_report(built, sum(r.seconds for r in reports), sum(r.generating for r in reports), untuned, fixed)


def warn_not_tuned(report: CompileReport) -> None:
    """Warn of the phases that recipes have left."""
    first, *others = report.untuned
    more = f" (and {len(others)} more, in net.report.untuned)" if others else ""
    message = f"not tuned: {first}{more}; the default schedule takes its place"
    warnings.warn(message, NotTuned, stacklevel=user_stacklevel())
