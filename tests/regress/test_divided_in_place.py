"""Exponentials that are divided in place by a local, beside what keeps values of single iterations: the gradient read
the divisor where it was not declared."""

from __future__ import annotations

import numpy as np
import pytest

from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.neuron import Field, Param, exp, ones
from tests.fuzz.derivative_checks import problem

torch = pytest.importorskip("torch")

RECURRENCE = """
for n in range(3):
    t: float64 = 0.0
    for i in range(4):
        t = t * t + h[n, i]
        value[n, i] = t
"""
"""What makes backward keep a value of each iteration."""

SOFTMAX = """
for n in range(3):
    a: float64 = 0.0
    for i in range(4):
        h[n, i] = exp(inputs[n, i] * w[i])
        a += h[n, i]
    for i in range(4):
        h[n, i] = h[n, i] / a
"""

RELATIVES = {
    "as found": SOFTMAX + RECURRENCE,
    "in one nest with the recurrence": SOFTMAX
    + """
    t: float64 = 0.0
    for i in range(4):
        t = t * t + h[n, i]
        value[n, i] = t
""",
    "after the recurrence": """
for n in range(3):
    t: float64 = 0.1
    for i in range(4):
        t = t * inputs[n, i] + w[i]
    a: float64 = 0.0
    for i in range(4):
        value[n, i] = exp(inputs[n, i] * t)
        a += value[n, i]
    for i in range(4):
        value[n, i] /= a
""",
    "less the greatest": """
for n in range(3):
    m: float64 = inputs[n, 0]
    for i in range(4):
        m = max(m, inputs[n, i])
    a: float64 = 0.0
    for i in range(4):
        h[n, i] = exp(w[i] * inputs[n, i] - m)
        a += h[n, i]
    for i in range(4):
        h[n, i] = h[n, i] / a
"""
    + RECURRENCE,
    "stored from a local": """
for n in range(3):
    a: float64 = 0.0
    for i in range(4):
        e: float64 = exp(inputs[n, i] * w[i])
        a += e
        h[n, i] = e
    for i in range(4):
        h[n, i] = h[n, i] / a
"""
    + RECURRENCE,
    "where a condition holds": """
for n in range(3):
    a: float64 = 0.5
    for i in range(4):
        h[n, i] = exp(inputs[n, i] * w[i]) if i <= n else 0.0
        a += h[n, i]
    for i in range(4):
        h[n, i] = h[n, i] / a
"""
    + RECURRENCE,
    "by a local set again afterwards": SOFTMAX + "    a = 3.0\n    s[n] = a\n" + RECURRENCE,
    "by a local of one value": """
for n in range(3):
    a: float64 = 2.0 + w[n] * w[n]
    for i in range(4):
        h[n, i] = exp(inputs[n, i])
    for i in range(4):
        h[n, i] = h[n, i] / a
"""
    + RECURRENCE,
    "by an element of a local array": """
for n in range(3):
    a: float64[4] = empty(4)
    for i in range(4):
        a[i] = 0.0
    for i in range(4):
        h[n, i] = exp(inputs[n, i] * w[i])
        for j in range(i, 4):
            a[j] += h[n, i]
    for i in range(4):
        h[n, i] = h[n, i] / a[i]
"""
    + RECURRENCE,
    "backwards, and the sum changed once more": """
for n in range(3):
    a: float64 = 0.0
    for i in range(3, -1, -1):
        h[n, i] = exp(inputs[n, i] * w[i])
        a += h[n, i]
    a = a * a
    for i in range(3, -1, -1):
        h[n, i] = h[n, i] / a
"""
    + RECURRENCE,
    "twice": SOFTMAX
    + """
    b: float64 = 0.0
    for i in range(4):
        value[n, i] = exp(h[n, i] * w[i])
        b += value[n, i]
    for i in range(4):
        value[n, i] = value[n, i] / b
    for i in range(1, 4):
        value[n, i] = value[n, i] * value[n, i - 1] + value[n, i]
""",
    "in columns": """
for i in range(4):
    a: float64 = 0.0
    for n in range(3):
        h[n, i] = exp(inputs[n, i] * w[i])
        a += h[n, i]
    for n in range(3):
        h[n, i] = h[n, i] / a
"""
    + RECURRENCE,
}


@pytest.mark.parametrize("name", RELATIVES)
def test_the_gradient_is_the_difference(name: str) -> None:
    found = problem(RELATIVES[name], 1, False, False)
    assert found.wrong is None
    assert found.counts["compared"] == 1  # it is derived, and its values are finite
    assert found.counts["with values kept one an iteration"] == 1
    assert found.counts["directions skipped"] == 0


class Summary(Ensemble):
    """``h = h * h + p`` along the channels, ``p`` their softmax at a temperature of their own."""

    p = Field("n", "c")
    cold = Param("c", init=ones)

    def forward(self, inputs, value, p, cold):
        N, C = inputs.shape
        for n in range(N):
            total = 0.0
            for c in range(C):
                p[n, c] = exp(inputs[n, c] * cold[c])
                total += p[n, c]
            for c in range(C):
                p[n, c] = p[n, c] / total
        for n in range(N):
            h = 0.0
            for c in range(C):
                h = h * h + p[n, c]
                value[n, c] = h


@pytest.mark.parametrize("scheduled", ["1", "0"])
@pytest.mark.parametrize("channels", [8, 17])
def test_compiled_against_pytorch(channels: int, scheduled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATTE_SCHEDULE", scheduled)
    net = Net(3, seed=0)
    net.force_backward = True
    data = MemoryDataLayer(net, (channels,))
    layer = net.add_ensemble(Summary(shape=(channels,), dims=("c",)))
    net.add_one_to_one_connections(data, layer)
    net.compile()
    generator = np.random.default_rng(0)
    x, g = generator.normal(size=(2, 3, channels)).astype("f")
    cold = generator.uniform(0.5, 1.5, channels).astype("f")
    layer.set_cold(cold)
    data.set_value(x)
    net.forward()
    layer.set_grad(g)
    net.backward()
    inputs, colds = (torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in (x, cold))
    p = torch.softmax(inputs * colds, 1)
    rows, h = [], torch.zeros(3, dtype=torch.float64)
    for c in range(channels):
        h = h * h + p[:, c]
        rows.append(h)
    value = torch.stack(rows, 1)
    value.backward(torch.tensor(g))
    bound = 1e-5  # values and gradients below 1, sums of 17 products of a few roundings each
    assert np.abs(layer.get_value() - value.detach().numpy()).max() < bound
    assert np.abs(data.get_grad() - inputs.grad.numpy()).max() < bound
    assert np.abs(layer.get_grad_cold() - colds.grad.numpy()).max() < bound
