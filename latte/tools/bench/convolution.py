"""Convolution's three phases as shares of what the machine's multiply-adds allow, in turns with that limit.

    python -m latte.tools.bench.convolution [--threads 1 --threads 2] [--batch 16] [--rounds 7]

Inputs and values are in blocks of channels, as they are between layers. The results of each layer are compared with a
plain NumPy definition, at random places, before it is timed. Operations are those of taps that meet the image: taps on
the zeros around it are not counted, and not computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import click
import numpy as np
from rich.table import Table

from latte import ConvLayerNoBias, MemoryDataLayer, Net
from latte.tools.bench.nets import CONV_IN_BLOCKS
from latte.tools.bench.report import machine, report_console
from latte.tools.net_files import AtLeastOne, plain_errors
from swirl.ir.phases import PHASES
from swirl.measure.rates import Limits

SHAPES = ((64, 56), (128, 28), (256, 14), (512, 7))
"""Channels, as many filters, and height and width."""
RUNS = {"forward": "forward", "backward": "backward", "update": "backward"}
PLACES = 200
TOLERANCE = 1e-4
"""Of the greatest result: sums of at most 50,000 products of numbers near 1."""


@dataclass(frozen=True)
class Case:
    """A convolution of square images by a square kernel, padded so that stride 1 keeps the extent."""

    batch: int
    channels: int
    extent: int
    kernel: int
    stride: int

    @property
    def outputs(self) -> int:
        """Height and width of the value."""
        return (self.extent + 2 * (self.kernel // 2) - self.kernel) // self.stride + 1

    @property
    def operations(self) -> int:
        """Multiplications and additions of one phase, on taps within the image."""
        positions = np.add.outer(np.arange(self.outputs) * self.stride, np.arange(self.kernel) - self.kernel // 2)
        within = int(((positions >= 0) & (positions < self.extent)).sum())
        return 2 * self.batch * self.channels**2 * within**2

    def __str__(self) -> str:
        return f"{self.channels}, {self.extent}, {self.kernel} × {self.kernel}, stride {self.stride}"


class Layer:
    """The case's net, with random data; its results have been compared.

    Raises:
        SystemExit: a result is wrong.
    """

    def __init__(self, case: Case, threads: int):
        self.case = case
        self.net = Net(case.batch, seed=1)
        data = MemoryDataLayer(self.net, (case.channels, case.extent, case.extent))
        self.layer = ConvLayerNoBias(
            self.net, data, num_filters=case.channels, kernel=case.kernel, stride=case.stride, pad=case.kernel // 2
        )
        self.net.force_backward = True
        self.net.use_recipe(self.layer, CONV_IN_BLOCKS)
        self.net.compile(threads=threads)
        self.net.executable.pin_all()  # phases are timed by themselves
        generator = np.random.default_rng(0)
        inputs, gradient = (generator.standard_normal((case.batch, *e.shape), np.float32) for e in (data, self.layer))
        data.set_value(inputs)
        self.layer.set_grad(gradient)
        self.net.forward()
        self.net.clear_grad()
        self.net.backward()
        weights = self.layer.get_weights()
        results = [
            ("value", self.layer.get_value(), _values(case, inputs, weights)),
            ("gradient of the inputs", data.get_grad(), _input_gradients(case, gradient, weights)),
            ("gradient of the weights", self.layer.get_grad_weights(), _weight_gradients(case, inputs, gradient)),
        ]
        for name, got, expected in results:
            for place, wanted in expected:
                if abs(got[place] - wanted) > TOLERANCE * np.abs(got).max():
                    raise SystemExit(f"convolution {case}: {name}{list(place)} is {got[place]}, not {wanted}")

    def seconds(self) -> dict[str, float]:
        """Of each phase, once."""
        executable = self.net.executable
        runs = {run: executable.run_timed(run) for run in dict.fromkeys(RUNS.values())}
        return {
            phase: sum(s for name, of, s in runs[RUNS[phase]] if name == self.layer.name and of == phase)
            for phase in PHASES
        }


Expected = Iterator[tuple[tuple[int, ...], float]]


def _places(shape: Sequence[int], seed: int) -> Iterator[tuple[int, ...]]:
    generator = np.random.default_rng(seed)
    for _ in range(PLACES):
        yield tuple(int(generator.integers(extent)) for extent in shape)


def _padded(case: Case, inputs: np.ndarray) -> np.ndarray:
    around = case.kernel // 2
    return np.pad(inputs.astype(np.float64), ((0, 0), (0, 0), (around, around), (around, around)))


def _values(case: Case, inputs: np.ndarray, weights: np.ndarray) -> Expected:
    padded = _padded(case, inputs)
    for n, k, y, x in _places((case.batch, case.channels, case.outputs, case.outputs), 1):
        top, left = y * case.stride, x * case.stride
        yield (n, k, y, x), float((padded[n, :, top : top + case.kernel, left : left + case.kernel] * weights[k]).sum())


def _input_gradients(case: Case, gradient: np.ndarray, weights: np.ndarray) -> Expected:
    around = case.kernel // 2
    for n, c, iy, ix in _places((case.batch, case.channels, case.extent, case.extent), 2):
        total = 0.0
        for ky in range(case.kernel):
            for kx in range(case.kernel):
                (y, above), (x, beside) = (divmod(i + around - t, case.stride) for i, t in ((iy, ky), (ix, kx)))
                if not above and not beside and 0 <= y < case.outputs and 0 <= x < case.outputs:
                    total += float(gradient[n, :, y, x].astype(np.float64) @ weights[:, c, ky, kx])
        yield (n, c, iy, ix), total


def _weight_gradients(case: Case, inputs: np.ndarray, gradient: np.ndarray) -> Expected:
    padded, span = _padded(case, inputs), (case.outputs - 1) * case.stride + 1
    for k, c, ky, kx in _places((case.channels, case.channels, case.kernel, case.kernel), 3):
        window = padded[:, c, ky : ky + span : case.stride, kx : kx + span : case.stride]
        yield (k, c, ky, kx), float((window * gradient[:, k]).sum())


@click.command()
@click.option(
    "--threads",
    multiple=True,
    type=AtLeastOne,
    default=(1, 2),
    show_default=True,
    help="One number or several.",
)
@click.option("--batch", type=AtLeastOne, default=16, show_default=True, help="Images.")
@click.option(
    "--rounds",
    type=AtLeastOne,
    default=7,
    show_default=True,
    help="How often the phases and the limit take turns.",
)
@plain_errors()
def main(threads: Sequence[int], batch: int, rounds: int) -> None:
    """Time convolution's phases beside the limit of multiply-adds."""
    console = report_console()
    console.print(machine())
    for count in threads:
        table = Table(
            "channels, extent, kernel",
            *(f"{phase}, share of peak (GFLOP/s)" for phase in PHASES),
            title=f"{count} thread{'s' if count > 1 else ''}, batch {batch}: medians (range)",
        )
        for kernel in (3, 1):
            for stride in (1, 2):
                for channels, extent in SHAPES:
                    table.add_row(*row(Case(batch, channels, extent, kernel, stride), count, rounds))
        console.print(table)


def row(case: Case, threads: int, rounds: int) -> list[str]:
    """A line of the table: the case, then share and rate of each phase."""
    layer = Layer(case, threads)
    executable = layer.net.executable
    limits = Limits(executable.plan.target, layer.net.session.runner)
    found: dict[str, list[tuple[float, float]]] = {phase: [] for phase in PHASES}
    for _ in range(rounds):
        peak = limits.measure([], rounds=1).peak
        layer.seconds()  # small operands come from the caches
        times = [layer.seconds() for _ in range(3)]
        peak = max(peak, limits.measure([], rounds=1).peak)
        for phase in PHASES:
            rate = case.operations / median(time[phase] for time in times)
            found[phase].append((rate / peak, rate))
    cells = []
    for rates in found.values():
        shares = sorted(share for share, _ in rates)
        middle = median(rate for _, rate in rates) / 1e9
        cells.append(f"{median(shares):.0%} ({shares[0]:.0%} … {shares[-1]:.0%}), {middle:.0f}")
    return [str(case), *cells]


if __name__ == "__main__":
    main()
