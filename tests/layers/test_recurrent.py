"""Recurrent layers from initial states and backwards against PyTorch; all steps share parameters, and kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from latte import GRULayer, LSTMLayer, MemoryDataLayer, Net, RNNLayer
from latte.ensemble import Ensemble
from latte.errors import BodyError, DataError, DeclarationError
from latte.neuron import Constant, Neuron, given
from tests.layers.references import alone, assert_within
from tests.lowered import lowered

torch = pytest.importorskip("torch")
# Nets with several recurrent layers have three items of four features and five units: equal steps are compiled once.
NAMES = {
    field: f"{field.replace('weights', 'weight')}_l0" for field in ("weights_ih", "weights_hh", "bias_ih", "bias_hh")
}
CASES: dict[str, tuple[Callable[..., Ensemble], Any, dict[str, Any], dict[str, Any]]] = {
    "rnn": (RNNLayer, torch.nn.RNN, {}, {}),
    "relu rnn": (RNNLayer, torch.nn.RNN, {"nonlinearity": "relu"}, {"nonlinearity": "relu"}),
    "lstm": (LSTMLayer, torch.nn.LSTM, {}, {}),
    "gru": (GRULayer, torch.nn.GRU, {}, {}),
}


def near(ours: np.ndarray, theirs: Any, what: str) -> None:
    expected = theirs.detach().numpy()
    assert_within(ours, expected, 3e-5 * float(np.abs(expected).max()), what)  # of sums of some hundred terms


STARTED = [
    ("rnn", (5,), 3, False, True),
    ("rnn", (1, 5), 4, True, False),
    ("lstm", (2, 5), 5, True, True),
    ("lstm", (2, 5), 1, False, False),
    ("gru", (1, 5), 5, False, False),
    ("gru", (5,), 3, True, True),
]
"""Layer; shape of the initial state; steps; backwards; whether the whole sequence is returned."""


@pytest.mark.parametrize(("name", "shape", "steps", "reverse", "whole"), STARTED, ids=str)
def test_initial_states_and_backwards(
    name: str, shape: tuple[int, ...], steps: int, reverse: bool, whole: bool
) -> None:
    layer, theirs, _, _ = CASES[name]
    net = Net(3, seed=1)
    net.force_backward = True
    data, state = MemoryDataLayer(net, (steps, 4)), MemoryDataLayer(net, shape)
    ours = layer(net, data, 5, return_sequence=whole, initial=state, reverse=reverse)
    with lowered(name != "lstm" or not whole):  # cells have the same schedules as those that start from zeros
        net.compile()
    generator = np.random.default_rng(2)
    x, before = (generator.standard_normal((3, *each.shape)).astype(np.float32) for each in (data, state))
    gradient = generator.standard_normal((3, *ours.shape)).astype(np.float32)
    data.set_value(x)
    state.set_value(before)
    ours.set_grad(gradient)
    net.forward()
    net.backward()
    same = theirs(4, 5, batch_first=True).double()
    with torch.no_grad():
        for field, other in NAMES.items():
            getattr(same, other).copy_(torch.tensor(getattr(ours, f"get_{field}")()))
    tx, tb = (torch.tensor(each, dtype=torch.float64, requires_grad=True) for each in (x, before))
    rows = tb.reshape(3, -1, 5).transpose(0, 1).contiguous()
    hidden = (rows[:1], rows[1:]) if name == "lstm" else rows
    value = same(tx.flip(1) if reverse else tx, hidden)[0]
    value = value[:, -1] if not whole else value.flip(1) if reverse else value
    value.backward(torch.tensor(gradient, dtype=torch.float64))
    near(ours.get_value(), value, "value")
    near(data.get_grad(), tx.grad, "gradient of the source")
    near(state.get_grad(), tb.grad, "gradient of the state")
    for field, other in NAMES.items():
        near(getattr(ours, f"get_grad_{field}")(), getattr(same, other).grad, f"gradient of {field}")


@pytest.mark.usefixtures("as_lowered")
@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_an_encoder_backwards(name: str) -> None:
    """It ends with the first element of its sequence, however its values are given."""
    layer, found = CASES[name][0], []
    for whole in (True, False):
        net = Net(3, seed=1)
        data = [MemoryDataLayer(net, (steps, 4)) for steps in (3, 2)]
        encoder = layer(net, data[0], 5, return_sequence=whole, reverse=True)
        decoder = layer(net, data[1], 5, initial=encoder)
        net.compile(threads=1)
        generator = np.random.default_rng(0)
        net.set_batch(*(generator.standard_normal((3, *each.shape)) for each in data))
        net.forward()
        found.append(decoder.get_value())
        if whole:
            parameters = [
                (each, field, getattr(each, f"get_{field}")()) for each in (encoder, decoder) for field in NAMES
            ]
            names = [each.name for each, _, _ in parameters]
        else:
            for each_name, (_, field, value) in zip(names, parameters, strict=True):
                getattr(net[each_name], f"set_{field}")(value)
            net.forward()
            found[-1] = decoder.get_value()
    np.testing.assert_array_equal(*found)


@pytest.mark.usefixtures("as_lowered")
@pytest.mark.parametrize(("name", "whole"), [("rnn", True), ("lstm", False), ("gru", True)])
def test_an_encoder_and_a_decoder(name: str, whole: bool) -> None:
    """A layer stands for its last state: two of them, with the same parameters, are one over the whole sequence."""
    layer, _, options, _ = CASES[name]
    x = np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)
    values = []
    for parts in ((5,), (2, 3)):
        net = Net(3, seed=1)
        ends: list[Ensemble] = []
        for number, steps in enumerate(parts):
            data = MemoryDataLayer(net, (steps, 4))
            last = number == len(parts) - 1
            before = {"initial": ends[-1]} if ends else {}
            ends.append(layer(net, data, 5, return_sequence=whole or last, **before, **options))
        net.compile(threads=1)
        if len(parts) == 1:
            parameters = {field: getattr(ends[0], f"get_{field}")() for field in NAMES}
        for end in ends:
            for field, value in parameters.items():
                getattr(end, f"set_{field}")(value)
        net.set_batch(*np.split(x, np.cumsum(parts)[:-1], axis=1))
        net.forward()
        values.append(ends[-1].get_value()[:, -1])
    for value in values[1:]:
        np.testing.assert_allclose(value, values[0], rtol=0, atol=1e-6)


def test_initial_states_that_do_not_fit() -> None:
    net = Net(2)
    source, other = MemoryDataLayer(net, (5, 3)), MemoryDataLayer(net, (4,))
    encoder = GRULayer(net, source, 4)
    for initial, message in (
        (other, r"initial: the state has shape \(2, 4\), not \(4,\) as data2"),
        (encoder, "initial: gru1 is another kind of layer, whose state does not fit\n  a layer of the same kind"),
        ("zeros", "initial: the input must be what a layer returned, not 'zeros'"),
    ):
        with pytest.raises(DeclarationError, match=message):
            LSTMLayer(net, source, 4, initial=initial)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match=r"the state has shape \(4,\) or \(1, 4\), not \(5, 3\)"):
        GRULayer(net, source, 4, initial=source)
    with pytest.raises(DeclarationError, match="reverse must be True or False, not 'yes'"):
        GRULayer(net, source, 4, reverse="yes")  # type: ignore[arg-type]


@pytest.mark.usefixtures("as_lowered")
def test_one_step() -> None:
    trial = alone(2, (1, 3), lambda net, data: GRULayer(net, data, 4, name="one"))
    assert trial.layer.shape == (1, 4) and not trial.layer.get_grad_weights_ih().shape[0] % 3
    assert sorted(trial.net.state_dict()) == ["one.bias_hh", "one.bias_ih", "one.weights_hh", "one.weights_ih"]


def test_steps_share_what_is_compiled() -> None:
    """16 steps have the kernels of 4, and one more height of the tree of rows."""
    made = {}
    for steps in (4, 16):
        net = Net(2, seed=1)
        RNNLayer(net, MemoryDataLayer(net, (steps, 3)), 4)
        made[steps] = net.compile(threads=1, target="portable").kernels
    # Forward, backward and update of the first step, of those in between, of the last one; the rows of four steps, and
    # of as many such rows as there are.
    assert made[16] <= made[4] + 3


def test_gates_are_in_lanes() -> None:
    """The loop over states, too, after items have been copied for a tile of sums."""
    net = Net(4, seed=1)
    LSTMLayer(net, MemoryDataLayer(net, (2, 3)), 32)
    net.compile(threads=1)
    explained = str(net.explain("lstm1_step1", "forward"))
    for command in ("vectorize('forward', 'j', ", "unroll_and_jam('forward', 'n', ", "vectorize('forward', 'h', "):
        assert f"applied  {command}" in explained


@pytest.mark.parametrize("layer", [RNNLayer, LSTMLayer, GRULayer])
def test_arguments_that_do_not_fit(layer: Callable[..., Ensemble]) -> None:
    net = Net(2)
    source = MemoryDataLayer(net, (5, 3))
    for arguments, message in (
        ((MemoryDataLayer(net, 3), 4), "reads 2 dimensions without the batch"),
        ((source, 0), "hidden_size must be a positive integer, not 0"),
    ):
        with pytest.raises(DeclarationError, match=message) as caught:
            layer(net, *arguments)
        assert "test_recurrent.py" in str(caught.value)
    with pytest.raises(DeclarationError, match="return_sequence must be True or False, not 1"):
        layer(net, source, 4, return_sequence=1)
    with pytest.raises(DeclarationError, match="nonlinearity must be 'tanh' or 'relu', not 'elu'"):
        RNNLayer(net, source, 4, "elu")


def test_constants() -> None:
    """They are neither saved nor set, and no phase writes them."""
    net = Net(2)
    data = MemoryDataLayer(net, (3,))

    class Scaled(Neuron):
        factor = Constant("c", init=given(np.array([1, 2, 3])))

        def forward(self):
            self.value = self.factor * self.input

    class Changed(Scaled):
        def forward(self):
            self.factor = self.input
            self.value = self.input

    scaled = net.add_ensemble(Ensemble(Scaled, (3,), ("c",), kind="scaled"))
    net.add_one_to_one_connections(data, scaled)
    net.compile(threads=1)
    data.set_value(np.ones((2, 3)))
    net.forward()
    np.testing.assert_array_equal(scaled.get_value(), [[1, 2, 3]] * 2)
    assert not net.state_dict()
    with pytest.raises(DataError, match=r"factor is a Constant(.|\n)*State"):
        scaled.set_factor(np.ones(3))
    other = Net(2)
    changed = other.add_ensemble(Ensemble(Changed, (3,), ("c",)))
    other.add_one_to_one_connections(MemoryDataLayer(other, (3,)), changed)
    with pytest.raises(BodyError, match=r"self.factor is a constant(.|\n)*State"):
        other.compile()
