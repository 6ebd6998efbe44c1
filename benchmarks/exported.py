"""An exported net: its size, the time to its first result, and its runs beside ``net.predict``, in turns.

    python benchmarks/exported.py [--depth 18] [--batch 1] [--threads 2] [--rounds 30]

The first result: from the start of a program in C to its end after one run, while the file of weights is in the page
cache; and the parts of it, from within. Nothing else may run on the machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import click
import numpy as np
from click.testing import CliRunner
from rich.table import Table

from latte.explain.showing import amount
from latte.tools.bench.report import machine, report_console
from latte.tools.cli import main as latte
from latte.tools.export.calling import Library, Model
from latte.tools.net_files import load_net
from swirl.config import available_cores
from swirl.target.machine import resolve_target

NETS = Path(__file__).resolve().parent.parent / "examples" / "nets"
FIRST = 7
"""Starts of the program."""
WARM = 3


@click.command()
@click.option("--depth", type=int, default=18, show_default=True, help="Of the residual net.")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Images at a time.")
@click.option("--threads", type=click.IntRange(1, 4096), help="By default all cores.")
@click.option("--rounds", type=click.IntRange(1), default=30, show_default=True, help="Of the turns.")
def main(depth: int, batch: int, threads: int | None, rounds: int) -> None:
    """Export a residual net for the best target of this machine, build it, and measure it."""
    target, threads = resolve_target().name, threads or available_cores()
    with tempfile.TemporaryDirectory() as scratch:
        file, folder = Path(scratch, "exported_net.py"), Path(scratch, "out")
        file.write_text(
            f"import sys\nsys.path.insert(0, {str(NETS)!r})\nfrom resnet import resnet\n"
            f"net = resnet({depth}, {batch}, seed=0)\n"
        )
        done = CliRunner().invoke(latte, ["export", str(file), "--out", str(folder), "--target", target])
        if done.exit_code != 0:
            raise click.ClickException(done.output)
        subprocess.run(["make", "-s", "-j", str(available_cores()), "all", "shared"], cwd=folder, check=True)
        images = np.random.default_rng(0).standard_normal((batch, 3, 224, 224)).astype(np.float32)
        table = Table(
            "what", "", title=f"ResNet-{depth}, {batch} × 3 × 224 × 224, {target}, {threads} threads: {machine()}"
        )
        table.add_row("library (.so, stripped)", amount(_stripped(folder), "B"))
        table.add_row("weights", amount((folder / "weights.bin").stat().st_size, "B"))
        table.add_row(f"first result of a program, median of {FIRST}", _milliseconds(_first_results(folder, threads)))
        loading, first, model = _parts(folder, threads, images)
        table.add_row("of it: loading, then the first run", f"{loading * 1e3:.1f} ms, {first * 1e3:.1f} ms")
        net = load_net(file)
        net.compile(target=target, threads=threads)
        assert model.run(images)[0].tobytes() == net.predict(images).tobytes(), "they compute the same bits"
        exported, predicted = _in_turns(rounds, lambda: model.run(images), lambda: net.predict(images))
        table.add_row(f"a run of the library, median of {rounds}", _milliseconds(exported))
        table.add_row("net.predict", _milliseconds(predicted))
        table.add_row("net.predict ÷ the library", f"{median(predicted) / median(exported):.3f}")
        report_console().print(table)


def _stripped(folder: Path) -> int:
    subprocess.run(["strip", "-o", "stripped.so", "liblatte.so"], cwd=folder, check=True)
    return (folder / "stripped.so").stat().st_size


def _first_results(folder: Path, threads: int) -> list[float]:
    """Seconds from the start of ``main`` to its end, with made-up inputs."""
    found = []
    for _ in range(FIRST):
        start = perf_counter()
        subprocess.run(["env", f"OMP_NUM_THREADS={threads}", "./main"], cwd=folder, check=True, capture_output=True)
        found.append(perf_counter() - start)
    return found


def _parts(folder: Path, threads: int, images: np.ndarray) -> tuple[float, float, Model]:
    """Seconds of loading and of the first run, and the model."""
    library = Library(folder / "liblatte.so")
    start = perf_counter()
    model = library.load(folder / "weights.bin", threads=threads)
    loaded = perf_counter()
    model.run(images)
    return loaded - start, perf_counter() - loaded, model


def _in_turns(rounds: int, *sides: Callable[[], object]) -> list[list[float]]:
    """Seconds of each side, run in turns."""
    found: list[list[float]] = [[] for _ in sides]
    for number in range(WARM + rounds):
        for side, seconds in zip(sides, found, strict=True):
            start = perf_counter()
            side()
            if number >= WARM:
                seconds.append(perf_counter() - start)
    return found


def _milliseconds(seconds: list[float]) -> str:
    return f"{median(seconds) * 1e3:.1f} ms ({min(seconds) * 1e3:.1f} to {max(seconds) * 1e3:.1f})"


if __name__ == "__main__":
    sys.exit(main())
