"""Sources by name, and ``*sources``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from latte import AddLayer, ConcatLayer, MemoryDataLayer, MultiplyLayer, Net, TanhLayer
from latte.ensemble import Ensemble, LossEnsemble
from latte.errors import BodyError, DeclarationError, MappingError
from latte.neuron import Neuron, eachindex
from tests.layers.against_torch import Case, check_all

torch = pytest.importorskip("torch")


class Products(Ensemble):
    """Every row of ``left`` times every row of ``right``: the two may be one source."""

    def forward(self, value, left, right):
        N, T, C = left.shape
        for n in range(N):
            for t in range(T):
                for s in range(right.shape[1]):
                    for c in range(C):
                        value[n, t, s] += left[n, t, c] * right[n, s, c]


class Mixed(Ensemble):
    """The first source times the sum of the others, each with a weight of its own."""

    def __init__(self, shape: tuple[int, ...], weights: tuple[float, ...]):
        super().__init__(shape=shape)
        self.weights = weights

    def forward(self, first, value, *others):
        for i in eachindex(value):
            total = 0.0
            for number, other in enumerate(others):
                total += (number + 1) * other[i]
            for other, weight in zip(others[1:], self.weights, strict=True):
                part = weight * other[i]
                total += part
            value[i] = first[i] * total + others[-1][i] * len(others)


class Gate(Neuron):
    """A source at its own index, and one that is connected by a mapping; ``backward`` by hand adds to one of them."""

    signal: Any
    grad_signal: Any
    control: Any
    grad_control: Any

    def forward(self) -> None:
        self.value = self.signal * self.control

    def backward(self) -> None:
        self.grad_signal += self.grad * self.control
        self.grad_control += self.grad * self.signal


def products(net: Net, left: Ensemble, right: Ensemble) -> Ensemble:
    made = net.add_ensemble(Products(shape=(left.shape[0], right.shape[0])))
    net.add_connections(left, made, name="left")
    net.add_connections(right, made, name="right")
    return made


def mixed(net: Net, *sources: Ensemble) -> Ensemble:
    made = net.add_ensemble(Mixed(sources[0].shape, (0.5, 0.25)))
    for source in sources[1:]:
        net.add_one_to_one_connections(source, made)
    net.add_connections(sources[0], made, name="first")
    return made


def gate(net: Net, signal: Ensemble, control: Ensemble) -> Ensemble:
    made = net.add_ensemble(Ensemble(Gate, signal.shape, dims=("c", "y")))
    net.add_one_to_one_connections(signal, made, name="signal")
    net.add_connections(control, made, lambda c, y: (c,), name="control")
    return made


def mix(a: Any, b: Any, c: Any, d: Any) -> Any:
    return a * (b + 2 * c + 3 * d + 0.5 * c + 0.25 * d) + 3 * d


CASES = {
    "two": Case(products, lambda a, b: a @ b.transpose(1, 2), (((3, 5), (4, 5)),)),
    "one twice": Case(
        lambda net, a: products(net, t := TanhLayer(net, a), t),
        lambda a: torch.tanh(a) @ torch.tanh(a).transpose(1, 2),
        (((3, 5),),),
    ),
    "any number": Case(mixed, mix, (((7,),) * 4, ((2, 3),) * 4)),
    "neurons": Case(gate, lambda a, b: a * b[:, :, None], (((3, 5), (3,)),)),
}


@pytest.mark.parametrize("name", CASES)
def test_against_pytorch(name: str) -> None:
    check_all(CASES[name], None)


def test_a_loss_of_three_sources() -> None:
    class Weighted(LossEnsemble):
        def forward(self, inputs, label, importance, value):
            N, C = inputs.shape
            for n in range(N):
                for c in range(C):
                    value[0] += importance[n, 0] * (inputs[n, c] - label[n, c]) * (inputs[n, c] - label[n, c])

    def declare(net: Net, x: Ensemble, t: Ensemble, w: Ensemble) -> Ensemble:
        loss = net.add_ensemble(Weighted())
        net.add_loss_connection(w, loss, name="importance")
        net.add_loss_connection(x, loss)
        net.add_loss_connection(t, loss)
        return loss

    def same(x: Any, t: Any, w: Any) -> Any:
        return (w * (x - t.detach()) ** 2).sum()

    check_all(Case(declare, same, (((5,), (5,), (1,)),)), None)


def body(of: Callable[..., Any]) -> Callable[[Net], Any]:
    """Declares and compiles an ensemble of two sources with this forward."""

    def declare(net: Net) -> None:
        kind = type("Tried", (Ensemble,), {"forward": of, "few": (1,), "kind": "tried"})
        made = net.add_ensemble(kind(shape=(3,)))
        for _ in range(2):
            net.add_connections(MemoryDataLayer(net, 3), made)
        net.compile()

    return declare


def whole(self, value, *sources):
    for i in eachindex(value):
        value[i] = sources


def too_few(self, value, *sources):
    for i in eachindex(value):
        for source, weight in zip(sources, self.few, strict=True):
            value[i] += weight * source[i]


def outside(self, value, *sources):
    for i in eachindex(value):
        value[i] = sources[2][i]


def one_variable(self, value, *sources):
    for pair in enumerate(sources):
        value[0, 0] = pair


def named_like_a_field(self, *value):
    pass


def named(name: Any) -> Callable[[Net], Any]:
    def declare(net: Net) -> None:
        source = MemoryDataLayer(net, (3, 5))
        made = net.add_ensemble(Products(shape=(3, 3), dims=("t", "s")))
        net.add_connections(source, made, name="left")
        net.add_connections(source, made, name=name)

    return declare


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (body(whole), r"sources stands for 2 sources here(.|\n)*for source in sources"),
        (body(too_few), r"self.few must be 2 constants, one for each source"),
        (body(outside), r"sources\[2\]: a source is chosen by a number from 0 to 1"),
        (body(one_variable), r"for pair in enumerate\(sources\)"),
        (body(named_like_a_field), r"\*value has the name of a field"),
        (named("left"), "'left' cannot name a source of .*: another source or field has it"),
        (named("value"), "'value' cannot name a source"),
        (named("inputs1"), "'inputs1' cannot name a source of .*: the name has another meaning"),
        (named("t"), "it names a dimension"),
        (named("grad_right"), "it would be a gradient's"),
        (named("a b"), "the name has another meaning"),
        (named(3), "the name of a source is a string, not 3"),
    ],
)
def test_what_is_refused(make: Callable[[Net], Any], message: str) -> None:
    with pytest.raises((BodyError, DeclarationError), match=message) as caught:
        make(Net(2))
    assert "test_several_sources.py" in str(caught.value)


def test_neurons_need_a_mapping() -> None:
    net = Net(2)
    made = net.add_ensemble(Ensemble(Gate, (3,)))
    with pytest.raises(MappingError, match="the mapping must be a function, not None"):
        net.add_connections(MemoryDataLayer(net, 3), made)


def test_getters_by_name() -> None:
    net = Net(2, seed=0)
    net.force_backward = True
    left, right = MemoryDataLayer(net, (3, 5)), MemoryDataLayer(net, (2, 5))
    made = products(net, left, right)
    net.compile(threads=1)
    net.set_batch(np.ones((2, 3, 5)), np.full((2, 2, 5), 2.0))
    made.set_grad(np.ones((2, 3, 2)))
    net.forward()
    net.backward()
    np.testing.assert_array_equal(made.get_right(), right.get_value())
    np.testing.assert_array_equal(made.get_grad_left(), np.full((2, 3, 5), 4.0))


@pytest.mark.parametrize("layer", [AddLayer, MultiplyLayer, ConcatLayer])
def test_several_sources_are_one_list(layer: Any) -> None:
    net = Net(2)
    source = MemoryDataLayer(net, (3,))
    with pytest.raises(DeclarationError, match=rf"given 2 arguments(.|\n)*{layer.__name__}\(net, \[a, b\]\)") as caught:
        layer(net, source, source)
    assert __file__ in str(caught.value.location)
