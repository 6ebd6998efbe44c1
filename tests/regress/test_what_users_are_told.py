"""Messages and lists that named something else, or nothing of the user's."""

from __future__ import annotations

import numpy as np
import pytest

from latte import AddLayer, ConvLayer, FullyConnectedLayer, MemoryDataLayer, Net, SoftmaxLossLayer
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.errors import BodyError, DeclarationError
from latte.neuron import Neuron, given

FACTORS = (1.0, 2.0, 3.0)
LISTED = [1.0, 2.0, 3.0]


class OfATuple(Neuron):
    def forward(self):
        self.value = self.input * FACTORS[c]  # noqa: F821 (the neuron's own index)


class OfAList(Neuron):
    listed = LISTED

    def forward(self):
        self.value = self.input * self.listed[c]  # noqa: F821


class OfLoops(Ensemble):
    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, c] = inputs[n, c] * FACTORS[c]


@pytest.mark.parametrize(
    ("made", "way_out"),
    [
        (lambda: ActivationEnsemble(OfATuple, (3,), ("c",)), r"np\.array\(FACTORS\)"),
        (lambda: ActivationEnsemble(OfAList, (3,), ("c",)), r"np\.array\(self\.listed\)"),
        (lambda: OfLoops(shape=(3,), dims=("c",)), r"np\.array\(FACTORS\)"),
    ],
)
def test_elements_of_tuples_that_loops_choose(made, way_out):
    net = Net(2)
    ensemble = net.add_ensemble(made())
    net.add_one_to_one_connections(MemoryDataLayer(net, (3,)), ensemble)
    with pytest.raises(BodyError, match=way_out):
        net.compile()


def test_a_huge_batch_is_not_blamed_on_a_recipe():
    net = Net(2**20)
    ConvLayer(net, MemoryDataLayer(net, (64, 224, 224)), 64)
    with pytest.raises(DeclarationError, match=r"13,469,017,440,256 bytes\n  a smaller batch needs less") as caught:
        net.compile()
    assert __file__ in str(caught.value.location)


def test_dir_has_all_that_works():
    net = Net(2)
    conv = ConvLayer(net, MemoryDataLayer(net, (2, 4, 4)), 3)
    assert {"weights", "bias", "get_inputs", "get_grad_inputs", "get_weights", "set_bias", "tile"} <= {*dir(conv)}
    net.compile()
    assert all(hasattr(conv, name) for name in dir(conv) if name != "training")


def test_ragged_initial_values():
    with pytest.raises(DeclarationError, match="given: ") as caught:
        given([[1], [2, 3]])
    assert __file__ in str(caught.value.location)


def test_three_layers_of_which_one_is_to_be_repeated():
    net = Net(2)
    sources = [MemoryDataLayer(net, shape) for shape in ((4, 3, 5), (4, 1, 1), (4, 3, 5))]
    with pytest.raises(DeclarationError, match="combine two at a time"):
        AddLayer(net, sources)


def test_weights_of_classes_as_an_array():
    values = []
    for weights in ([1.0, 2.0, 0.5], np.array([1.0, 2.0, 0.5])):
        net = Net(4, seed=1)
        data, label = MemoryDataLayer(net, (5,)), MemoryDataLayer(net, (1,))
        SoftmaxLossLayer(net, FullyConnectedLayer(net, data, 3), label, class_weights=weights)
        net.compile()
        net.set_batch(np.ones((4, 5)), [0, 1, 2, 1])
        net.forward()
        values.append(net.loss)
    assert values[0] == values[1]
