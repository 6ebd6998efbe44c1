"""What a user gets wrong is a Latte error with the place, not an error of Python's from inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latte import FullyConnectedLayer, MemoryDataLayer, Net, SoftmaxLossLayer
from latte.ensemble import ActivationEnsemble
from latte.errors import CommandError, DataError, DeclarationError
from latte.neuron import Neuron, Param
from latte.solver import SGD


def with_initial(init: Any) -> Net:
    """A net with a parameter that begins like this."""

    class Scaled(Neuron):
        factor = Param("c", init=init)

        def forward(self) -> None:
            self.value = self.factor * self.input

    net = Net(1, seed=0)
    data = MemoryDataLayer(net, (3,))
    scaled = net.add_ensemble(ActivationEnsemble(Scaled, (3,), ("c",)))
    net.add_one_to_one_connections(data, scaled)
    return net


def test_a_net_is_not_loaded_from_its_class(tmp_path: Path) -> None:
    for call in (
        lambda: Net.load("x.st"),  # type: ignore[arg-type, call-arg]
        lambda: Net.load(path="x.st"),  # type: ignore[call-arg]
        lambda: Net.load(tmp_path, None),  # type: ignore[arg-type]
    ):
        with pytest.raises(CommandError, match=r"Net.load needs a net\n  declare the net .*, then net.load") as caught:
            call()
        assert __file__ in str(caught.value.location)


class Doubled(Neuron):
    def forward(self, x):  # type: ignore[override]
        self.value = 2.0 * x


class Passed(Neuron):
    def forward(self):
        self.value = self.input

    def backward(self, gradient, *others):  # type: ignore[override]
        self.grad_input += self.grad


@pytest.mark.parametrize(
    ("kind", "message"), [(Doubled, "forward takes x"), (Passed, "backward takes gradient, others")]
)
def test_a_neurons_phases_take_only_self(kind: type[Neuron], message: str) -> None:
    net = Net(1)
    data = MemoryDataLayer(net, (3,))
    with pytest.raises(
        DeclarationError, match=rf"{message}, but .* only self\n  what it reads is self.input"
    ) as caught:
        net.init_activation_ensemble(kind, data)
    assert __file__ in str(caught.value.location) and net.ensembles == [data]


def test_the_array_that_is_none_is_named() -> None:
    net = Net(2, seed=0)
    data, label = MemoryDataLayer(net, (3,)), MemoryDataLayer(net, (1,))
    SoftmaxLossLayer(net, FullyConnectedLayer(net, data, 2), label)
    net.compile(target="portable", threads=1)
    images, order = np.zeros((4, 3)), "order of the data layers: data1, data2"
    for call, message in (
        (lambda: net.evaluate(images, None), f"the array for data2 is None\n.*{order}"),
        (lambda: net.fit(None, [0] * 4, solver=SGD(net)), f"the array for data1 is None\n.*{order}"),
        (lambda: net.set_batch(images[:2], None), "the array for data2 is None"),
        (lambda: net.predict(None), "the array for data1 is None"),
        (lambda: data.set_value(None), "data1.set_value: an array is needed, not None"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            call()
        assert __file__ in str(caught.value.location)


@pytest.mark.parametrize("init", [lambda shape: np.zeros(shape), lambda: 0.0, lambda shape, fan_in, *, generator: 0.0])
def test_an_initialiser_of_other_parameters_is_refused_where_it_is_declared(init: Any) -> None:
    with pytest.raises(DeclarationError, match=r"init must take \(shape, fan_in, generator\)") as caught:
        Param("c", init=init)
    assert __file__ in str(caught.value.location)


def test_an_initialiser_that_returns_something_else() -> None:
    wrong: Any
    for wrong, message in (
        (lambda s, f, g: "a", r"scaled1.factor: init returned 'a', not an array of shape \(3,\)"),
        (lambda s, f, g: None, "init returned None"),
        (lambda s, f, g: 0.5, "init returned 0.5"),
        (lambda s, f, g: [[1, 2], [3]], r"init returned \[\[1, 2\], \[3\]\]"),
        (lambda s, f, g: 1j, "init returned 1j"),
        (lambda s, f, g: 10**400, "init returned 1000"),
        (lambda s, f, g: np.zeros(4), r"init returned an array of shape \(4,\), not an array of shape \(3,\)"),
        (lambda s, f, g: g.normal(s, "x"), "init raised"),
    ):
        net = with_initial(wrong)
        with pytest.raises(DeclarationError, match=message) as caught:
            net.compile(target="portable")
        assert caught.value.location == f"{__file__}:{wrong.__code__.co_firstlineno}"
    with pytest.raises(DeclarationError, match="init raised TypeError: ") as caught:
        with_initial(np.zeros).compile(target="portable")
    assert __file__ in str(caught.value.location)


def test_an_initialiser_of_ones_own() -> None:
    net = with_initial(lambda shape, fan_in, generator: generator.uniform(1, 2, shape) + fan_in)
    net.compile(target="portable")
    assert ((net["scaled1"].get_factor() > 2) & (net["scaled1"].get_factor() < 3)).all()
