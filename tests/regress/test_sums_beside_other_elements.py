"""Sums into elements with constant subscripts had no lanes: their zeroing touches the element by another subscript, or
a sum beside it adds to another element of the array. Nor had gradients of clamped windows, beside their zeroing."""

from __future__ import annotations

import numpy as np
import pytest

from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.neuron import Neuron, Param, exp, log, tanh
from swirl.target.machine import why_not
from swirl.target.targets import TARGETS


class SumOfSquares(Ensemble):
    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, 0] += inputs[n, c] * inputs[n, c]


class Moments(Ensemble):
    """Two sums in one loop."""

    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, 0] += inputs[n, c]
                value[n, 1] += inputs[n, c] * inputs[n, c]


class Entropy(Ensemble):
    """A sum that the next loop reads."""

    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, 0] += exp(inputs[n, c])
            for c in range(C):
                value[n, 1] += exp(inputs[n, c]) * (log(value[n, 0]) - inputs[n, c])


CASES = {
    "squares": (SumOfSquares, 1, lambda x: [(x * x).sum(1)], lambda x, g: 2 * x * g[:, :1]),
    "moments": (Moments, 2, lambda x: [x.sum(1), (x * x).sum(1)], lambda x, g: g[:, :1] + 2 * x * g[:, 1:]),
    "entropy": (
        Entropy,
        2,
        lambda x: [(s := np.exp(x).sum(1)), (np.exp(x) * (np.log(s)[:, None] - x)).sum(1)],
        None,
    ),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_sums_have_lanes(name: str, target: str) -> None:
    if reason := why_not(TARGETS[target]):
        pytest.skip(reason)
    kind, outputs, value_of, gradient_of = CASES[name]
    net = Net(7, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (197,))
    layer = net.add_ensemble(kind(shape=(outputs,), dims=("u",)))
    net.add_connections(data, layer)
    net.compile(target=target, threads=2)
    generator = np.random.default_rng(0)
    x, gradient = generator.standard_normal((7, 197)), generator.standard_normal((7, outputs))
    data.set_value(x)
    layer.set_grad(gradient)
    net.forward()
    net.backward()
    np.testing.assert_allclose(layer.get_value(), np.stack(value_of(x), 1), rtol=3e-5)
    if gradient_of is not None:
        np.testing.assert_allclose(data.get_grad(), gradient_of(x, gradient), rtol=0, atol=1e-4)
    (forward,) = (item.program for item in net.executable.compiled if item.phase == "forward")
    assert forward.text.count("_lanes") > 2 * outputs


class Spread(Neuron):
    """Five points of a grid whose border repeats."""

    rate = Param(shape=(1,))

    def forward(self):
        around = self.inputs[0, 0, 1] + self.inputs[0, 2, 1] + self.inputs[0, 1, 0] + self.inputs[0, 1, 2]
        self.value = self.inputs[0, 1, 1] + self.rate[0] * tanh(around - 4.0 * self.inputs[0, 1, 1])


def test_gradients_of_clamped_windows_have_lanes_between_the_borders() -> None:
    net = Net(3, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (4, 9, 37))
    layer = net.add_ensemble(Ensemble(Spread, (4, 9, 37), ("c", "y", "x"), name="spread"))
    net.add_connections(
        data,
        layer,
        lambda c, y, x: (range(c, c + 1), range(y - 1, y + 2), range(x - 1, x + 2)),
        clamp=True,
    )
    net.compile(threads=2)
    applied = [
        fact.text for fact in net.explain(layer).commands if fact.status == "applied" and fact.phase == "backward"
    ]
    assert "split('backward', 'x_1', [1, 36])" in applied and sum(text.startswith("vectorize") for text in applied) == 2
    data.set_value(np.random.default_rng(0).standard_normal((3, 4, 9, 37)))
    for checked in net.check_gradients(layer).gradients:
        assert checked.error < 1e-6
