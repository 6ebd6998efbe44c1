"""Layers beside hand-written kernels, alternately in one run.

    python benchmarks/prototypes.py --folder DIR [--target avx2] [--only 'batch norm.*step'] [--rounds 7] [--runs 12]

DIR holds executables of the target that time themselves (``bn``, …); each prints lines ``P NAME: min 1.23 med 1.31`` or
``NAME  min 1.23 med 1.31 ms`` in milliseconds. After each line that a case names the executable is stopped, the layer
is timed as often, and it goes on. Ratios are those of neighbouring measurements; above 1, the layer is faster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import click
import numpy as np
from foreign import Measured, timed_lines
from rich.table import Table

from latte.tools.bench import nets
from latte.tools.bench.report import machine, report_console


@dataclass(frozen=True)
class Case:
    """A layer, and the line of an executable that times the same work.

    Args:
        name: what is printed.
        program: file name of the executable, and its arguments.
        line: regular expression of the whole name of its line.
        declare: makes the net; returns it with the ensembles whose kernels are timed.
        phases: whose kernels are added up: ``forward``, ``backward``, ``update``.
    """

    name: str
    program: tuple[str, ...]
    line: str
    declare: Callable[[], nets.Declared]
    phases: tuple[str, ...]


STEP = ("forward", "backward", "update")
PARTS = {"forward": ("forward",), "backward": ("backward", "update")}
"""What the net's two runs consist of."""

WARM_UP = 0.3
"""Seconds for which a layer runs before it is timed: executables have run for longer when they time their lines."""


def batch_norm_cases(batch: int = 64) -> list[Case]:
    """Batch norm of images, forward alone and a whole step; plain arrays, and blocks of 16 channels."""
    plain, blocks, small = "NCHW par0 nt1 rev0", "NCHW16c par0 nt1 rev1", "NCHW16c par0 nt0 rev0"
    shapes = [(64, 112, plain), (64, 56, plain), (256, 56, plain), (512, 28, plain)]
    shapes += [(64, 56, blocks), (256, 56, blocks), (512, 28, blocks), (512, 7, small)]
    return [
        Case(
            f"batch norm {channels}, {height}{' in blocks' if layout != plain else ''}: {what}",
            ("bn",),
            rf"bn \({batch},{channels},{height}\) {layout} {line}",
            partial(nets.batch_norm, batch, channels, height, layout != plain),
            phases,
        )
        for channels, height, layout in shapes
        for what, line, phases in (("forward", "fwd", ("forward",)), ("step", "step", STEP))
    ]


def _phases(batch: int, channels: int, height: int, lines: Sequence[tuple[tuple[str, ...], str]]) -> list[Case]:
    """Forward, backward and update of a 3 × 3 convolution; the program and the line of each."""
    declare = partial(nets.convolution, batch, channels, channels, height, 3)
    return [
        Case(f"convolution {channels}, {height}: {phase}", program, line, declare, (phase,))
        for phase, (program, line) in zip(STEP, lines, strict=True)
    ]


def convolution_cases(batch: int = 64) -> list[Case]:
    """Convolutions in blocks of 16 channels: the phases of 3 × 3 ones, and a 1 × 1 one forwards."""
    cases = []
    # The fastest variant of each: order of the loops; rows and images in a block, and whether threads share images.
    for channels, height, order, block in (
        (64, 56, "LO4", "HB14 NB1 mode1"),
        (128, 28, "LO4", "HB28 NB1 mode0"),
        (256, 14, "LO4", "HB14 NB4 mode0"),
        (512, 7, "LO9", "HB7 NB16 mode0"),
    ):
        shape = rf"\({batch},{channels},{channels},{height}\)"
        lines = (
            (("conv4",), rf"conv4 skip-pad {shape} PX\S+ KB2 {order}"),
            (("dw",), rf"bwdD {shape} incl\. weight flip"),
            (("dw",), rf"bwdW {shape} 3s x 8c acc, {block}"),
        )
        cases += _phases(batch, channels, height, lines)
    one = partial(nets.convolution, batch, 64, 256, 56, 1)
    return [*cases, Case("convolution 1 × 1, 64 to 256, 56: forward", ("c1x1",), "1x1 conv NT PB56", one, ("forward",))]


def chain_cases() -> list[Case]:
    """A convolution, batch norm and a ReLU in blocks of 16 channels: forwards, a whole step; a 1 × 1 one forwards."""
    declare = partial(nets.chain, 64, 64, 64, 56, 3)
    cases = [
        Case(f"convolution, batch norm, ReLU 64, 56: {what}", ("cbr",), line, declare, phases)
        for what, line, phases in (("forward", "cbr FWD total", ("forward",)), ("step", "cbr STEP fused", STEP))
    ]
    one, line = partial(nets.chain, 64, 64, 256, 56, 1), r"FUSED conv\+stats\(NT\) ; norm\+relu NT"
    name = "1 × 1 convolution, batch norm, ReLU 64 to 256, 56: forward"
    return [*cases, Case(name, ("c1x1",), line, one, ("forward",))]


