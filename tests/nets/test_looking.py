"""A net at a glance, its gradients checked, and copies of it."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest

from latte import (
    AccuracyLayer,
    ConvLayer,
    DropoutLayer,
    FullyConnectedLayer,
    MaxPoolingLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    SoftmaxLossLayer,
)
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.errors import CommandError, DataError, DerivativeError, TrainingError
from latte.neuron import Neuron, Param, ones, stop_gradient
from latte.solver import SGD, Adam
from tests.nets.references import random_data, reused

BATCH = 6


# --- summary ----------------------------------------------------------------------------------------------
def test_summary_before_and_after_compiling() -> None:
    net = Net(4, keep="all")
    scores = FullyConnectedLayer(net, ReLULayer(net, FullyConnectedLayer(net, MemoryDataLayer(net, (3, 5)), 7)), 2)
    declared = net.summary()
    assert [row.name for row in declared.layers] == ["data1", "fully_connected1", "relu1", "fully_connected2"]
    first = declared.layers[1]
    assert first.parameters == 7 * 15 + 7 and first.shape == (7,) and first.sources == ("data1",)
    assert first.memory == 4 * 2 * (first.parameters + 4 * 7)  # values and parameters, and gradients of both
    assert first.operations == 4 * 7 * 15 * 2 and first.exact
    assert declared.parameters == 112 + 7 * 2 + 2 and "as declared" in str(declared)
    net.compile(threads=1)
    compiled = net.summary()
    assert compiled.operations == declared.operations and compiled.parameters == declared.parameters
    assert compiled.memory == sum(array.nbytes for array in net.executable.arrays.values())
    text = str(compiled)
    assert text.splitlines()[0] == "4 layers, batch size 4"
    assert text.splitlines()[2].split() == ["layer", "kind", "shape", "reads", "parameters", "memory", "forward"]
    assert text.splitlines()[4].split()[:5] == ["fully_connected1", "fully_connected", "7", "data1", "112"]
    assert text.splitlines()[-1].split()[:2] == ["all", "128"]
    page = compiled._repr_html_()
    assert "<td>fully_connected1</td>" in page and "3 × 5" in page
    facts = json.loads(compiled.to_json())
    assert facts["parameters"] == 128 and facts["layers"][2]["kind"] == "relu"
    net.set_batch(np.zeros((2, 3, 5)))
    assert net.summary().batch_size == 2 and net.summary().operations * 2 == compiled.operations
    assert net[scores.name] is scores


# --- gradients --------------------------------------------------------------------------------------------
class Squared(Neuron):
    """Its own backward and update, both right."""

    factor = Param("c", shape=(1,), init=ones)

    def forward(self) -> None:
        self.value = self.input * self.factor[0] * self.factor[0]

    def backward(self) -> None:
        self.grad_input += self.grad * self.factor[0] * self.factor[0]

    def update(self) -> None:
        self.grad_factor[0] += self.grad * self.input * self.factor[0] * 2


class WrongBackward(Squared):
    def backward(self) -> None:
        self.grad_input += self.grad * self.factor[0]


class WrongUpdate(Squared):
    def update(self) -> None:
        self.grad_factor[0] += self.grad * self.input * self.factor[0]


class Stopped(Neuron):
    def forward(self) -> None:
        self.value = self.input * stop_gradient(self.input)


class Steps(Neuron):
    """Not differentiable anywhere near: it has a step of 1 in every 1e-6."""

    def forward(self) -> None:
        self.value = 1.0 if self.input * 1000000.0 - float(int(self.input * 1000000.0)) > 0.5 else 0.0


def with_layer(neuron: type[Neuron]) -> tuple[Net, Ensemble]:
    net = Net(3, seed=1)
    data = MemoryDataLayer(net, (5,))
    layer = net.add_ensemble(ActivationEnsemble(neuron, (5,), dims=("c",), kind="mine"))
    net.add_one_to_one_connections(data, layer)
    return net, layer


def test_gradients_of_a_net_are_right() -> None:
    net = reused(BATCH).net
    found = net.check_gradients().gradients
    assert {(each.layer, each.array) for each in found} >= {
        ("conv1", "inputs"),  # of data, which the net itself does not compute
        ("conv1", "weights"),
        ("batch_norm1", "gamma"),
        ("max_pooling1", "inputs"),
        ("softmax_loss1", "inputs"),
    }
    for each in found:
        assert each.directions + each.skipped == 3 and each.directions > 0 and each.error < 1e-8
    assert "fully_connected1  bias" in str(net.check_gradients("fully_connected1", batch_size=1, directions=1))


def test_a_wrong_gradient_is_named() -> None:
    net, layer = with_layer(Squared)
    assert [each.array for each in net.check_gradients(layer).gradients] in (["inputs", "factor"], ["factor", "inputs"])
    for neuron, array, phase in ((WrongBackward, "inputs", "backward"), (WrongUpdate, "factor", "update")):
        net, layer = with_layer(neuron)
        with pytest.raises(DerivativeError, match=rf"mine1: the gradient of {array} is not the slope") as caught:
            net.check_gradients(layer)
        assert f"; of {array}[" in str(caught.value) and f"mend {phase}, or remove it" in str(caught.value)
        line = neuron.__dict__[phase].__code__.co_firstlineno
        assert caught.value.location == f"{__file__}:{line}"
    net, layer = with_layer(Stopped)
    with pytest.raises(DerivativeError, match=r"stop_gradient\(…\) in forward explains it"):
        net.check_gradients()


def test_where_a_layer_is_not_smooth_nothing_is_said() -> None:
    net, layer = with_layer(Steps)
    (found,) = net.check_gradients(layer).gradients
    assert (found.directions, found.skipped) == (0, 3) and "(3 more: not smooth)" in str(net.check_gradients())


def test_what_cannot_be_checked() -> None:
    net, layer = with_layer(Squared)
    with pytest.raises(CommandError, match=r"no ensemble named 'min1'\n  did you mean 'mine1'"):
        net.check_gradients("min1")
    for options in ({"batch_size": 0}, {"directions": 1.5}):
        with pytest.raises(DataError, match="must be a whole number, at least 1"):
            net.check_gradients(layer, **options)


# --- copies -----------------------------------------------------------------------------------------------
def declared() -> Net:
    net = Net(4, seed=2)
    image, label = MemoryDataLayer(net, (1, 8, 8)), MemoryDataLayer(net, (1,))
    hidden = DropoutLayer(net, MaxPoolingLayer(net, ReLULayer(net, ConvLayer(net, image, num_filters=5))))
    scores = FullyConnectedLayer(net, hidden, 10)
    SoftmaxLossLayer(net, scores, label)
    AccuracyLayer(net, scores, label)
    return net


def test_a_copy_goes_on_as_the_net_does_and_apart_from_it() -> None:
    images, labels = random_data(10)
    net = declared()
    net.compile(threads=1)
    solver = Adam(net, 0.01)
    net.fit(images, labels, solver=solver, progress=False)
    other = copy.deepcopy(net)
    its_solver = Adam(other)
    its_solver.load_state(solver.state())
    assert other["conv1"] is not net["conv1"] and other.loss == net.loss
    assert other.executable.plan.target == net.executable.plan.target
    before = net.state_dict()
    first = other.fit(images, labels, solver=its_solver, epochs=2, progress=False).losses
    for name, values in net.state_dict().items():
        np.testing.assert_array_equal(values, before[name], err_msg=name)
    assert net.fit(images, labels, solver=solver, epochs=2, progress=False).losses == first


def test_a_copy_before_compiling() -> None:
    net = declared()
    other = copy.deepcopy(net)
    ReLULayer(other, other["fully_connected1"])
    assert len(other.ensembles) == len(net.ensembles) + 1
    for each in (net, other):
        each.compile(threads=1)
    np.testing.assert_array_equal(other["conv1"].get_weights(), net["conv1"].get_weights())
    net["conv1"].set_weights(np.zeros((5, 1, 3, 3)))
    assert other["conv1"].get_weights().any()


def test_what_cannot_be_copied_says_what_to_do() -> None:
    net = reused(BATCH).net
    solver = SGD(net)
    for act, message in (
        (lambda: pickle.dumps(net), r"a net cannot be pickled(.|\n)*copy.deepcopy\(net\); or net.save\(path\)"),
        (lambda: pickle.dumps(solver), r"it belongs to its net\n(.|\n)*load_state\(solver.state\(\)\)"),
        (lambda: copy.deepcopy(solver), "it belongs to its net"),
        (lambda: copy.copy(net), "a net cannot be pickled"),
    ):
        with pytest.raises(TrainingError, match=message) as caught:
            act()
        assert __file__ in str(caught.value.location)
    pickle.loads(pickle.dumps(net.state_dict()))
