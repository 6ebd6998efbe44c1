"""What ``latte bench`` plots, to PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from latte.tools.bench.alternate import Row, sides_but
from latte.tools.bench.breakdown import Operators, level_shares, milliseconds
from latte.tools.bench.levels import LEVELS
from latte.tools.bench.workers import OURS


def ratios(rows: Sequence[Row], title: str, path: Path) -> None:
    """How many times as fast as each peer, a group of bars for each row."""
    peers = sides_but(rows, OURS)
    figure, axes = _axes(len(rows))
    width = 0.8 / max(1, len(peers))
    for number, name in enumerate(peers):
        places = [at + number * width for at, row in enumerate(rows) if name in row.seconds]
        axes.bar(places, [row.ratio(name) for row in rows if name in row.seconds], width, label=name)
    axes.axhline(1.0, color="black", linewidth=0.8)
    _cases(axes, [f"{row.case.shape}\n{row.phase}" for row in rows], 0.4 - width / 2)
    axes.set_ylabel(f"time / {OURS}'s time")
    _save(figure, axes, title, path)


def optimisations(rows: Sequence[Row], title: str, path: Path) -> None:
    """Shares of our speed, a bar for each row: what each level adds to it; and the peers' speeds as marks."""
    figure, axes = _axes(len(rows))
    below = [0.0] * len(rows)
    for number, name in enumerate((*LEVELS, "+ threads")):
        added = [max(0.0, level_shares(row)[number]) for row in rows]
        axes.bar(range(len(rows)), added, 0.6, bottom=below, label=name)
        below = [low + more for low, more in zip(below, added, strict=True)]
    for name, mark in zip(sides_but(rows, OURS, *LEVELS), "o^sD", strict=False):
        places = [at for at, row in enumerate(rows) if name in row.seconds]
        axes.plot(places, [1 / rows[at].ratio(name) for at in places], mark, color="black", label=name)
    _cases(axes, [f"{row.case.shape}\n{row.case.batch / row.median():.0f} images/s" for row in rows], 0.0)
    axes.set_ylabel(f"speed, {OURS} with all of it is 1")
    _save(figure, axes, title, path)


def operators(found: Sequence[Operators], title: str, path: Path) -> None:
    """Milliseconds of each operator alone, forward and backward, a bar for each side; all together is a mark."""
    sides = [OURS, *sides_but([one.whole["step"] for one in found], OURS)]
    figure, axes = _axes(len(found) * len(sides))
    names: list[str] = []
    places: list[int] = []
    for at, one in enumerate(found):
        for number, side in enumerate(sides):
            if any(side not in row.seconds for rows in (*one.parts.values(), one.whole) for row in rows.values()):
                continue
            place, below = at * (len(sides) + 1) + number, 0.0
            for color, (operator, rows) in enumerate(one.parts.items()):
                for part, taken in zip(("forward", "backward"), milliseconds(rows, side), strict=True):
                    label = f"{operator} {part}" if not places else None
                    alpha = 1.0 if part == "forward" else 0.55
                    axes.bar(place, taken, 0.8, bottom=below, color=f"C{color}", alpha=alpha, label=label)
                    below += taken
            together = one.whole["step"].median(side) * 1e3
            axes.plot(place, together, "_", color="black", markersize=14, label=None if places else "together")
            places.append(place)
            names.append(f"{one.case.shape}\n{side}, {one.images(side):.0f} images/s")
    axes.set_xticks(places, names, rotation=90)
    axes.set_ylabel("ms")
    _save(figure, axes, title, path)


def _axes(columns: int) -> tuple[Any, Any]:
    import matplotlib  # an extra, which the command has looked for

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(max(8.0, 1.2 * columns), 5.0))
    figure.set_layout_engine("constrained")
    return figure, axes


def _cases(axes: Any, names: Sequence[str], shift: float) -> None:
    axes.set_xticks([at + shift for at in range(len(names))], names, rotation=45, ha="right")


def _save(figure: Any, axes: Any, title: str, path: Path) -> None:
    from matplotlib import pyplot

    axes.set_title(title, fontsize=10)
    figure.legend(loc="outside right upper", fontsize=8)  # beside the bars, not on them
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
