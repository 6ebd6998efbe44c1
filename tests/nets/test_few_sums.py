"""Weights that all neurons share, over data that no cache holds: all sums are added to while the data pass by once."""

from __future__ import annotations

import numpy as np
import pytest

from latte import Ensemble, MemoryDataLayer, Net, Neuron, Param
from latte.neuron import constant
from tests.nets.references import steps

SHAPES = [(4, (2, 300, 301)), (1, (3, 501, 480)), (9, (1, 270, 303))]
"""Items, and shapes whose data are larger than a level-2 cache."""


class Window(Neuron):
    """A window of 3 × 3 whose weights all neurons share."""

    w = Param(shape=(3, 3), init=constant(0.125))

    def forward(self) -> None:
        self.value = 0.0
        for j in range(3):
            for k in range(3):
                self.value += self.w[j, k] * self.inputs[0, j, k]


def window(items: int, shape: tuple[int, ...]) -> tuple[Net, Ensemble]:
    net = Net(items, seed=1)
    layer = net.add_ensemble(Ensemble(Window, shape, dims=("c", "y", "x")))

    def around(c, y, x):  # type: ignore[no-untyped-def]
        return range(c, c + 1), range(y, y + 3), range(x, x + 3)

    net.add_connections(MemoryDataLayer(net, shape), layer, around, padding=(0, 1, 1))
    return net, layer


def commands(net: Net, layer: Ensemble) -> str:
    outcomes = net.executable.plan.outcomes[layer.name]
    return "\n".join(each.command.text for each in outcomes if each.command.phase == "update")


@pytest.mark.parametrize(("items", "shape"), SHAPES)
def test_gradients_of_a_shared_window(target: str, items: int, shape: tuple[int, ...]) -> None:
    net, layer = window(items, shape)
    net.compile(target=target)
    assert "privatize('update', 'grad_w'" in commands(net, layer)
    assert "unroll_and_jam('update', 'j', 3" in commands(net, layer)
    for data, grad in steps(net, layer, shape):
        padded = np.pad(data.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
        _, _, height, width = data.shape
        taps = [[padded[:, :, j : j + height, k : k + width] for k in range(3)] for j in range(3)]
        expected = np.array([[(grad * tap).sum() for tap in row] for row in taps])
        bound = 1e-4 * np.array([[np.abs(grad * tap).sum() for tap in row] for row in taps])
        assert (np.abs(layer.get_grad_w().reshape(3, 3) - expected) <= bound).all()
