"""A local as a subscript was read again where it is used, though its assignment may not have run, or ran in an
iteration before."""

from __future__ import annotations

import numpy as np
import pytest

from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.frontend.lower import lower
from latte.neuron import Neuron, Param, ones
from swirl.errors import BodyError
from swirl.ir.execute import execute


class Table(Ensemble):
    weights = Param(shape=(5, 2), init=ones)


class Kept(Table):
    """From another iteration."""

    def forward(self, inputs, value, weights):
        for n in range(2):
            for c in range(3):
                if c == 0:
                    i = inputs[n, c]
                value[n, c] = weights[i, 1]  # here


class Guarded(Table):
    """Without the guard, the read is outside."""

    def forward(self, inputs, value, weights):
        for n in range(2):
            for c in range(3):
                if c < 2:
                    i = inputs[n, c + 1]
                value[n, c] = weights[i, 1]  # here


class OtherSide(Table):
    def forward(self, inputs, value, weights):
        for n in range(2):
            for c in range(3):
                for k in range(2):
                    if k == 0:
                        i = inputs[n, c]
                    else:
                        value[n, c] += weights[i, 1]  # here


class Again(Table):
    def forward(self, inputs, value, weights):
        for n in range(2):
            for c in range(3):
                i = inputs[n, c]
                value[n, c] = weights[i, 1]  # here
                i = inputs[n, 0]
                value[n, c] += weights[i, 1]


class OfANeuron(Neuron):
    weights = Param(shape=(5, 2), init=ones)

    def forward(self):
        if self.input > 1:
            i = self.input
        self.value = self.weights[i, 0]  # here


def layer(kind: type) -> Ensemble:
    net = Net(2)
    words = MemoryDataLayer(net, (3,), dtype="int32", below=5)
    if issubclass(kind, Neuron):
        found = net.add_ensemble(Ensemble(kind, (3,), ("c",)))
        net.add_one_to_one_connections(words, found)
    else:
        found = net.add_ensemble(kind(shape=(3,), dims=("c",)))
        net.add_connections(words, found)
    return found


@pytest.mark.parametrize("kind", [Kept, Guarded, OtherSide, Again, OfANeuron])
def test_a_local_that_may_be_another(kind: type) -> None:
    with pytest.raises(BodyError, match=r"i cannot be a subscript here(.|\n)*in place of i") as caught:
        lower(layer(kind), "forward", batch_size=2)
    line = int(str(caught.value).split(".py:")[1].split(":")[0])
    with open(__file__) as file:
        assert "# here" in file.readlines()[line - 1]


class Inside(Table):
    def forward(self, inputs, value, weights):
        for n in range(2):
            first = inputs[n, 0]
            for c in range(3):
                if c < 2:
                    i = inputs[n, c + 1]
                    value[n, c] = weights[i, 1] + weights[first, 0]
                else:
                    j = inputs[n, c - 2]
                    for k in range(2):
                        value[n, c] += weights[j, k] * weights[first, k]


def test_a_local_in_its_block() -> None:
    ensemble = layer(Inside)
    program = lower(ensemble, "forward", batch_size=2)
    words = np.array([[4, 1, 2], [0, 3, 1]], np.int32)
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    arrays = {"inputs": words, "weights": table, "value": np.zeros((2, 3), np.float32)}
    execute(program, arrays)
    expected = np.zeros((2, 3))
    ensemble.forward(words, expected, table)
    np.testing.assert_array_equal(arrays["value"], expected)
