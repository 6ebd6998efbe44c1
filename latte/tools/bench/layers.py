"""Each kind of layer by itself, after data: the tuned target beside the portable one, alternately in one process.

    python -m latte.tools.bench.layers [--kind max_pooling] [--batch 16] [--threads 1] [--repeat 15]

Every repetition has new data: a processor that has seen the data predicts the branches of scalar code. The two sides'
results are compared each time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import click
import numpy as np
from rich.table import Table

import latte
from latte import MemoryDataLayer, Net
from latte.tools.bench.report import machine, report_console, spread
from latte.tools.net_files import AtLeastOne, plain_errors

TOLERANCE = 1e-4
"""Of the greatest result: the targets add in different orders."""

LAYERS = {
    "conv": "ConvLayer",
    "batch_norm": "BatchNormLayer",
    "relu": "ReLULayer",
    "tanh": "TanhLayer",
    "max_pooling": "MaxPoolingLayer",
    "fully_connected": "FullyConnectedLayer",
    "softmax_loss": "SoftmaxLossLayer",
}
"""Kind → the function that declares one."""


@dataclass(frozen=True)
class Case:
    """A layer after data of a shape (channels, height, width); a loss after scores (classes)."""

    kind: str
    shape: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        named = " ".join(f"{name} {value}" for name, value in self.options.items())
        return f"{self.kind} {'×'.join(map(str, self.shape))} {named}".strip()


def cases() -> Iterator[Case]:
    """Usual extents and odd ones; few channels and many."""
    for channels, extent in ((1, 28), (3, 32), (16, 14), (16, 28), (64, 7), (64, 28), (64, 56)):
        shape = (channels, extent, extent)
        for filters in (16, 64):
            yield Case("conv", shape, {"num_filters": filters})
        yield Case("conv", shape, {"num_filters": 32, "kernel": 5, "stride": 2, "pad": 2})
        for kind in ("batch_norm", "relu", "tanh"):
            yield Case(kind, shape)
        if channels * extent <= 1000:
            yield Case("fully_connected", shape, {"num_outputs": 100})
    for classes in (10, 17, 100, 1000):
        yield Case("softmax_loss", (classes,))
    for channels, extents in ((3, (28, 112)), (16, (5, 7, 9, 14, 20, 28, 56, 112)), (64, (7, 28))):
        for extent in extents:
            for kernel, stride, pad in ((2, 2, 0), (3, 2, 1), (3, 1, 1), (5, 3, 2)):
                for clamp in (True, False):
                    options = {"kernel": kernel, "stride": stride, "pad": pad, "ceil_mode": True, "clamp": clamp}
                    yield Case("max_pooling", (channels, extent, extent), options)


class Side:
    """A case's net, compiled for one target."""

    def __init__(self, case: Case, batch: int, threads: int, target: str | None):
        self.net = Net(batch, seed=0)
        self.data = MemoryDataLayer(self.net, case.shape)
        self.labels = MemoryDataLayer(self.net, (1,)) if case.kind == "softmax_loss" else None
        sources = [self.data] if self.labels is None else [self.data, self.labels]
        self.layer = getattr(latte, LAYERS[case.kind])(self.net, *sources, **case.options)
        self.net.force_backward = True
        self.net.compile(threads=threads, target=target)

    def given(self, batch: int, generator: np.random.Generator) -> np.ndarray:
        """The gradient of the layer's value, or labels."""
        if self.labels is not None:
            return generator.integers(0, self.data.shape[0], (batch, 1))
        return generator.standard_normal((batch, *self.layer.shape), np.float32)

    def run(self, inputs: np.ndarray, given: np.ndarray) -> dict[str, float]:
        """Seconds of the layer's own programs in the two phases (update is a part of backward), on data that the
        processor has not seen."""
        self.data.set_value(inputs)
        if self.labels is not None:
            self.labels.set_value(given)
        else:
            self.layer.set_grad(given)
        self.net.clear_grad()
        seconds = {}
        for phase in ("forward", "backward"):
            parts = self.net.executable.run_timed(phase)
            seconds[phase] = sum(time for name, _, time in parts if name == self.layer.name)
        return seconds

    def results(self) -> list[np.ndarray]:
        gradients = [name for name, spec in self.layer.fields().items() if spec.role == "param_grad"]
        value = self.layer.get_value() if self.labels is None else np.array(self.net.loss)
        return [value, self.data.get_grad(), *(getattr(self.layer, f"get_{name}")() for name in gradients)]


@click.command()
@click.option("--kind", type=click.Choice(sorted(LAYERS)), help="Only layers of this kind.")
@click.option("--batch", type=AtLeastOne, default=16, show_default=True, help="Items in a batch.")
@click.option("--threads", type=AtLeastOne, default=1, show_default=True, help="Threads of both sides.")
@click.option("--repeat", type=AtLeastOne, default=15, show_default=True, help="Data sets that each side is timed on.")
@plain_errors()
def main(kind: str | None, batch: int, threads: int, repeat: int) -> None:
    """Time layers by themselves on the best target and on the portable one; those that are slower come last."""
    console = report_console()
    console.print(machine())
    generator = np.random.default_rng(0)
    rows = []
    for case in cases():
        if kind in (None, case.kind):
            rows += _measured(case, batch, threads, repeat, generator)
            console.print(f"{case}: {', '.join(f'{row[0]:.2f}' for row in rows[-2:])}")
    table = Table("layer", "phase", "best target", "portable", "ratio")
    for ratio, case, phase, best, other in sorted(rows, key=lambda row: -row[0]):
        table.add_row(str(case), phase, spread(best), spread(other), f"{ratio:.2f}")
    console.print(table)
    console.print(f"{sum(ratio < 1 for ratio, *_ in rows)} of {len(rows)} are slower than portable code")


def _measured(
    case: Case, batch: int, threads: int, repeat: int, generator: np.random.Generator
) -> list[tuple[float, Case, str, list[float], list[float]]]:
    """Ratio, case, phase and the times of the two sides, for each phase.

    Raises:
        SystemExit: the sides' results differ.
    """
    sides = {name: Side(case, batch, threads, name) for name in (None, "portable")}
    times: dict[tuple[str | None, str], list[float]] = defaultdict(list)
    for number in range(repeat + 1):
        inputs = generator.standard_normal((batch, *case.shape), np.float32)
        given = sides[None].given(batch, generator)
        for name, side in sides.items():
            for phase, seconds in side.run(inputs, given).items():
                if number:  # the first one touches memory for the first time
                    times[name, phase].append(seconds)
        _compare(case, *(side.results() for side in sides.values()))
    phases = ("forward", "backward")
    pairs = [(phase, times[None, phase], times["portable", phase]) for phase in phases]
    return [(median(other) / median(best), case, phase, best, other) for phase, best, other in pairs]


def _compare(case: Case, best: list[np.ndarray], portable: list[np.ndarray]) -> None:
    for one, two in zip(best, portable, strict=True):
        if not np.allclose(one, two, rtol=0, atol=TOLERANCE * max(1e-30, float(np.abs(two).max()))):
            raise SystemExit(f"{case}: the targets disagree by {float(np.abs(one - two).max())}")


if __name__ == "__main__":
    main()
