"""Numbers and helper functions that a body names are those of when the net was compiled, for batches of other sizes and
copies, too. They were asked for again: the last batch of an epoch was computed with another constant than the rest."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from latte import BatchNormLayer, MemoryDataLayer, Net
from latte.ensemble import ActivationEnsemble
from latte.errors import LatteError
from latte.neuron import Neuron

SLOPE = 0.25


class module:  # as a module of settings
    slope = 0.25


def scaled(x):
    return SLOPE * x


class OfGlobal(Neuron):
    def forward(self) -> None:
        self.value = SLOPE * self.input


class OfHelper(Neuron):
    def forward(self) -> None:
        self.value = scaled(self.input)


class OfModule(Neuron):
    def forward(self) -> None:
        self.value = module.slope * self.input


class OfAttribute(ActivationEnsemble):
    def __init__(self) -> None:
        super().__init__(Neuron, (1,))
        self.slope = 0.25

    def forward(self, inputs, value):
        for n in range(inputs.shape[0]):
            value[n, 0] = self.slope * inputs[n, 0]


def declared(neuron: type[Neuron] | None) -> Net:
    net = Net(3, seed=0)
    data = MemoryDataLayer(net, (1,))
    if neuron is None:
        layer = net.add_ensemble(OfAttribute())
        net.add_one_to_one_connections(data, layer)
    else:
        net.init_activation_ensemble(neuron, data)
    return net


def said(net: Net, items: int) -> set[float]:
    return set(net.predict(np.ones((items, 1))).ravel().tolist())


CHANGES = {
    "global": (OfGlobal, lambda net, patch, value: patch.setitem(globals(), "SLOPE", value)),
    "number of a helper": (OfHelper, lambda net, patch, value: patch.setitem(globals(), "SLOPE", value)),
    "helper": (OfHelper, lambda net, patch, value: patch.setitem(globals(), "scaled", lambda x: value)),
    "module": (OfModule, lambda net, patch, value: patch.setattr(module, "slope", value)),
    "attribute": (None, lambda net, patch, value: vars(net.ensembles[-1]).update(slope=value)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_batches_of_other_sizes_and_copies(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    neuron, changed = CHANGES[change]
    net = declared(neuron)
    net.compile(target="portable", threads=1)
    changed(net, monkeypatch, 0.75)
    for each in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert said(each, 5) == {0.25}


def test_of_a_loop_over_declarations() -> None:
    nets = {}
    for slope in (0.25, 0.5, 0.75):

        class Sloped(Neuron):
            def forward(self) -> None:
                self.value = slope * self.input  # noqa: B023  # that is the point

        net = declared(Sloped)
        net.compile(target="portable", threads=1)
        nets[slope] = net
    assert {slope: said(net, 4) for slope, net in nets.items()} == {slope: {slope} for slope in nets}


def test_until_it_is_compiled_they_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    net = declared(OfGlobal)
    net.summary()
    monkeypatch.setitem(globals(), "SLOPE", 0.5)
    net.compile(target="portable", threads=1)
    assert said(net, 4) == {0.5}


def test_two_nets_of_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    first = declared(OfGlobal)
    first.compile(target="portable", threads=1)
    monkeypatch.setitem(globals(), "SLOPE", 0.5)
    second = declared(OfGlobal)
    second.compile(target="portable", threads=1)
    assert (said(first, 4), said(second, 4)) == ({0.25}, {0.5})


def test_attributes_that_the_compiled_code_has() -> None:
    net = declared(None)
    (layer,) = (each for each in net.ensembles if isinstance(each, OfAttribute))
    layer.slope = 0.5
    net.compile(target="portable", threads=1)
    layer.slope = 0.5  # as it is
    layer.note = "mine"
    for name, value in (("slope", 0.75), ("shape", (7,)), ("name", "other")):
        with pytest.raises(LatteError, match=rf"(?s){name} of .* in the compiled code.*before net.compile") as caught:
            setattr(layer, name, value)
        assert __file__ in str(caught.value.location)
    assert said(net, 5) == said(copy.deepcopy(net), 4) == {0.5}


def test_the_momentum_of_batch_norm() -> None:
    net = Net(3, seed=0)
    norm = BatchNormLayer(net, MemoryDataLayer(net, (2,)))
    net.compile(target="portable", threads=1)
    with pytest.raises(LatteError, match=r"momentum of .* is 0\.1 in the compiled code"):
        norm.momentum = 0.0
