"""What each command of a recipe does for the time: the kernels after each step, side by side.

    python -m latte.tools.bench.steps [--recipe FILE] [--phase forward] [--rounds 9] [--write docs/convolution.md]

A convolution is compiled with the first commands of a recipe, then with some more, until all are there; all kernels
compute the same (compared exactly, on whole numbers), and take turns. ``--write`` puts the tables, the machine and the
innermost loop's instructions into a page, between ``<!-- measured forward -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
from rich.console import Console

from latte import ConvLayer, MemoryDataLayer, Net
from latte.tools.bench.assembly import busiest_loop, counts, instructions
from latte.tools.bench.report import machine, replaced, spread
from latte.tools.bench.walk import Step, steps
from latte.tools.net_files import AtLeastOne, plain_errors
from latte.tools.tune_by_hand import Bench, Trial
from swirl.ir.phases import PHASES
from swirl.measure.rates import Measured
from swirl.target.machine import resolve_target
from swirl.target.targets import TARGETS, Target

SHAPE = (16, 64, 64, 28)
"""Images, input channels, output channels, height and width; the kernel is 3 × 3."""


def recipe_file() -> Path:
    """The recipe that the documentation goes through."""
    return Path(__file__).parents[3] / "recipes" / "conv.py"


def convolution(shape: tuple[int, int, int, int] = SHAPE) -> Net:
    """A net of one convolution, ``conv1``, whose gradients are all wanted."""
    images, channels, filters, extent = shape
    net = Net(images, seed=1)
    net.force_backward = True
    ConvLayer(net, MemoryDataLayer(net, (channels, extent, extent)), num_filters=filters, kernel=3, pad=1)
    return net


@dataclass(frozen=True)
class Timed:
    """A step and its kernel."""

    step: Step
    trial: Trial


def compiled(
    shape: tuple[int, int, int, int], phase: str, recipe: Path, target: Target, threads: int | None, folder: Path
) -> tuple[Bench, list[Timed]]:
    """The kernel after each step of a phase; all compute the same.

    Raises:
        SystemExit: two of them do not.
        LatteError: the recipe was refused.
    """
    net = convolution(shape)
    path = folder / f"{phase}.py"
    others = [f"def {other}(s, target):\n    pass\n" for other in PHASES if other != phase]  # no layouts of defaults
    path.write_text("\n".join([*others, f"def {phase}(s, target):\n    pass\n"]), encoding="utf-8")
    bench = Bench(net, "conv1", phase, target, path, threads, whole_numbers=True)
    found: list[Timed] = []
    expected: dict[str, np.ndarray] = {}
    lines = ["    pass"]
    for step in steps(net, "conv1", phase, recipe, target):
        if step.key == "finished":
            continue
        lines += [f"    s.{command.text}" for command in step.commands]
        path.write_text("\n".join([*others, f"def {phase}(s, target):", *lines]) + "\n", encoding="utf-8")
        trial = bench.compile()
        results = bench.results(trial)
        expected = expected or results
        for name, array in expected.items():
            if not np.array_equal(array, results[name]):
                raise SystemExit(f"{phase}, after {step.key}: {name} is not what it was")
        found.append(Timed(step, trial))
    return bench, found


def table(found: Sequence[Timed], measured: Measured) -> str:
    """The steps and their times, in Markdown."""
    rows = [
        "| after | time (middle half) | GFLOP/s | times as fast as before | of the peak |",
        "| --- | --- | --- | --- | --- |",
    ]
    operations = found[0].trial.work.operations
    before: float | None = None
    for timed, times in zip(found, measured.kernels, strict=True):
        rate = operations / times.median
        ratio = "" if before is None else f"{before / times.median:.2f}"
        cells = [timed.step.key, spread(times.runs), f"{rate / 1e9:.1f}", ratio, f"{rate / measured.peak:.1%}"]
        rows.append(f"| {' | '.join(cells)} |")
        before = times.median
    return "\n".join(rows)


def report(bench: Bench, found: Sequence[Timed], measured: Measured) -> str:
    """The part of the page: table, machine, innermost loop."""
    threads = "1 thread" if bench.runner.threads == 1 else f"{bench.runner.threads} threads"
    words = (
        f"{machine()}; {threads}. The peak, {measured.peak / 1e9:.0f} GFLOP/s, is that of multiply-adds in "
        f"registers, measured in the same minutes. {len(measured.kernels[0].runs)} rounds, in each of which all "
        "kernels took their turn twice; the second run counts."
    )
    loop = busiest_loop(instructions(found[-1].trial.library, found[-1].trial.kernel.name))
    shown = [*loop[:14], f"…  {len(loop) - 20} more", *loop[-6:]] if len(loop) > 24 else loop
    listing = "\n".join(shown)
    return (
        f"{table(found, measured)}\n\n{words}\n\nThe innermost loop of the last kernel: {counts(loop)}.\n\n"
        f"```text\n{listing}\n```"
    )


@click.command()
@click.option(
    "--recipe",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=recipe_file,
    help="By default the one of docs/convolution.md.",
)
@click.option("--phase", "phases", multiple=True, type=click.Choice(PHASES), default=PHASES, help="By default all.")
@click.option(
    "--shape",
    nargs=4,
    type=AtLeastOne,
    default=SHAPE,
    show_default=True,
    help="Images, channels, filters, height.",
)
@click.option("--target", type=click.Choice(list(TARGETS)), help="By default the best that this machine runs.")
@click.option("--threads", type=AtLeastOne, default=None, help="By default all cores.")
@click.option("--rounds", type=AtLeastOne, default=9, show_default=True, help="How often the kernels take turns.")
@click.option("--write", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Page to write into.")
@plain_errors()
def main(
    recipe: Path,
    phases: Sequence[str],
    shape: tuple[int, int, int, int],
    target: str | None,
    threads: int | None,
    rounds: int,
    write: Path | None,
) -> None:
    """Time the kernels after each step of a recipe."""
    console = Console(width=160)
    chosen = resolve_target(target)
    for phase in phases:
        with TemporaryDirectory() as folder:
            bench, found = compiled(shape, phase, recipe, chosen, threads, Path(folder))
            kernels = [(timed.trial.kernel, timed.trial.arrays) for timed in found]
            measured = bench.limits.measure(kernels, seconds=3600.0, rounds=rounds)
        text = report(bench, found, measured)
        console.print(f"{phase}\n{text}\n", markup=False, highlight=False)
        if write is not None:
            write.write_text(replaced(write.read_text(encoding="utf-8"), f"measured {phase}", text), encoding="utf-8")


if __name__ == "__main__":
    main()
