"""The roofline: operations a byte against Gflop/s, below what multiply-adds and memory allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latte.explain.showing import amount
from latte.model.source_location import user_location
from latte.profiling.rows import Row
from swirl.errors import CommandError

Axes = Any
"""Of matplotlib, which need not be there."""

MARKERS = {"forward": "o", "backward": "v", "update": "s"}
COLUMN = 30
"""Entries in a column of the key."""


@dataclass(frozen=True)
class Roofs:
    """What the machine can do at the best: floating-point operations a second, bytes a second."""

    peak: float
    bandwidth: float

    @property
    def ridge(self) -> float:
        """Operations a byte from which on memory is not the limit."""
        return self.peak / self.bandwidth


def check_plot(path: object) -> Path:
    """The path of a plot, before anything is measured for it.

    Raises:
        CommandError: it is not a path, its folder does not exist, matplotlib is missing, or it knows no such format.
    """
    location = user_location()
    if not isinstance(path, (str, Path)):
        raise CommandError(f"the path of a plot is a string or a Path, not {path!r}", location=location)
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CommandError(
            "a plot needs matplotlib, which is not installed", location=location, way_out="pip install matplotlib"
        ) from error
    path = Path(path)
    known = Figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise CommandError(
            f"{path}: a plot's format follows from the suffix of its file, which is not known here",
            location=location,
            way_out=f".png, or one of {', '.join(sorted(known))}",
        )
    if not path.parent.is_dir():
        raise CommandError(f"{path}: there is no folder {path.parent}", location=location, way_out="make it first")
    return path


def draw(rows: Sequence[Row], roofs: Roofs, title: str, path: str | Path) -> None:
    """Draw layers and phases below the roofs. The area of a point is its share of the time; the key lists all.

    Raises:
        CommandError: see :func:`check_plot`; or the file cannot be written.
    """
    path = check_plot(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6))
    axes = figure.add_subplot()
    _roofs(axes, rows, roofs)
    handles = [_point(axes, number, row) for number, row in enumerate(rows, 1)]
    axes.set(xscale="log", yscale="log", xlabel="floating-point operations a byte", ylabel="Gflop/s")
    axes.set_title(title, fontsize="medium")
    axes.grid(which="both", alpha=0.2)
    # Without points, a legend would have no columns.
    axes.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        fontsize="x-small",
        frameon=False,
        ncols=max(1, -(-len(rows) // COLUMN)),
    )
    try:
        figure.savefig(path, dpi=150, bbox_inches="tight")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}", location=user_location()) from error


def _roofs(axes: Axes, rows: Sequence[Row], roofs: Roofs) -> None:
    intensities = [row.intensity for row in rows if row.operations] + [roofs.ridge]
    left, right = min(intensities) / 4, max(intensities) * 4
    axes.plot(
        [left, roofs.ridge, right],
        [left * roofs.bandwidth / 1e9, roofs.peak / 1e9, roofs.peak / 1e9],
        color="black",
        linewidth=1.2,
    )
    axes.annotate(
        f"multiply-adds in registers, {amount(roofs.peak, 'flop/s')}",
        (right, roofs.peak / 1e9),
        xytext=(0, 4),
        textcoords="offset points",
        ha="right",
        fontsize="small",
    )
    axes.annotate(
        f"reading memory, {amount(roofs.bandwidth, 'B/s')}",
        (left, left * roofs.bandwidth / 1e9),
        xytext=(6, 0),
        textcoords="offset points",
        va="top",
        fontsize="small",
    )


def _point(axes: Axes, number: int, row: Row) -> Any:
    """A layer and phase: its point, numbered, for the key. What computes nothing has no place in the plot."""
    shares = f"{row.share:.1%} of the time, {row.of_limit:.0%} of the {row.bound} limit"
    label = f"{number}  {row.ensemble} {row.phase}: {shares}"
    if not row.operations:
        (empty,) = axes.plot([], [], " ", label=f"{label}, no arithmetic")
        return empty
    at = (row.intensity, row.gflop_per_second)
    axes.annotate(str(number), at, xytext=(5, 3), textcoords="offset points", fontsize="x-small")
    return axes.scatter(
        *at, s=12 + 400 * row.share, marker=MARKERS.get(row.phase, "o"), alpha=0.6, color=f"C{number % 10}", label=label
    )
