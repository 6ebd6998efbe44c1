"""``latte tune --plot``: what a log says of each phase, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latte.profiling.roofline import check_plot
from swirl.errors import CommandError
from swirl.measure.rates import lower_quartile
from swirl.tune.expect import TAUS, best_so_far, expect
from swirl.tune.log import CandidateLine, SubjectLine, read_log

MOST = 8
"""Phases that are drawn: those with most candidates."""


@dataclass(frozen=True)
class Drawn:
    """The candidates of a phase that were measured.

    Args:
        name: ``conv1 forward, avx512``.
        shares: of the machine's limit, in the order of measuring.
        random: of these, those of random draws.
        predicted, seconds: of each.
    """

    name: str
    shares: tuple[float, ...]
    random: tuple[float, ...]
    predicted: tuple[float, ...]
    seconds: tuple[float, ...]


def phases(folder: Path) -> list[Drawn]:
    """The phases of a log, those with most candidates first."""
    subjects: dict[str, SubjectLine] = {}
    lines: dict[str, dict[str, CandidateLine]] = {}
    for line in read_log(folder):
        if isinstance(line, SubjectLine):
            subjects[line.subject] = line
        elif isinstance(line, CandidateLine) and line.ratio is not None:
            lines.setdefault(line.subject, {})[line.key] = line
    found = []
    for key, own in lines.items():
        subject = subjects.get(key)
        if subject is None:
            continue
        shares = {each.key: subject.limit / (each.ratio or 1) for each in own.values()}
        drawn = [each.key for each in own.values() if each.method == "random"]
        found.append(
            Drawn(
                f"{subject.layer} {subject.phase}, {subject.target}",
                tuple(shares.values()),
                tuple(shares[each] for each in drawn),
                tuple(each.predicted for each in own.values()),
                tuple(lower_quartile(each.seconds) for each in own.values()),
            )
        )
    return sorted(found, key=lambda each: -len(each.shares))


def plot(folder: Path, path: Path) -> int:
    """Draw, for each phase of a log, the best over time, the distribution with ``expect(n, τ)``, and what the model
    predicted beside what was measured.

    Args:
        folder: with the log.
        path: of the picture; its suffix gives the format.

    Returns:
        the number of phases.

    Raises:
        CommandError: there is nothing to draw, matplotlib is missing, or it knows no such format.
    """
    check_plot(path)
    found = phases(folder)[:MOST]
    if not found:
        raise CommandError(f"{folder} has no log with candidates that were measured", way_out="latte tune FILE first")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.2 * len(found)))
    figure.set_layout_engine("constrained")
    rows = figure.subplots(len(found), 3, squeeze=False)
    for axes, each in zip(rows, found, strict=True):
        _over_time(axes[0], each)
        _distribution(axes[1], each)
        _model(axes[2], each)
    figure.savefig(path, dpi=120)
    return len(found)


def _over_time(axes: Any, drawn: Drawn) -> None:
    axes.plot(range(1, len(drawn.shares) + 1), [100 * each for each in best_so_far(drawn.shares)])
    axes.scatter(range(1, len(drawn.shares) + 1), [100 * each for each in drawn.shares], s=6, alpha=0.4)
    axes.set(title=drawn.name, xlabel="candidates", ylabel="% of the machine's limit")


def _distribution(axes: Any, drawn: Drawn) -> None:
    random: Sequence[float] = drawn.random or drawn.shares
    axes.hist([100 * each for each in random], bins=25, density=True, color="0.8")
    above = axes.twinx()
    counts = sorted({1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 200, 500, 1000})
    for tau in TAUS:
        above.plot([100 * expect(random, n, tau) for n in counts], counts, label=f"expect(n, {tau})")
    above.set(yscale="log", ylabel="draws")
    above.legend(fontsize="small")
    what = "random draws" if drawn.random else "candidates"
    axes.set(title=f"{len(random)} {what}", xlabel="% of the machine's limit", ylabel="density")


def _model(axes: Any, drawn: Drawn) -> None:
    axes.scatter([1e3 * each for each in drawn.predicted], [1e3 * each for each in drawn.seconds], s=6)
    ends = 1e3 * min(*drawn.predicted, *drawn.seconds), 1e3 * max(*drawn.predicted, *drawn.seconds)
    axes.plot(ends, ends, color="0.7")
    axes.set(xscale="log", yscale="log", xlabel="predicted, ms", ylabel="measured, ms", title="the cost model")
