"""What only training assigns kept the numbers of the last training batch in inference; a value that nothing assigns was
zero without a word."""

from __future__ import annotations

import numpy as np
import pytest

from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.neuron import Neuron
from swirl.errors import BodyError


class InTraining(Neuron):
    def forward(self) -> None:
        if self.training:
            self.value = 2.0 * self.input


class ArrayInTraining(Ensemble):
    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                if self.training:
                    value[n, c] = 2.0 * inputs[n, c]


def made(ensemble: Ensemble) -> tuple[Net, Ensemble]:
    net = Net(2)
    data = MemoryDataLayer(net, (3,))
    layer = net.add_ensemble(ensemble)
    if ensemble.explicit:
        net.add_connections(data, layer)
    else:
        net.add_one_to_one_connections(data, layer)
    net.compile()
    return net, layer


@pytest.mark.parametrize(
    "ensemble", [Ensemble(InTraining, (3,), ("c",)), ArrayInTraining(shape=(3,), dims=("c",))], ids=["neuron", "array"]
)
def test_inference_has_zeros(ensemble: Ensemble) -> None:
    net, layer = made(ensemble)
    x = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    net.set_batch(x)
    net.forward()
    np.testing.assert_array_equal(layer.get_value(), 2 * x)
    np.testing.assert_array_equal(net.predict(-x), np.zeros((2, 3)))
    net.set_batch(x)
    net.test()
    assert not layer.get_value().any()


class Nothing(Neuron):
    def forward(self) -> None:
        a = self.input
        a = a + 1.0


def test_a_value_that_nothing_assigns_is_refused() -> None:
    with pytest.raises(BodyError, match=r"never assigns value: it would be zero\n  self.value = …"):
        made(Ensemble(Nothing, (3,), ("c",)))
