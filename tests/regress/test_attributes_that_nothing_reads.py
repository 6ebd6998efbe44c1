"""Attributes set on layers of the library were taken without a word, and changed nothing: ``trainable`` for one."""

from __future__ import annotations

from typing import Any

import pytest

from latte import BatchNormLayer, ConvLayer, MaxPoolingLayer, MemoryDataLayer, Net, SoftmaxLossLayer
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.errors import CommandError, UnknownName
from latte.neuron import Neuron


def layers() -> dict[str, Ensemble]:
    net = Net(2)
    conv = ConvLayer(net, MemoryDataLayer(net, (3, 6, 6), name="data"), num_filters=4, name="conv")
    norm = BatchNormLayer(net, conv, name="norm")
    MaxPoolingLayer(net, norm, name="pool")
    loss = SoftmaxLossLayer(net, MemoryDataLayer(net, (4,)), MemoryDataLayer(net, (1,)), name="loss")
    return {layer.name: layer for layer in (*net.ensembles, loss)}


@pytest.mark.parametrize(
    ("layer", "name", "message"),
    [
        ("conv", "trainabel", r"has no attribute 'trainabel': .*\n  did you mean 'trainable'\? it has trainable"),
        ("conv", "requires_grad", r"has no attribute 'requires_grad'"),
        ("norm", "epsilno", r"did you mean 'epsilon'\? it has epsilon, momentum, trainable"),
        ("pool", "stride", r"has no attribute 'stride'"),
        ("data", "dtyp", r"did you mean 'dtype'"),
        ("loss", "weight", r"did you mean 'loss_weight'"),
        ("conv", "_hidden", r"has no attribute '_hidden'"),
    ],
)
def test_attributes_that_a_layer_does_not_have(layer: str, name: str, message: str) -> None:
    found = layers()[layer]
    with pytest.raises(UnknownName, match=message) as told:
        setattr(found, name, 1)
    assert __file__ in str(told.value.location) and name not in vars(found)
    with pytest.raises(AttributeError):
        setattr(found, name, 1)


def test_those_that_it_has() -> None:
    found = layers()
    found["norm"].momentum = 0.3  # type: ignore[attr-defined]
    found["loss"].loss_weight = 0.5  # type: ignore[attr-defined]
    found["conv"].trainable = False
    with pytest.raises(CommandError, match="data that the compiled net holds"):
        found["conv"].weights = 1  # type: ignore[attr-defined]


class Doubled(Neuron):
    def forward(self) -> None:
        self.value = 2.0 * self.input


class Of(Ensemble):
    def forward(self, inputs: Any, value: Any) -> None:
        for n in range(inputs.shape[0]):
            for c in range(inputs.shape[1]):
                value[n, c] = self.factor * inputs[n, c]


def test_classes_of_ones_own_may_have_theirs() -> None:
    net = Net(2)
    data = MemoryDataLayer(net, (3,))
    for layer in (ActivationEnsemble(Doubled, (3,)), Of(shape=(3,))):
        net.add_ensemble(layer)
        layer.factor = 3.0  # type: ignore[attr-defined]
        net.add_one_to_one_connections(data, layer)
    net.compile()
    data.set_value([[1, 2, 3], [4, 5, 6]])
    net.forward()
    assert (net.ensembles[2].get_value() == 3 * data.get_value()).all()
