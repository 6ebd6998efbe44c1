"""Bodies that leave an array are refused; conditions on loop variables keep them inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.errors import BodyError, DataError
from latte.neuron import Neuron, Param, eachindex, ones


class After(Ensemble):
    def forward(self, inputs: Any, value: Any) -> None:
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, c] = inputs[n, c + 1]


class Doubled(Ensemble):
    def forward(self, inputs: Any, value: Any) -> None:
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, c] = inputs[n, 2 * c]


class OtherItem(Ensemble):
    def forward(self, inputs: Any, value: Any) -> None:
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, c] = inputs[n + 5, c]


class Stored(Ensemble):
    def forward(self, inputs: Any, value: Any) -> None:
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, c - 1] = inputs[n, c]


class FromTheEnd(Ensemble):
    def forward(self, inputs: Any, value: Any) -> None:
        for n in range(len(inputs)):
            for c in range(4):
                value[n, c] = inputs[n, -1 - c]


class OnData(Ensemble):
    def forward(self, inputs: Any, value: Any) -> None:
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                if inputs[n, c] > 0.0:
                    value[n, c] = inputs[n, c + 1]


class TooWide(Ensemble):
    def forward(self, inputs: Any, value: Any) -> None:
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, c] = inputs[n, c + 1] if c < C else 0.0


class Triangle(Ensemble):
    def forward(self, inputs: Any, value: Any) -> None:
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                for i in range(c + 1):
                    value[n, c] += inputs[n, c + i]


class Backwards(Ensemble):
    def forward(self, inputs: Any, value: Any) -> None:
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, c] = inputs[n, c]

    def backward(self, grad: Any, grad_inputs: Any) -> None:
        N, C = grad.shape
        for n in range(N):
            for c in range(C):
                grad_inputs[n, c] = grad[n, c + 1]


class OwnTable(Neuron):
    table = Param(shape=(4,), init=ones)

    def forward(self) -> None:
        self.value = 0.0
        for i in range(3):
            self.value += self.inputs[i] * self.table[i + 2]


class Window(Neuron):
    def forward(self) -> None:
        self.value = 0.0
        for i in eachindex(self.inputs):
            self.value += self.inputs[i + 1]


class Guarded(Ensemble):
    def forward(self, inputs: Any, value: Any) -> None:
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, c] = inputs[n, c + 1] if c < C - 1 else 0.0
                if c >= 2:
                    value[n, c] += inputs[n, c - 2]
                value[n, c] += inputs[n, (c + 3) % C] + inputs[n, max(c - 1, 0)]


def compiled(layer: type[Ensemble] | type[Neuron]) -> tuple[Net, Ensemble, Ensemble]:
    net = Net(2)
    net.force_backward = True
    data = MemoryDataLayer(net, (4,))
    made: Callable[..., Ensemble] = layer if issubclass(layer, Ensemble) else lambda **shape: Ensemble(layer, **shape)
    ensemble = net.add_ensemble(made(shape=(4,), dims=("c",)))
    net.add_connections(data, ensemble, lambda c: (range(4),))
    net.compile(target="portable")
    return net, data, ensemble


class Mirrored(Ensemble):
    """A sum of three neighbours; beyond an end it is mirrored."""

    def forward(self, inputs: Any, value: Any) -> None:
        C = inputs.shape[1]
        for n in range(len(inputs)):
            for c in range(C):
                for k in range(3):
                    position = abs(c + k - 1)
                    value[n, c] += inputs[n, min(position, 2 * C - 2 - position)] / len(inputs)


class ByChoice(Ensemble):
    def forward(self, inputs: Any, value: Any) -> None:
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, c] = inputs[n, c + 1 if c < C - 1 else 0]


class AssignedTwice(Ensemble):
    def forward(self, inputs: Any, value: Any) -> None:
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                position = c - 1
                if position < 0:
                    position = -position
                value[n, c] = inputs[n, position]


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (After, r"inputs\[n, c \+ 1\]: c \+ 1 runs from 1 to 4, the extent is 4"),
        (Doubled, r"inputs\[n, 2 \* c\]: c \* 2 runs from 0 to 6, the extent is 4"),
        (OtherItem, r"n \+ 5 runs from 5 to 6, the extent is 2"),
        (Stored, r"value\[n, c - 1\]: c - 1 runs from -1 to 2, the extent is 4"),
        (
            FromTheEnd,
            r"-c - 1 runs from -4 to -1, the extent is 4\n  subscripts count from 0: the last element is at 3",
        ),
        (OnData, r"c \+ 1 is outside of 0 … 3 for c = 3\n.* condition on loop variables"),
        (TooWide, r"c \+ 1 is outside of 0 … 3 for c = 3\n.* condition on loop variables"),
        (Triangle, r"c \+ i is outside of 0 … 3 for c = 2, i = 2\n"),
        (Backwards, r"grad\[n, c \+ 1\]: c \+ 1 runs from 1 to 4, the extent is 4"),
        (OwnTable, r"self.table\[i \+ 2\]: i \+ 2 runs from 2 to 4, the extent is 4"),
        (Window, r"i \+ 1 runs from 1 to 4, the extent is 4"),
    ],
)
def test_what_leaves_an_array_is_refused(layer: type, message: str) -> None:
    with pytest.raises(BodyError, match=message) as caught:
        compiled(layer)
    assert str(caught.value.location).startswith(__file__)


def test_conditions_keep_accesses_inside() -> None:
    net, data, layer = compiled(Guarded)
    x = np.arange(8, dtype=np.float32).reshape(2, 4) + 1
    data.set_value(x)
    net.forward()
    expected = np.zeros((2, 4), np.float32)
    for c in range(4):
        expected[:, c] = (x[:, c + 1] if c < 3 else 0) + (x[:, c - 2] if c >= 2 else 0)
        expected[:, c] += x[:, (c + 3) % 4] + x[:, max(c - 1, 0)]
    np.testing.assert_array_equal(layer.get_value(), expected)


def test_a_mirrored_border() -> None:
    net, data, layer = compiled(Mirrored)
    x = np.arange(8, dtype=np.float32).reshape(2, 4) ** 2
    data.set_value(x)
    net.forward()
    layer.set_grad(np.ones((2, 4)))
    net.backward()
    around = np.pad(x, ((0, 0), (1, 1)), mode="reflect")
    np.testing.assert_array_equal(layer.get_value(), (around[:, :4] + around[:, 1:5] + around[:, 2:]) / 2)
    np.testing.assert_array_equal(data.get_grad(), np.array([[2, 4, 4, 2]] * 2) / 2)


def test_abs_in_a_mapping() -> None:
    class First(Neuron):
        def forward(self) -> None:
            self.value = self.input

    net = Net(2)
    data = MemoryDataLayer(net, (4,))
    layer = net.add_ensemble(Ensemble(First, (7,), dims=("c",)))
    net.add_connections(data, layer, lambda c: (range(abs(c - 3), abs(c - 3) + 1),))
    net.compile(target="portable")
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    data.set_value(x)
    net.forward()
    np.testing.assert_array_equal(layer.get_value(), x[:, [3, 2, 1, 0, 1, 2, 3]])


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (ByChoice, r"c \+ 1 if c < C - 1 else 0 is not: it chooses\n  abs, min and max may be part of it"),
        (AssignedTwice, r"position cannot be a subscript here.*\n  position = … once, .*abs, min and max"),
    ],
)
def test_a_subscript_that_chooses_is_refused(layer: type, message: str) -> None:
    with pytest.raises(BodyError, match=message):
        compiled(layer)


def test_a_source_without_a_name_is_told_how_to_get_one() -> None:
    class Named(Ensemble):
        def forward(self, x: Any, value: Any) -> None:
            value[0, 0] = x[0, 0]

    with pytest.raises(BodyError, match=r"a source is called as net\.add_connections\(…, name='x'\) says"):
        compiled(Named)


def test_a_source_that_nothing_reads_has_no_gradient() -> None:
    class One(Ensemble):
        def forward(self, inputs: Any, value: Any) -> None:
            value[0, 0] = inputs[0, 0]

    net = Net(2)
    net.force_backward = True
    data, other = MemoryDataLayer(net, (4,)), MemoryDataLayer(net, (4,), name="other")
    layer = net.add_ensemble(One(shape=(4,)))
    net.add_connections(data, layer)
    net.add_connections(other, layer)
    net.compile(target="portable")
    with pytest.raises(DataError, match=r"other\.grad\n  nothing with a gradient is computed from other\.value"):
        other.get_grad()