def avx2_cases(batch: int = 64) -> list[Case]:
    """The phases of 3 × 3 convolutions, a step of batch norm, and x · sigmoid(x), in blocks of channels."""
    cases = []
    # The fastest variant of each: order of the loops; rows and images in a block, what threads share.
    for channels, height, order, block in (
        (64, 56, "4 BC0", "YB7 NB1 n/threads"),
        (128, 28, "1 BC0", "YB14 NB1 k/threads"),
        (256, 14, "1 BC4", "YB14 NB2 k/threads"),
        (512, 7, "9 BC4", "YB7 NB8 k/threads"),
    ):
        shape = f"N{batch} {channels},{height}"
        lines = (
            (("fwd", f"{batch}"), rf"fwd {shape} 6x2 cut 0 order {order} NB16 YB1"),
            (("fwd", f"{batch}"), rf"bwd {shape} \(flip included\) order {order[0]}"),
            (("dw", f"{batch}"), rf"dw {shape} tile 3sx4c {block} U1"),
        )
        cases += _phases(batch, channels, height, lines)
    for channels, height in ((832, 7), (512, 28)):
        name = f"batch norm {channels}, {height} in blocks: step"
        line = f"batch norm step 64,{channels},{height}x{height} images/thr NT pf rev"
        cases.append(Case(name, ("elem",), line, partial(nets.batch_norm, 64, channels, height, True), STEP))
    silu = partial(nets.silu, 16, 64, 56)
    return [*cases, Case("x · sigmoid(x) 64, 56: step", ("elem",), r"x\*sigmoid\(x\) step plain", silu, STEP)]


CASES: dict[str, list[Case]] = {
    "avx512": [*batch_norm_cases(), *convolution_cases(), *chain_cases()],
    "avx2": avx2_cases(),
}


class Side:
    """The layer of one or more cases, compiled, with random values in every buffer that is read."""

    def __init__(self, case: Case, target: str, threads: int):
        self.net, self.layers = case.declare()
        self.net.compile(target=target, threads=threads)
        executable = self.net.executable
        generator = np.random.default_rng(0)
        for name, buffer in executable.buffers.items():
            if buffer.role in ("value", "grad") and buffer.dtype == "float32":
                executable.write(name, generator.standard_normal(buffer.shape, np.float32))
        executable.run("forward")

    def run(self, phases: Sequence[str]) -> float:
        """Milliseconds of the kernels of ``phases``."""
        runs = [run for run in ("forward", "backward") if any(phase in phases for phase in PARTS[run])]
        return 1e3 * sum(self._seconds(run, phases) for run in runs)

    def _seconds(self, run: str, phases: Sequence[str]) -> float:
        executable = self.net.executable
        kernels = [(kernel.ensemble.name, kernel.phase) for kernel in executable.order[run]]
        if all(name in self.layers and phase in phases for name, phase in kernels):
            start = perf_counter()  # from outside, as executables do: a thread asleep at a barrier cannot time itself
            executable.run(run)
            return perf_counter() - start
        steps = executable.run_timed(run)
        return sum(s for name, phase, s in steps if name in self.layers and phase in phases)

    def measure(self, case: Case, runs: int) -> Measured:
        """The same figures as an executable's line."""
        warm = perf_counter() + WARM_UP
        while perf_counter() < warm:
            self.run(case.phases)
        times = [self.run(case.phases) for _ in range(runs)]
        return Measured(case.name, min(times), median(times))


def measure(
    cases: Sequence[Case], folder: Path, rounds: int, runs: int, target: str, threads: int
) -> dict[str, list[tuple[Measured, Measured]]]:
    """By case, the executable's and the layer's times of every round.

    Raises:
        SystemExit: an executable is missing, or prints no line of a case.
    """
    found: dict[str, list[tuple[Measured, Measured]]] = {case.name: [] for case in cases}
    for program in dict.fromkeys(case.program for case in cases):
        own = {re.compile(case.line): case for case in cases if case.program == program}
        for _ in range(rounds):
            sides: dict[Callable[[], nets.Declared], Side] = {}
            for line in timed_lines((folder / program[0], *program[1:]), own):
                (case,) = (case for pattern, case in own.items() if pattern.fullmatch(line.name))
                if case.declare not in sides:
                    sides = {case.declare: Side(case, target, threads)}  # the memory of one net at a time
                found[case.name].append((line, sides[case.declare].measure(case, runs)))
    for name, pairs in found.items():
        if len(pairs) < rounds:
            raise SystemExit(f"no line for {name!r}; the executables are older or newer than this list")
    return found


@click.command()
@click.option(
    "--folder",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where the executables are.",
)
@click.option("--target", default="avx512", show_default=True, type=click.Choice(list(CASES)), help="Of both sides.")
@click.option("--only", default="", help="Regular expression of the cases' names.")
@click.option("--rounds", default=7, show_default=True, help="How often the sides take turns.")
@click.option("--runs", default=12, show_default=True, help="Runs of the layer in a round.")
@click.option("--threads", default=2, show_default=True, help="Of the layer; the executables have their own.")
def main(folder: Path, target: str, only: str, rounds: int, runs: int, threads: int) -> None:
    """Time layers beside hand-written kernels."""
    cases = [case for case in CASES[target] if re.search(only, case.name)]
    if not cases:
        raise SystemExit(f"no case matches {only!r}; there are: " + "; ".join(case.name for case in CASES[target]))
    found = measure(cases, folder, rounds, runs, target, threads)
    console = report_console()
    console.print(machine())
    table = Table("case", "prototype, ms", "Latte, ms", "ratio of least", "(range)", "ratio of medians")
    for name, pairs in found.items():
        least = sorted(theirs.least / ours.least for theirs, ours in pairs)
        middle = [theirs.middle / ours.middle for theirs, ours in pairs]
        theirs, ours = (median(pair[side].least for pair in pairs) for side in (0, 1))
        table.add_row(
            name,
            f"{theirs:.2f}",
            f"{ours:.2f}",
            f"{median(least):.2f}",
            f"{least[0]:.2f} … {least[-1]:.2f}",
            f"{median(middle):.2f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
