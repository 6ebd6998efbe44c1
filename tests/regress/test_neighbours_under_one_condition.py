"""Two statements under one condition that add to neighbours of one element, as the gradient of a stencil's inside:
the default schedule moved the loop to the one's elements, and to the other's, and so on without end."""

from __future__ import annotations

import numpy as np
import pytest

from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble

ITEMS, SIZE = 3, 21


class Inner(Ensemble):
    def forward(self, inputs, value):
        N, X = inputs.shape
        for n in range(N):
            for i in range(X):
                if i >= 1 and i < X - 1:
                    value[n, i] = inputs[n, i - 1] - 2.0 * inputs[n, i] + 3.0 * inputs[n, i + 1]


class Passed(Ensemble):
    def forward(self, inputs, value):
        N, X = inputs.shape
        for n in range(N):
            for i in range(X):
                if inputs[n, i] > 0.0 and i < X - 1:
                    value[n, i] += 2.0 * inputs[n, i]
                    value[n, i + 1] -= inputs[n, i]


class Halved(Ensemble):
    def forward(self, inputs, value):
        N, X = inputs.shape
        for n in range(N):
            for i in range(2 * X):
                value[n, i] = 0.5 * inputs[n, i // 2]
                if i // 2 + 1 < X:
                    value[n, i] += 0.25 * inputs[n, i // 2 + 1]


def slopes(kind: type[Ensemble], x: np.ndarray) -> np.ndarray:
    """d value[i] / d x[j], (outputs, SIZE), of an item; the values are these times ``x``."""
    own, after = np.eye(SIZE), np.eye(SIZE, k=1)
    if kind is Inner:
        found = np.eye(SIZE, k=-1) - 2 * own + 3 * after
        found[[0, -1]] = 0
        return found
    if kind is Passed:
        return (2 * own - np.eye(SIZE, k=-1)) * ((x > 0) & (np.arange(SIZE) < SIZE - 1))
    return np.repeat(0.5 * own + 0.25 * after, 2, axis=0)


@pytest.mark.parametrize("kind", [Inner, Passed, Halved])
@pytest.mark.parametrize("target", ["avx512", "avx2", "portable"])
def test_the_loops_stay_where_statements_share_a_condition(kind: type[Ensemble], target: str) -> None:
    generator = np.random.default_rng(0)
    outputs = 2 * SIZE if kind is Halved else SIZE
    net = Net(batch_size=ITEMS, seed=0)
    net.force_backward = True
    data = MemoryDataLayer(net, (SIZE,))
    layer = net.add_ensemble(kind(shape=(outputs,)))
    net.add_connections(data, layer)
    net.compile(target=target)
    x = generator.standard_normal((ITEMS, SIZE)).astype("float32")
    grad = generator.standard_normal((ITEMS, outputs)).astype("float32")
    data.set_value(x)
    net.forward()
    layer.set_grad(grad)
    net.backward()
    wanted = [slopes(kind, item) for item in x]
    # of at most four terms below 16: 4 roundings of 16 * 2**-24 each
    np.testing.assert_allclose(layer.get_value(), [s @ v for s, v in zip(wanted, x, strict=True)], rtol=0, atol=4e-6)
    np.testing.assert_allclose(data.get_grad(), [s.T @ g for s, g in zip(wanted, grad, strict=True)], rtol=0, atol=4e-6)
