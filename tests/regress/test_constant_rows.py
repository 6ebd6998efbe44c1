"""Norms of constant and nearly constant rows: a mean was wrong by roundings of the data's size, and a deviation that is
only such roundings was divided by the root of ``epsilon``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from latte import (
    BatchNormLayer,
    ConvLayer,
    GroupNormLayer,
    InstanceNormLayer,
    LayerNormLayer,
    LRNLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
)
from latte.ensemble import Ensemble
from latte.neuron import Field, sqrt
from tests.support import targets_in_turn

ROUNDING = 2.0**-24
EPSILON = 1e-5
CONSTANTS = (1234.567, -7777.77, 1e6 + 0.1, 3.3e-3, 1e20)

Make = Callable[[Net, Ensemble], Ensemble]


# --- norms of one's own ---------------------------------------------------------------------------------------
class MeanDeviation(Ensemble):
    """By the mean distance from the mean; locals, other names, an update that divides."""

    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            middle = 0.0
            for c in range(C):
                middle += inputs[n, c]
            middle /= C
            spread = 0.0
            for c in range(C):
                spread += abs(inputs[n, c] - middle)
            for c in range(C):
                value[n, c] = (inputs[n, c] - middle) / (spread / C + 0.003)


class ByQuotients(Ensemble):
    """A mean that adds up quotients, two sums in other loops, the greatest distance."""

    centre = Field("n")
    far = Field("n")

    def forward(self, inputs, value, centre, far):
        N, C = inputs.shape
        for c in range(C):
            for n in range(N):
                centre[n] += inputs[n, c] / C
        for n in range(N):
            for c in range(C):
                far[n] = max(far[n], abs(inputs[n, c] - centre[n]))
        for n in range(N):
            for c in range(C):
                value[n, c] = (inputs[n, c] - centre[n]) / (far[n] + 0.003)


class ByFactor(Ensemble):
    """The factor before the sum, and half of the row: the deviation from the mean of the other half."""

    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            total = 0.0
            for c in range(C // 2, C):
                total += inputs[n, c]
            mean = total / (C - C // 2)
            squares = 0.0
            for c in range(C // 2, C):
                squares += (inputs[n, c] - mean) * (inputs[n, c] - mean)
            for c in range(C):
                value[n, c] = (inputs[n, c] - mean) / sqrt(squares / (C - C // 2) + 0.00001)


def own(kind: type[Ensemble]) -> Make:
    def make(net: Net, source: Ensemble) -> Ensemble:
        layer = net.add_ensemble(kind(shape=source.shape, dims=("c",)))
        net.add_one_to_one_connections(source, layer)
        return layer

    return make


def after_convolution(norm: Make) -> Make:
    """A norm, and what is joined with it, of a convolution that gives each channel its bias."""

    def make(net: Net, source: Ensemble) -> Ensemble:
        conv = ConvLayer(net, source, num_filters=32, kernel=3, pad=1, name="conv")
        return ReLULayer(net, norm(net, conv))

    return make


CASES: dict[str, tuple[Make, tuple[int, ...]]] = {
    "layer norm of a vector": (LayerNormLayer, (2, 255)),
    "layer norm of a long vector": (LayerNormLayer, (1, 4096)),
    "layer norm of positions": (LayerNormLayer, (2, 3, 250)),
    "layer norm of few features": (LayerNormLayer, (2, 33, 7)),
    "layer norm of an image": (LayerNormLayer, (2, 5, 13, 17)),
    "group norm": (lambda net, source: GroupNormLayer(net, source, 3), (2, 9, 13, 13)),
    "one group": (lambda net, source: GroupNormLayer(net, source, 1), (1, 7, 57, 57)),
    "instance norm": (InstanceNormLayer, (2, 5, 31, 29)),
    "batch norm": (BatchNormLayer, (3, 5, 31, 29)),
    "batch norm of vectors": (BatchNormLayer, (100, 33)),
    "mean deviation": (own(MeanDeviation), (3, 255)),
    "a mean of quotients": (own(ByQuotients), (3, 77)),
    "a mean of a half": (own(ByFactor), (3, 511)),
}
LONG: dict[str, tuple[Make, tuple[int, ...]]] = {
    "batch norm": (BatchNormLayer, (16, 2, 96, 96)),
    "layer norm": (LayerNormLayer, (1, 2, 300, 301)),
}
IN_TURN = targets_in_turn()


def compiled(make: Make, shape: tuple[int, ...]) -> tuple[Net, Ensemble, Ensemble]:
    net = Net(shape[0], seed=0)
    net.force_backward = True
    data = MemoryDataLayer(net, shape[1:])
    layer = make(net, data)
    net.compile()
    return net, data, layer


@pytest.mark.parametrize(("name", "target"), [(name, next(IN_TURN)) for name in CASES for _ in range(2)])
def test_rows(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIRL_TARGET", target)
    make, shape = CASES[name]
    net, data, layer = compiled(make, shape)
    check_constant(name, net, data, layer, shape)
    if layer.kind.endswith("norm"):
        check_nearly_constant(name, net, data, layer, shape)


def check_constant(name: str, net: Net, data: Ensemble, layer: Ensemble, shape: tuple[int, ...]) -> None:
    """The values are zero; the gradient is that of what is divided by the root of epsilon and has lost its mean."""
    given = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    for constant in CONSTANTS:
        data.set_value(np.full(shape, constant))
        net.forward()
        assert not layer.get_value().any(), constant
        if layer.kind.endswith("norm"):
            layer.set_grad(given)
            net.backward()
            axes = (0, *range(2, len(shape))) if layer.kind == "batch_norm" else ()
            rows = groups_of(name, given, axes)
            expected = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(EPSILON)
            found = groups_of(name, data.get_grad(), axes)
            bound = (rows.shape[-1] + 8) * ROUNDING * np.abs(rows).max() / np.sqrt(EPSILON)
            assert np.abs(found - expected).max() <= bound, constant


def groups_of(name: str, array: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """What a norm normalises, as rows in double precision."""
    array = array.astype(np.float64)
    if axes:
        return np.moveaxis(array, 1, 0).reshape(array.shape[1], -1)
    if "position" in name or "features" in name:
        return array
    groups = {"group norm": 3, "instance norm": array.shape[1]}.get(name, 1)
    return array.reshape(len(array), groups, -1)


def check_nearly_constant(name: str, net: Net, data: Ensemble, layer: Ensemble, shape: tuple[int, ...]) -> None:
    """The mean is rounded once, and is wrong by roundings of the distance between the data, not of their size."""
    axes = (0, *range(2, len(shape))) if layer.kind == "batch_norm" else ()
    generator = np.random.default_rng(1)
    for constant, near in ((1234.567, 1e-3), (-1000.1, 1.0), (1e6 + 0.1, 0.0), (7777.77, 0.0)):
        x = (constant + near * generator.normal(size=shape)).astype(np.float32)
        if not near:  # all are equal, but for one that is the next number
            x.reshape(-1)[-1] = np.nextafter(x.reshape(-1)[-1], np.float32(2 * constant))
        data.set_value(x)
        net.forward()
        rows = groups_of(name, x, axes)
        mean, deviation = rows.mean(-1, keepdims=True), np.sqrt(rows.var(-1, keepdims=True) + EPSILON)
        count, distance = rows.shape[-1], np.abs(rows - rows[..., :1]).mean(-1, keepdims=True)
        expected = (rows - mean) / deviation
        wrong = np.spacing(np.float32(abs(constant))) / 2 + count * ROUNDING * distance
        bound = wrong / deviation + (np.abs(expected) + 1) * ((count + 20) * ROUNDING + (wrong / deviation) ** 2)
        assert (np.abs(groups_of(name, layer.get_value(), axes) - expected) <= bound).all(), constant


@pytest.mark.parametrize("name", LONG)
def test_long_rows(name: str) -> None:
    make, shape = LONG[name]
    net, data, layer = compiled(make, shape)
    data.set_value(np.full(shape, 7777.77))
    net.forward()
    assert not layer.get_value().any()


@pytest.mark.parametrize("norm", ["batch", "group", "layer", "instance"])
def test_a_constant_that_a_convolution_makes(norm: str) -> None:
    """In the chains, and in the layouts, that a norm has after a convolution."""
    norms: dict[str, Make] = {
        "batch": BatchNormLayer,
        "group": lambda net, source: GroupNormLayer(net, source, 8),
        "layer": LayerNormLayer,
        "instance": InstanceNormLayer,
    }
    net, data, layer = compiled(after_convolution(norms[norm]), (2, 3, 15, 15))
    conv = net["conv"] if hasattr(net, "__getitem__") else next(e for e in net.ensembles if e.name == "conv")
    conv.set_weights(np.zeros_like(conv.get_weights()))
    conv.set_bias(np.full_like(conv.get_bias(), 1234.567))
    data.set_value(np.random.default_rng(0).normal(size=(2, 3, 15, 15)))
    net.forward()
    assert not layer.get_value().any()


def test_local_response_norm_of_large_constants() -> None:
    """It centres nothing: each value is the quotient of one element, as exact as its power."""
    net, data, layer = compiled(LRNLayer, (1, 7, 5, 5))
    for constant in (1234.567, 3.3e-3, 1e6):
        data.set_value(np.full((1, 7, 5, 5), constant))
        net.forward()
        x = float(np.float32(constant))
        neighbours = np.array([3, 4, 5, 5, 5, 4, 3])[None, :, None, None]
        expected = x / (1.0 + 1e-4 / 5 * neighbours * x * x) ** 0.75
        assert (np.abs(layer.get_value() - expected) <= 20 * ROUNDING * expected).all()
