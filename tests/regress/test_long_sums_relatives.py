"""Sums of 2^20 to 2^22 terms, in other places than those that lost their digits first: gradients of parameters of many
layers, losses, poolings, sums that layers of one's own write in many ways.

A float32 sum of positive terms, added up one after the other, is off by percents from 2^22 terms on: each addition of
0.1 to 400,000 rounds by as much as 0.016. Where a term goes through at most 1280 additions, a sum is wrong by at most
1280 roundings of the sum of absolute values (Higham, *Accuracy and Stability*, 4.2), which is 7.7e-5 of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from latte import (
    BatchNormLayer,
    ConvLayer,
    FullyConnectedLayer,
    GlobalMeanPoolingLayer,
    L1LossLayer,
    MeanSquaredErrorLayer,
    MemoryDataLayer,
    MultiplyLayer,
    Net,
    PositionwiseLinearLayer,
    PReLULayer,
    SoftmaxLossLayer,
    TransposedConvLayer,
)
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.neuron import Neuron, Param, ones, zeros
from tests.layers.references import ROUNDING, assert_within
from tests.support import running_targets

LONG = 1280
"""Additions that a term may go through."""
TERMS = 1 << 22
TARGETS = running_targets()


def of_target(number: int) -> str:
    return TARGETS[number % len(TARGETS)]


def patterns(shape: tuple[int, ...]) -> Iterator[tuple[str, np.ndarray]]:
    """Gradients, or data: all the same, all positive, of both signs."""
    yield "constant", np.full(shape, 0.1, np.float32)
    yield "positive", np.random.default_rng(0).random(shape, np.float32)
    alternating = np.full(int(np.prod(shape)), 0.1, np.float32)
    alternating[1::2] *= -0.75
    yield "alternating", alternating.reshape(shape)


def check(what: str, found: np.ndarray, terms: np.ndarray, axes: tuple[int, ...], scale: float = 1.0) -> None:
    """``found`` is ``scale`` times the sum of ``terms`` over ``axes``."""
    expected = scale * terms.sum(axes, dtype=np.float64)
    bound = LONG * ROUNDING * abs(scale) * abs(terms).sum(axes, dtype=np.float64)
    assert_within(np.asarray(found).reshape(expected.shape), expected, bound, what)


def compiled(
    batch: int, shape: tuple[int, ...], make: Callable[[Net, Ensemble], Ensemble], target: int, threads: int
) -> tuple[Net, Ensemble, Ensemble]:
    net = Net(batch, seed=1)
    data = MemoryDataLayer(net, shape)
    layer = make(net, data)
    net.compile(target=of_target(target), threads=threads)
    return net, data, layer


# --- gradients of parameters -------------------------------------------------------------------------------
class ScaleNeuron(Neuron):
    """One factor and one offset for all neurons."""

    factor = Param(shape=(1,), init=ones)
    offset = Param(shape=(1,), init=zeros)

    def forward(self):
        self.value = self.factor[0] * self.input + self.offset[0]


def scale(net: Net, source: Ensemble) -> Ensemble:
    layer = net.add_ensemble(ActivationEnsemble(ScaleNeuron, source.shape, dims=("c", "y", "x"), kind="scale"))
    net.add_one_to_one_connections(source, layer)
    return layer


GRADIENTS: dict[str, tuple[Callable[[Net, Ensemble], Ensemble], int, tuple[int, ...], dict[str, tuple[int, ...]], int]]
GRADIENTS = {
    "convolution": (
        lambda net, source: ConvLayer(net, source, 2, kernel=1, pad=0),
        1,
        (1, 2048, 1024),
        {"bias": (0, 2, 3), "weights": (0, 2, 3)},
        0,
    ),
    "convolution of three rows": (
        lambda net, source: ConvLayer(net, source, 2, kernel=3, pad=1),
        1,
        (1, 1023, 2049),
        {"bias": (0, 2, 3)},
        1,
    ),
    "transposed convolution": (
        lambda net, source: TransposedConvLayer(net, source, 2, kernel=2, stride=2),
        1,
        (1, 512, 1024),
        {"bias": (0, 2, 3)},
        0,
    ),
    "items": (
        lambda net, source: FullyConnectedLayer(net, source, 3),
        1 << 20,
        (1,),
        {"bias": (0,), "weights": (0,)},
        1,
    ),
    "positions": (
        lambda net, source: PositionwiseLinearLayer(net, source, 2),
        1,
        (1 << 21, 1),
        {"bias": (0, 1), "weights": (0, 1)},
        2,
    ),
    "slopes": (PReLULayer, 2, (2, 1024, 1024), {"slope": (0, 2, 3)}, 0),
    "batch norm": (BatchNormLayer, 3, (2, 1024, 512), {"beta": (0, 2, 3)}, 1),
    "scale": (scale, 1, (4, 1024, 1024), {"factor": (0, 1, 2, 3), "offset": (0, 1, 2, 3)}, 2),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_parameters(name: str) -> None:
    """Of data that are 1 everywhere (-1 for slopes), so that each gradient is the sum of the seeds."""
    make, batch, shape, fields, target = GRADIENTS[name]
    net, data, layer = compiled(batch, shape, make, target, threads=1 + target % 2)
    sign = -1.0 if name == "slopes" else 1.0
    data.set_value(np.full((batch, *shape), sign, np.float32))
    net.forward()
    for kind, g in patterns((batch, *layer.shape)):
        net.clear_grad()
        layer.set_grad(g)
        net.backward()
        for field, axes in fields.items():
            check(f"{kind} {field}", getattr(layer, f"get_grad_{field}")(), g, axes, sign)


def test_gradient_of_a_gate() -> None:
    """One number for each channel, whose gradient is the sum over the image."""
    net = Net(1, seed=1)
    net.force_backward = True
    image, gate = MemoryDataLayer(net, (2, 1024, 2048)), MemoryDataLayer(net, (2, 1, 1))
    product = MultiplyLayer(net, [image, gate])
    net.compile(threads=2)
    net.set_batch(np.ones((1, 2, 1024, 2048)), np.ones((1, 2, 1, 1)))
    net.forward()
    for kind, g in patterns((1, 2, 1024, 2048)):
        product.set_grad(g)
        net.backward()
        check(kind, gate.get_grad(), g, (2, 3))


# --- values ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("target", [2])
def test_global_mean_pooling(target: int) -> None:
    net, data, layer = compiled(1, (2, 2048, 1024), GlobalMeanPoolingLayer, target, threads=2)
    for kind, x in patterns((1, 2, 2048, 1024)):
        data.set_value(x)
        net.test()
        check(kind, layer.get_value(), x, (2, 3), 2.0**-21)


def test_a_fully_connected_layer_of_many_inputs() -> None:
    net, data, layer = compiled(1, (TERMS,), lambda net, source: FullyConnectedLayer(net, source, 1), 1, threads=2)
    data.set_value(np.ones((1, TERMS)))
    for kind, w in patterns((1, TERMS)):
        layer.set_weights(w)
        net.test()
        check(kind, layer.get_value()[0], w, (1,))


@pytest.mark.parametrize(("make", "target"), [(MeanSquaredErrorLayer, 0), (L1LossLayer, 1)])
def test_losses(make: Callable[..., Ensemble], target: int) -> None:
    net = Net(1, seed=1)
    found, wanted = MemoryDataLayer(net, (TERMS,)), MemoryDataLayer(net, (TERMS,))
    make(net, found, wanted)
    net.compile(target=of_target(target), threads=2)
    for kind, x in patterns((1, TERMS)):
        net.set_batch(x, np.zeros_like(x))
        net.forward()
        wide = x.astype(np.float64)
        check(kind, np.array([net.loss]), wide**2 if make is MeanSquaredErrorLayer else abs(wide), (1,), 1 / TERMS)


def test_a_loss_of_many_pixels() -> None:
    """Of equal scores it is log 2; the gradients of all pixels are equal."""
    net = Net(1, seed=1)
    net.force_backward = True
    scores, labels = MemoryDataLayer(net, (2, 1024, 2048)), MemoryDataLayer(net, (1, 1024, 2048))
    SoftmaxLossLayer(net, scores, labels)
    net.compile(threads=1)
    net.set_batch(np.full((1, 2, 1024, 2048), 0.3), np.zeros((1, 1, 1024, 2048)))
    net.forward()
    net.backward()
    assert abs(net.loss / np.log(2) - 1) <= LONG * ROUNDING
    assert_within(scores.get_grad()[:, 1], np.full((1, 1024, 2048), 2.0**-22), 4 * ROUNDING * 2.0**-22)


# --- sums that layers of one's own write -------------------------------------------------------------------
class WrittenOut(Ensemble):
    """``t = t + x``, and the other way round from the end."""

    def forward(self, inputs, value):
        N, F = inputs.shape
        for n in range(N):
            ahead = 0.0
            back = 0.0
            for f in range(F):
                ahead = ahead + inputs[n, f]
            for f in range(F):
                back = inputs[n, F - 1 - f] + back
            value[n, 0] = ahead
            value[n, 1] = back


class ByThrees(Ensemble):
    """Loops of steps, whose bounds move."""

    def forward(self, inputs, value):
        N, F = inputs.shape
        for n in range(N):
            for j in range(3):
                for f in range(j, F, 3):
                    value[n, 0] += inputs[n, f]
            value[n, 1] = value[n, 0]


class UnderConditions(Ensemble):
    """Of terms that are there, and in the two branches of a condition on the place."""

    def forward(self, inputs, value):
        N, F = inputs.shape
        for n in range(N):
            there = 0.0
            places = 0.0
            for f in range(F):
                if inputs[n, f] > -1.0:
                    there += inputs[n, f]
            for f in range(F):
                if f % 3 == 0:
                    places += inputs[n, f]
                else:
                    places -= -inputs[n, f]
            value[n, 0] = there
            value[n, 1] = places


class Triangle(Ensemble):
    """Each row up to the diagonal, and what is left of it: square matrices that are written as vectors."""

    def forward(self, inputs, value):
        N = inputs.shape[0]
        for n in range(N):
            for i in range(2048):
                for j in range(i + 1):
                    value[n, 0] += inputs[n, i * 2048 + j]
                for j in range(i + 1, 2048):
                    value[n, 0] += inputs[n, i * 2048 + j]
            for i in range(2048):
                row = 0.0
                for j in range(2048):
                    row += inputs[n, i * 2048 + j]
                value[n, 1] += row


@pytest.mark.parametrize(
    ("layer", "target", "threads"),
    [(WrittenOut, 0, 2), (WrittenOut, 2, 1), (ByThrees, 0, 1), (UnderConditions, 1, 2), (Triangle, 2, 2)],
)
def test_own_sums(layer: type[Ensemble], target: int, threads: int) -> None:
    def make(net: Net, source: Ensemble) -> Ensemble:
        made = net.add_ensemble(layer(shape=(2,), dims=("k",)))
        net.add_connections(source, made)
        return made

    net, data, sums = compiled(1, (TERMS,), make, target, threads)
    for kind, x in patterns((1, TERMS)):
        data.set_value(x)
        net.forward()
        check(kind, sums.get_value()[0], np.stack([x[0], x[0]]), (1,))


class Distance(Ensemble):
    """Product, and squared distance, of two vectors, times a number that is trained."""

    factor = Param(shape=(1,), init=ones)

    def forward(self, first, second, value, factor):
        N, F = first.shape
        for n in range(N):
            for f in range(F):
                value[n, 0] += first[n, f] * second[n, f]
            distance = 0.0
            for f in range(F):
                distance = distance + factor[0] * (first[n, f] - second[n, f]) ** 2
            value[n, 1] = distance


@pytest.mark.parametrize("target", [0])
def test_products_of_long_vectors(target: int) -> None:
    net = Net(1, seed=1)
    first, second = MemoryDataLayer(net, (TERMS // 2,)), MemoryDataLayer(net, (TERMS // 2,))
    layer = net.add_ensemble(Distance(shape=(2,), dims=("k",)))
    net.add_connections(first, layer, name="first")
    net.add_connections(second, layer, name="second")
    net.compile(target=of_target(target), threads=2)
    for kind, x in patterns((1, TERMS // 2)):
        net.set_batch(x, np.full_like(x, 0.3))
        net.clear_grad()
        net.forward()
        layer.set_grad(np.array([[0.0, 0.5]]))
        net.backward()
        wide, other = x.astype(np.float64), np.float64(np.float32(0.3))
        check(kind, layer.get_value()[:, 0], wide * other, (1,))
        check(kind, layer.get_value()[:, 1], (wide - other) ** 2, (1,))
        check(f"{kind} factor", layer.get_grad_factor(), (wide - other) ** 2, (1,), 0.5)
