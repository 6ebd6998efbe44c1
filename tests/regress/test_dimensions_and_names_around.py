"""A name that is a dimension of the layer, and a number of the Python code around, was taken for the number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.neuron import Neuron
from swirl.errors import BodyError

c = 2


def compiled(neuron: type, dim: str) -> Net:
    net = Net(1)
    data = MemoryDataLayer(net, (8,))
    layer = net.add_ensemble(Ensemble(neuron, (3,), (dim,), name="own"))
    net.add_connections(data, layer, lambda place: range(8))
    net.compile(target="portable")
    data.set_value(np.arange(8.0)[None])
    net.forward()
    return net


class Subscript(Neuron):
    def forward(self) -> None:
        self.value = self.inputs[c]


class Number(Neuron):
    def forward(self) -> None:
        self.value = self.inputs[0] + 100.0 * c


def closure() -> type:
    n = 3

    class Batch(Neuron):
        def forward(self) -> None:
            self.value = self.inputs[0] / n

    return Batch


@pytest.mark.parametrize(
    ("make", "dim", "name"),
    [
        (lambda: Subscript, "c", "c is a dimension of the layer, and 2"),
        (lambda: Number, "c", "c is a dimension of the layer, and 2"),
        (closure, "k", "n is a dimension of the layer, and 3"),
    ],
)
def test_a_name_with_two_meanings_is_refused(make: Callable[[], type], dim: str, name: str) -> None:
    with pytest.raises(BodyError, match=f"{name} in the Python code around\n  choose another name for one of them"):
        compiled(make(), dim)


def test_each_meaning_by_itself() -> None:
    assert compiled(Subscript, "k")["own"].get_value().tolist() == [[2.0, 2.0, 2.0]]
    c_of = type("Own", (Neuron,), {"forward": own_index})
    assert compiled(c_of, "place")["own"].get_value().tolist() == [[0.0, 1.0, 2.0]]


def own_index(self: Neuron) -> None:
    self.value = self.inputs[place]  # noqa: F821
