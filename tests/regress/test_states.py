"""States that forward writes: their gradient, and those with elements for each item after a smaller batch."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest

from latte import FullyConnectedLayer, MemoryDataLayer, Net
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.errors import DeclarationError
from latte.neuron import Neuron, Param, State, constant, stop_gradient

pytestmark = pytest.mark.usefixtures("as_lowered")


class Leaky(Neuron):
    """A gradient flows through the state as through a field: there was none, without a word."""

    h = State("n", "c")

    def forward(self) -> None:
        self.h = 0.5 * self.h + self.input
        self.value = self.h


class NonLinear(Neuron):
    h = State("c", init=constant(0.3))
    w = Param("c", init=constant(2.0))

    def forward(self) -> None:
        self.h = self.h * self.h * self.w
        self.value = self.h * self.input + self.h * self.h


class Average(Ensemble):
    mean = State("c", init=constant(0.1))

    def forward(self, inputs, value, mean):
        N, C = inputs.shape
        for c in range(C):
            total = 0.0
            for n in range(N):
                total += inputs[n, c]
            mean[c] = 0.9 * mean[c] + 0.1 * total / N
        for n in range(N):
            for c in range(C):
                value[n, c] = inputs[n, c] * inputs[n, c] - mean[c] * mean[c]


class Running(Ensemble):
    """Each item reads what the one before has written."""

    s = State("c", init=constant(0.5))

    def forward(self, inputs, value, s):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                s[c] = s[c] * inputs[n, c]
                value[n, c] = s[c]


class Before(Ensemble):
    """What is read has its value before forward: a constant."""

    s = State("c", init=constant(0.5))

    def forward(self, inputs, value, s):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, c] = s[c] * inputs[n, c]
        for c in range(C):
            for n in range(N):
                s[c] += inputs[n, c]


class Overwritten(Neuron):
    """What it was before is not read at all."""

    h = State("n", "c")

    def forward(self) -> None:
        self.h = self.input * 2.0
        self.value = self.h * self.h


class Summed(Ensemble):
    m = State("c")

    def forward(self, inputs, value, m):
        N, C = inputs.shape
        for c in range(C):
            m[c] = 0.0
            for n in range(N):
                m[c] += inputs[n, c]
        for n in range(N):
            for c in range(C):
                value[n, c] = m[c] * inputs[n, c]


class Apart(Neuron):
    h = State("n", "c")

    def forward(self) -> None:
        self.h = 0.5 * self.h + self.input
        self.value = self.input + stop_gradient(self.h)


def net_with(layer: type[Neuron | Ensemble], batch: int = 5) -> tuple[Net, Ensemble, Ensemble]:
    net = Net(batch, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (3,))
    connected = FullyConnectedLayer(net, data, 3)
    if issubclass(layer, Neuron):
        made = net.add_ensemble(ActivationEnsemble(layer, (3,), dims=("c",)))
    else:
        made = net.add_ensemble(layer(shape=(3,), dims=("c",)))
    net.add_one_to_one_connections(connected, made)
    net.compile()
    return net, data, made


@pytest.mark.parametrize("layer", [Leaky, NonLinear, Average, Running, Before, Overwritten, Summed])
def test_a_gradient_flows_through_a_state(layer: type[Neuron | Ensemble]) -> None:
    net, _, made = net_with(layer)
    found = {each.array: each for each in net.check_gradients(made).gradients}
    assert (
        found.keys() <= {"inputs", "w"}
        and found["inputs"].directions == 3
        and all(each.error < 1e-8 for each in found.values())
    )


def test_the_next_batch_begins_anew() -> None:
    """The gradient of a state is that of one batch: nothing of it is left for the next."""
    net, data, made = net_with(Leaky)
    gradient = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    found = []
    for _ in range(2):
        net.set_batch(np.ones((5, 3)))
        net.forward()
        made.set_grad(gradient)
        net.clear_grad()
        net.backward()
        found.append(data.get_grad())
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0], gradient @ net["fully_connected1"].get_weights(), rtol=0, atol=1e-6)


def test_states_of_items_after_a_smaller_batch(tmp_path: Path) -> None:
    """They are saved, loaded and copied whole, whatever the last batch was: loading raised in the middle."""
    net, _, made = net_with(Apart)
    for items in (5, 2):
        net.set_batch(np.ones((items, 3)))
        net.forward()
    net.save(tmp_path / "net", None)
    state = net.state_dict()
    assert state["apart1.h"].shape == (5, 3) and (state["apart1.h"][0] != state["apart1.h"][4]).all()
    assert made.get_h().shape == (2, 3)
    weights = net["fully_connected1"].get_weights()
    net["fully_connected1"].set_weights(np.zeros((3, 3)))
    made.set_h(np.ones((2, 3)))
    assert (net.state_dict()["apart1.h"][:2] == 1).all()
    assert (net.state_dict()["apart1.h"][2:] == state["apart1.h"][2:]).all()
    net.load(tmp_path / "net")
    np.testing.assert_array_equal(net["fully_connected1"].get_weights(), weights)
    net.load_state_dict(net.state_dict())
    other, _, _ = net_with(Apart)
    other.load(tmp_path / "net")
    for each in (net, copy.deepcopy(net), other):
        np.testing.assert_array_equal(each.state_dict()["apart1.h"], state["apart1.h"])
    made.set_h(np.full((5, 3), 2.0))
    assert (net.state_dict()["apart1.h"] == 2).all() and made.get_h().shape == (2, 3)


def test_gradients_of_states_of_items_are_checked_for_any_batch() -> None:
    for batch in (2, 5):
        net, _, made = net_with(Apart, batch)
        assert all(each.directions == 2 for each in net.check_gradients(made, batch_size=3, directions=2).gradients)


def test_items_are_the_first_dimension_of_a_state() -> None:
    """A smaller batch uses the first rows of the array; of columns it used others than a whole batch."""
    message = r"State\('c', 'n'\): the batch is the first dimension(.|\n)*State\('n', 'c'\)"
    with pytest.raises(DeclarationError, match=message):
        State("c", "n")
