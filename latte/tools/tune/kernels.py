"""``latte tune --micro-kernels``: the table of micro-kernels of this machine, and its picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from latte.profiling.roofline import check_plot
from latte.runtime.files import write_whole
from swirl.errors import LatteError
from swirl.target.machine import processor_name
from swirl.target.targets import Target
from swirl.tune.ttile.measuring import measured
from swirl.tune.ttile.microkernels import KEPT, KernelTable, MicroKernel, microkernels, table_file

SHOWN = 10
"""Micro-kernels that are told at the end."""


def measure_kernels(
    target: Target, folder: Path, resume: bool, tell: Callable[[str], None], show: Callable[[int, int], None]
) -> Path:
    """Measure all micro-kernels of a target, and write the table after each batch.

    Args:
        target: what code is made for.
        folder: of the table; made if it is not there.
        resume: go on from the table that is there, if it is of this processor.
        tell: is told of what the user should know.
        show: is told how many are done, of how many.

    Returns:
        the file of the table.

    Raises:
        LatteError: nothing can be measured, or the table cannot be written.
    """
    kernels = list(microkernels(target.registers))
    path, machine = table_file(folder, target.name), processor_name()
    table = KernelTable(target.name, machine, {}, {})
    if resume and path.exists():
        known = KernelTable.read(path.read_text(encoding="utf-8"), str(path))
        table = known if known.machine == machine else table
    for table in measured(kernels, target, table):  # noqa: B020 (goes on from the one that is known)
        _write(path, table)
        show(len(table.shares) + len(table.refused), len(kernels))
    kept = table.kept
    tell(
        f"{len(kept)} of {len(kernels)} micro-kernels reach {KEPT:.0%} of the peak, {len(table.refused)} were refused; "
        f"the best are {', '.join(f'{each.name} ({table.shares[each]:.0%})' for each in kept[:SHOWN])}"
    )
    return path


def _write(path: Path, table: KernelTable) -> None:
    """All or nothing: a search that is killed leaves the table of the batch before."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, table.written().encode())
    except OSError as error:
        raise LatteError(f"{path} cannot be written: {error.strerror}", way_out="--out names another folder") from error


def plot_table(table: KernelTable, path: Path) -> None:
    """Draw the shares of the peak of micro-kernels of one pixel row and one tap: copies along w beside vectors along k
    (as figure 5.2 of the thesis); those that are kept have a frame.

    Args:
        table: to be drawn.
        path: of the picture; its suffix gives the format.

    Raises:
        CommandError: matplotlib is missing, or it knows no such format.
    """
    check_plot(path)
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    drawn = {each: share for each, share in table.shares.items() if each == MicroKernel(each.k, each.w)}
    wide, tall = max((each.k for each in drawn), default=1), max((each.w for each in drawn), default=1)
    values = [[float("nan")] * wide for _ in range(tall)]
    for each, share in drawn.items():
        values[each.w - 1][each.k - 1] = 100 * share
    figure = Figure(figsize=(2 + 0.5 * wide, 2 + 0.4 * tall))
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    image = axes.imshow(values, origin="lower", extent=(0.5, wide + 0.5, 0.5, tall + 0.5), aspect="auto", vmin=0)
    for each, share in drawn.items():
        axes.text(each.k, each.w, f"{100 * share:.0f}", ha="center", va="center", fontsize="small", color="white")
    for each in set(table.kept) & set(drawn):
        axes.add_patch(Rectangle((each.k - 0.48, each.w - 0.48), 0.96, 0.96, fill=False, edgecolor="red", linewidth=2))
    axes.set(xlabel="vectors along k", ylabel="copies along w", title=f"{table.target}: % of the peak of a core")
    figure.colorbar(image)
    figure.savefig(path, dpi=120)
