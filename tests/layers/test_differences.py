"""Derived gradients of layers are central differences of their forward phase, in float64. A layer is a line here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from latte import BatchNormLayer, ConvLayer, FullyConnectedLayer, MemoryDataLayer, Net, TanhLayer
from latte.autodiff.differentiated import layer_programs
from latte.ensemble import Ensemble
from swirl.ir.execute import execute
from swirl.ir.item_numbers import value_of
from swirl.ir.nest import Program

BATCH = 3
STEP, BOUND = 1e-5, 1e-7  # the truncation is STEP² times a third derivative, rounding 1e-16 / STEP
LAYERS: dict[str, tuple[tuple[int, ...], Callable[[Net, Ensemble], Ensemble]]] = {
    "batch_norm": ((2, 2, 3), BatchNormLayer),
    "conv": ((2, 3, 2), lambda net, data: ConvLayer(net, data, 2)),
    "fully_connected": ((3,), lambda net, data: FullyConnectedLayer(net, data, 2)),
    "tanh": ((5,), TanhLayer),
}
"""Shape of the data, constructor; only where the function is smooth on random data."""


def run(program: Program, known: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All arrays after the program; what is not known is NaN before it."""
    empty = {name: np.full(b.shape, np.nan if "float" in b.dtype else 0) for name, b in program.buffers.items()}
    made = {name: known[name].copy() if name in known else array for name, array in empty.items()}
    made |= {
        n: np.full(1, value_of(b.formula, BATCH), np.float64 if "float" in b.dtype else b.dtype)
        for n, b in program.buffers.items()
        if b.formula
    }
    execute(program, made, arithmetic="float64")
    return {**known, **made}


@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_are_differences(kind: str) -> None:
    shape, make = LAYERS[kind]
    net = Net(BATCH, seed=0)
    net.force_backward = True
    layer = make(net, MemoryDataLayer(net, shape))
    (programs,) = [each.programs for each in layer_programs(net.graph, BATCH) if each.ensemble is layer]
    forward, generator = programs["forward"], np.random.default_rng(1)
    moved = [name for name, buffer in forward.buffers.items() if buffer.role == "param" or name == "inputs"]
    given = {
        name: generator.normal(size=buffer.shape)
        for name, buffer in forward.buffers.items()
        if buffer.role in ("param", "state") or name == "inputs"
    }
    seed = generator.normal(size=forward.buffers["value"].shape)
    after = {**run(forward, given), "grad": seed, "accumulate": np.zeros(1, np.int32)}
    gradients = {
        name: array
        for phase in ("update", "backward")
        if phase in programs
        for name, array in run(programs[phase], after).items()
        if name.startswith("grad_")
    }
    for name in moved:
        direction = generator.normal(size=given[name].shape)
        up, down = (
            float(np.sum(seed * run(forward, {**given, name: given[name] + step * direction})["value"]))
            for step in (STEP, -STEP)
        )
        found = float(np.sum(gradients[f"grad_{name}"] * direction))
        assert found == pytest.approx((up - down) / (2 * STEP), rel=BOUND, abs=BOUND), name
