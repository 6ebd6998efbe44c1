"""A net at a glance, its gradients checked, and copies of it."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest

from latte import (
    AccuracyLayer,
    BatchNormLayer,
    ConvLayer,
    DropoutLayer,
    EmbeddingLayer,
    FullyConnectedLayer,
    MaxPoolingLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    SoftmaxLossLayer,
)
from latte.ensemble import ActivationEnsemble, Ensemble, LossEnsemble
from latte.errors import CommandError, DataError, DerivativeError, TrainingError, UnknownName
from latte.neuron import Constant, Neuron, Param, State, float32, given, log, ones, stop_gradient
from latte.solver import SGD, Adam
from tests.nets.references import random_data, reused

pytestmark = pytest.mark.usefixtures("as_lowered")

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


def test_shared_parameters_count_once() -> None:
    net = Net(2)
    first = FullyConnectedLayer(net, MemoryDataLayer(net, 5), 5)
    FullyConnectedLayer(net, first, 5, weights=first.weights)
    found = net.summary()
    assert [row.parameters for row in found.layers] == [0, 30, 5] and found.parameters == 35
    assert found.layers[2].shared == ("fully_connected1.weights",)
    assert found.layers[2].memory == 4 * 2 * (5 + 2 * 5)  # the bias, values, and gradients of both
    assert found.rows[2][4] == "5 + shared" and found.rows[1][4] == "30"


def test_a_misspelt_parameter_is_named() -> None:
    first = FullyConnectedLayer(net := Net(2), MemoryDataLayer(net, 5), 5)
    with pytest.raises(UnknownName, match=r"no command or attribute 'weight'\n  did you mean 'weights'\?"):
        first.weight  # noqa: B018 (an error)


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


class Steps(Neuron):
    """Not differentiable anywhere near: it has a step of 1 in every 1e-6."""

    def forward(self) -> None:
        self.value = 1.0 if self.input * 1000000.0 - float(int(self.input * 1000000.0)) > 0.5 else 0.0


def with_layer(layer_type: type[Neuron | Ensemble]) -> tuple[Net, Ensemble]:
    net = Net(3, seed=1)
    data = MemoryDataLayer(net, (5,))
    if issubclass(layer_type, Neuron):
        layer = net.add_ensemble(ActivationEnsemble(layer_type, (5,), dims=("c",), kind="mine"))
    else:
        layer = net.add_ensemble(layer_type(shape=(5,), dims=("c",), kind="mine"))
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


class TimesTable(Ensemble):
    """The source times a table, or a number for each item; its backward is wrong by a factor."""

    table = Constant("c", init=given([2.0, 3.0]))

    def forward(self, inputs, numbers, value, table):
        for n in range(inputs.shape[0]):
            for c in range(2):
                value[n, c] = inputs[n, c] * table[c] * float32(numbers[n, 0] - 1) * float32(numbers[n, 0] - 2)

    def backward(self, grad, grad_inputs, numbers, table):
        for n in range(grad.shape[0]):
            for c in range(2):
                grad_inputs[n, c] += grad[n, c] * table[c] * 2.0 * float32(1 - numbers[n, 0])


class PickedLoss(LossEnsemble):
    """The score of the label, among one class at 64 places: its backward is missing a factor."""

    class_labels = True
    classes = 1

    def forward(self, inputs, label, value):
        for n in range(inputs.shape[0]):
            value[0] += inputs[n, 0] if label[n, 0] == 0.0 else 0.0

    def backward(self, grad, grad_inputs, label):
        for n in range(grad_inputs.shape[0]):
            grad_inputs[n, 0] += 2.0 * grad[0] if label[n, 0] == 0.0 else 0.0


def test_a_wrong_gradient_shows_with_tables_integers_and_labels() -> None:
    """Where these were zero, or labels were no class numbers, any gradient was right."""
    net = Net(3, seed=1)
    data, numbers = MemoryDataLayer(net, (2,)), MemoryDataLayer(net, (1,), dtype="int32", below=5)
    table = net.add_ensemble(TimesTable(shape=(2,), dims=("c",)))
    net.add_connections(data, table)
    net.add_connections(numbers, table, name="numbers")
    with pytest.raises(DerivativeError, match="times_table1: the gradient of inputs"):
        net.check_gradients(table)
    net = Net(1, seed=1)
    scores, label = MemoryDataLayer(net, (64,)), MemoryDataLayer(net, (1,))
    loss = net.add_ensemble(PickedLoss())
    net.add_loss_connection(scores, loss)
    net.add_loss_connection(label, loss)
    with pytest.raises(DerivativeError, match="the gradient of inputs"):
        net.check_gradients(loss)


class Held(Neuron):
    """What is stopped is a constant: of a parameter and of the source, which also have gradients."""

    factor = Param("c", init=ones)

    def forward(self) -> None:
        self.value = self.factor * self.input * stop_gradient(self.input * self.factor)


class HeldLocal(Neuron):
    def forward(self) -> None:
        doubled = self.input * 2.0
        self.value = self.input * stop_gradient(doubled)


class HeldState(Ensemble):
    """A state that forward has just written, as the vector of a power iteration is."""

    u = State("c")
    weight = Param("c", init=ones)

    def forward(self, inputs, value, u, weight):
        N, C = inputs.shape
        for c in range(C):
            u[c] = 3.0 * weight[c]
        for n in range(N):
            for c in range(C):
                value[n, c] = inputs[n, c] * (weight[c] / stop_gradient(u[c]) if inputs[n, c] > 0.0 else 1.0)


class HeldSometimes(Ensemble):
    """What is stopped exists for some iterations alone, and in loops whose bounds move."""

    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, c] = inputs[n, c] * (stop_gradient(inputs[n, c - 1] * inputs[n, c]) if c > 0 else 1.0)
                for k in range(c, C):
                    value[n, c] += stop_gradient(inputs[n, k]) * inputs[n, c]


class HeldIntegers(Ensemble):
    index = Constant("c", dtype="int32", below=5, init=given([0, 4, 2, 1, 3]))

    def forward(self, inputs, value, index):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                half = index[c] // 2
                value[n, c] = inputs[n, c] * (stop_gradient(index[c]) // 2 + stop_gradient(half) // 2)


class HeldBesideItsName(Ensemble):
    """A field of backward alone that is called as what is kept."""

    held = State("c", init=ones)

    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, c] = stop_gradient(inputs[n, c]) * inputs[n, c]

    def backward(self, inputs, grad, grad_inputs, held):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                grad_inputs[n, c] += grad[n, c] * inputs[n, c] * held[c]


@pytest.mark.parametrize("layer", [HeldLocal, HeldState, HeldSometimes, HeldIntegers, HeldBesideItsName])
def test_what_is_computed_before_it_is_stopped_does_not_move(layer: type[Neuron | Ensemble]) -> None:
    net, made = with_layer(layer)
    found = net.check_gradients(made).gradients
    assert found and all(each.directions == 3 and each.error < 1e-8 for each in found)


class Logarithm(Neuron):
    def forward(self) -> None:
        self.value = log(self.input)


class WrongLogarithm(Logarithm):
    def backward(self) -> None:
        self.grad_input += 5.0 * self.grad


class OfParameter(Neuron):
    w = Param("c")

    def forward(self) -> None:
        self.value = self.input * log(self.w + 0.001)


class Never(Neuron):
    def forward(self) -> None:
        self.value = log(-1.0 - self.input * self.input)


def test_nothing_is_compared_where_forward_is_not_finite() -> None:
    """A wrong gradient passed where a logarithm had got numbers below 0."""
    net, layer = with_layer(Logarithm)
    (found,) = net.check_gradients(layer).gradients
    assert found.directions == 3 and found.error < 1e-8
    net, layer = with_layer(WrongLogarithm)
    with pytest.raises(DerivativeError, match="mine1: the gradient of inputs is not the slope"):
        net.check_gradients(layer)
    net, layer = with_layer(OfParameter)
    assert all(each.directions == 3 for each in net.check_gradients(layer).gradients)
    net, layer = with_layer(Never)
    with pytest.raises(DataError, match="mine1: forward is NaN or infinite for random inputs") as caught:
        net.check_gradients(layer)
    assert __file__ in str(caught.value.location)
    FullyConnectedLayer(net, layer, 2)
    found = net.check_gradients()
    assert found.infinite == ("mine1",) and {each.layer for each in found.gradients} == {"fully_connected1"}
    assert "forward is NaN or infinite" in str(found)


def test_what_is_stopped_does_not_move() -> None:
    net, layer = with_layer(Held)
    found = net.check_gradients(layer).gradients
    assert {each.array for each in found} == {"inputs", "factor"} and all(each.directions == 3 for each in found)
    net = Net(3, seed=0)
    words = MemoryDataLayer(net, 5, dtype="int32", below=4)
    table = EmbeddingLayer(net, words, 4, 6, padding_index=2)
    (found,) = net.check_gradients(table).gradients
    assert found.directions == 3 and found.error < 1e-8


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
        (lambda: pickle.dumps(solver), r"it belongs to its net\n(.|\n)*load_state\(solver.state\(\)\)"),
        (lambda: copy.deepcopy(solver), "it belongs to its net"),
        (lambda: copy.copy(net), r"cannot share their layers\n.*copy.deepcopy\(net\)"),
    ):
        with pytest.raises(TrainingError, match=message) as caught:
            act()
        assert __file__ in str(caught.value.location)


def test_a_copy_has_the_gradients_tables_and_doubts_of_the_net() -> None:
    class Table(Neuron):
        def forward(self) -> None:
            self.value = self.input * TABLE[c]  # noqa: F821

    TABLE = np.full(3, 2.0, np.float32)
    net = Net(2, seed=1)
    data = MemoryDataLayer(net, (3,))
    inner = FullyConnectedLayer(net, BatchNormLayer(net, data), 3, name="inner")
    table = net.add_ensemble(ActivationEnsemble(Table, (3,), dims=("c",), kind="table"))
    net.add_one_to_one_connections(inner, table)
    net.compile(threads=1)
    inner.set_grad(np.full((2, 3), 5.0))
    table.set_grad(np.ones((2, 3)))
    TABLE[:] = 7.0
    data.set_value(np.array([[1.0, 2.0, 3.0], [4.0, 4.0, 4.0]]))
    other = copy.deepcopy(net)
    for each in (net, other):
        each.forward()
        each.backward()
        np.testing.assert_array_equal(each["inner"].get_grad_bias().ravel(), np.full(3, 2 * (2 + 5.0)))
    data.set_value(np.full((2, 3), np.nan))
    with pytest.raises(DataError, match="the data have nan"):
        copy.deepcopy(net).forward()
