"""Layers whose gradients were wrong or refused once, compiled, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from latte import MemoryDataLayer, Net
from latte.autodiff.differentiated import layer_programs
from latte.ensemble import Ensemble
from latte.neuron import Field, Neuron, Param, State, eachindex, floor, ones, tanh
from swirl.target.machine import why_not
from swirl.target.targets import Target

torch = pytest.importorskip("torch")

FEATURES, NEURONS, BATCH = 7, 5, 3
ORDER = [3, 3, 0, 6, 1, 3, 6]


class SumOrLargest(Neuron):
    weights = Param("k", shape=(FEATURES,), init=ones)

    def forward(self) -> None:
        for i in eachindex(self.inputs):
            self.value += self.weights[i] * self.inputs[i]
        for i in eachindex(self.inputs):
            self.value = max(self.value, self.inputs[i])


class SumOrLargestInLocal(Neuron):
    weights = Param("k", shape=(FEATURES,), init=ones)

    def forward(self) -> None:
        total = 0.0
        for i in eachindex(self.inputs):
            total += self.weights[i] * self.inputs[i]
        for i in eachindex(self.inputs):
            if self.inputs[i] > total:
                total = self.inputs[i]
        self.value = total


class HalfSumBetween(Neuron):
    """Half a sum, then a maximum, then a minimum."""

    weights = Param("k", shape=(FEATURES,), init=ones)

    def forward(self) -> None:
        for i in eachindex(self.inputs):
            self.value += self.weights[i] * self.inputs[i]
        self.value = 0.5 * self.value
        for i in eachindex(self.inputs):
            self.value = max(self.value, self.inputs[i])
        for i in eachindex(self.inputs):
            self.value = min(self.value, 1.5 * self.weights[i])


class Horner(Neuron):
    weights = Param("k", shape=(FEATURES,), init=ones)

    def forward(self) -> None:
        result = 0.0
        for i in eachindex(self.inputs):
            result = result * self.inputs[0] + self.weights[i]
        self.value = result


class CutOff(Neuron):
    weights = Param("k", shape=(FEATURES,), init=ones)

    def forward(self) -> None:
        a = 0.0
        for i in eachindex(self.inputs):
            a = max(a + self.weights[i] * self.inputs[i], 0.0)
        self.value = a * a


class TwoLargest(Neuron):
    weights = Param("k", shape=(FEATURES,), init=ones)

    def forward(self) -> None:
        first = -1e30
        second = -1e30
        for i in eachindex(self.inputs):
            x = self.weights[i] * self.inputs[i]
            if x > first:
                second = first
                first = x
            elif x > second:
                second = x
        self.value = first + second * second


class BetweenTwo(Neuron):
    """A maximum and a minimum in one loop, each after a sum."""

    weights = Param("k", shape=(FEATURES,), init=ones)

    def forward(self) -> None:
        high = 0.0
        low = 0.0
        for i in eachindex(self.inputs):
            high += self.weights[i] * self.inputs[i]
            low -= self.weights[i] * self.inputs[i]
        high = 0.2 * high
        low = 0.2 * low
        for i in eachindex(self.inputs):
            high = max(high, self.inputs[i])
            low = min(low, self.weights[i])
        self.value = high * low


class Recurrent(Ensemble):
    """One state from step to step, kept in a field that each row uses again."""

    state = Field("c")
    weights = Param("c", init=ones)

    def forward(self, inputs, value, state, weights):  # type: ignore[no-untyped-def]
        N, C = inputs.shape
        for n in range(N):
            state[0] = tanh(inputs[n, 0])
            for c in range(1, C):
                state[c] = tanh(weights[c] * state[c - 1] + inputs[n, c])
            for c in range(C):
                value[n, c] = state[c] * state[c]


class Smoothed(Ensemble):
    """Divided by an exponential moving average."""

    weights = Param("c", init=ones)

    def forward(self, inputs, value, weights):  # type: ignore[no-untyped-def]
        N, C = inputs.shape
        for n in range(N):
            mean = 1.0
            for c in range(C):
                mean = 0.9 * mean + 0.1 * inputs[n, c] * inputs[n, c]
                value[n, c] = weights[c] * inputs[n, c] / mean


class Looked(Ensemble):
    """Rows of a table, by number: some twice, some not at all."""

    order = State("c", dtype="int32", below=FEATURES)
    weights = Param("c", init=ones)

    def forward(self, inputs, value, order, weights):  # type: ignore[no-untyped-def]
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, c] = inputs[n, order[c]] * weights[order[c]]


class Overlapping(Ensemble):
    """Each state beside the next one, which is not yet renewed."""

    state = Field("n", "c")
    weights = Param("c", init=ones)

    def forward(self, inputs, value, state, weights):  # type: ignore[no-untyped-def]
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                state[n, c] = inputs[n, c] * inputs[n, c]
        for n in range(N):
            for c in range(C):
                state[n, c] = 0.5 * state[n, c] + weights[c]
                if c < C - 1:
                    value[n, c] = state[n, c] * state[n, c + 1]
                else:
                    value[n, c] = state[n, c]


class Unweighted(Ensemble):
    """Products from step to step."""

    def forward(self, inputs, value):  # type: ignore[no-untyped-def]
        for n in range(inputs.shape[0]):
            product = 1.0
            for c in range(inputs.shape[1]):
                product = product * inputs[n, c]
                value[n, c] = product


def _horner(x, w):  # type: ignore[no-untyped-def]
    result = torch.zeros(x.shape[0], w.shape[0])
    for i in range(FEATURES):
        result = result * x[:, :1] + w[:, i]
    return result


def _cut_off(x, w):  # type: ignore[no-untyped-def]
    a = torch.zeros(x.shape[0], w.shape[0])
    for i in range(FEATURES):
        a = torch.relu(a + w[:, i] * x[:, i : i + 1])
    return a * a


def _two_largest(x, w):  # type: ignore[no-untyped-def]
    largest = torch.topk(x[:, None, :] * w[None], 2, dim=2).values
    return largest[..., 0] + largest[..., 1] ** 2


def _recurrent(x, w):  # type: ignore[no-untyped-def]
    states = [torch.tanh(x[:, 0])]
    for c in range(1, x.shape[1]):
        states.append(torch.tanh(w[c] * states[-1] + x[:, c]))
    return torch.stack(states, 1) ** 2


def _smoothed(x, w):  # type: ignore[no-untyped-def]
    mean, found = torch.ones(x.shape[0]), []
    for c in range(x.shape[1]):
        mean = 0.9 * mean + 0.1 * x[:, c] ** 2
        found.append(w[c] * x[:, c] / mean)
    return torch.stack(found, 1)


def _looked(x, w):  # type: ignore[no-untyped-def]
    return x[:, ORDER] * w[ORDER]


def _sum_or_largest(x, w):  # type: ignore[no-untyped-def]
    return torch.maximum(x @ w.T, x.amax(1, keepdim=True))


def _half_sum_between(x, w):  # type: ignore[no-untyped-def]
    return torch.minimum(torch.maximum(0.5 * (x @ w.T), x.amax(1, keepdim=True)), 1.5 * w.amin(1))


def _between_two(x, w):  # type: ignore[no-untyped-def]
    high = torch.maximum(0.2 * (x @ w.T), x.amax(1, keepdim=True))
    return high * torch.minimum(-0.2 * (x @ w.T), w.amin(1))


def _overlapping(x, w):  # type: ignore[no-untyped-def]
    old = x * x
    new = 0.5 * old + w
    return torch.cat([new[:, :-1] * old[:, 1:], new[:, -1:]], 1)


NEURON_LAYERS = [
    (SumOrLargest, _sum_or_largest),
    (SumOrLargestInLocal, _sum_or_largest),
    (HalfSumBetween, _half_sum_between),
    (Horner, _horner),
    (CutOff, _cut_off),
    (TwoLargest, _two_largest),
    (BetweenTwo, _between_two),
]
ENSEMBLE_LAYERS = [(Recurrent, _recurrent), (Smoothed, _smoothed), (Looked, _looked), (Overlapping, _overlapping)]


def _check(
    net: Net,
    data: Ensemble,
    layer: Ensemble,
    reference: Callable[..., torch.Tensor],
    params: tuple[int, ...],
    target: Target,
) -> None:
    random = np.random.default_rng(4)
    images = random.normal(size=(BATCH, FEATURES)).astype(np.float32)
    weights = random.normal(size=params).astype(np.float32)
    given = random.normal(size=(BATCH, *layer.shape)).astype(np.float32)
    if reason := why_not(target):
        pytest.skip(f"{target.name}: {reason}")
    net.compile(target=target.name)
    data.set_value(images)
    layer.set_weights(weights)
    if "order" in layer.fields():
        layer.set_order(np.array(ORDER, np.int32))
    net.forward()
    layer.set_grad(given)
    net.backward()
    x, w = (torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in (images, weights))
    torch.set_default_dtype(torch.float64)
    try:
        value = reference(x, w)
    finally:
        torch.set_default_dtype(torch.float32)
    value.backward(torch.tensor(given, dtype=torch.float64))
    # A few dozen roundings of float32, of values up to 100.
    for got, expected in (
        (layer.get_value(), value.detach()),
        (data.get_grad(), x.grad),
        (layer.get_grad_weights(), w.grad),
    ):
        np.testing.assert_allclose(got, expected.numpy(), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("neuron", "reference"), NEURON_LAYERS)
def test_neurons(neuron: type[Neuron], reference: Callable[..., torch.Tensor], target: Target) -> None:
    net = Net(BATCH, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (FEATURES,))
    layer = net.add_ensemble(Ensemble(neuron, (NEURONS,), ("k",), name="layer"))
    net.add_connections(data, layer, lambda k: (range(FEATURES),))
    _check(net, data, layer, reference, (NEURONS, FEATURES), target)


class Floored(Neuron):
    """Its gradient is zero."""

    def forward(self) -> None:
        self.value = floor(self.input)


class Doubled(Neuron):
    def forward(self) -> None:
        self.value = 2.0 * self.input


@pytest.mark.parametrize("readers", [(Floored, Doubled), (Doubled, Floored)])
def test_a_reader_without_a_gradient_leaves_none_behind(readers: tuple[type[Neuron], type[Neuron]]) -> None:
    """The other reader's gradient was added to that of the step before."""
    net = Net(BATCH, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (FEATURES,))
    made = {neuron: net.init_activation_ensemble(neuron, data) for neuron in readers}
    net.compile()
    data.set_value(np.ones((BATCH, FEATURES)))
    for _ in range(2):
        net.forward()
        made[Doubled].set_grad(np.ones((BATCH, FEATURES)))
        net.backward()
        np.testing.assert_array_equal(data.get_grad(), np.full((BATCH, FEATURES), 2.0))


def test_no_values_are_kept_where_no_gradient_is_wanted() -> None:
    net = Net(BATCH, seed=1)
    data = MemoryDataLayer(net, (FEATURES,))
    layer = net.add_ensemble(Unweighted(shape=(FEATURES,), dims=("c",), name="layer"))
    net.add_connections(data, layer, lambda *indices: None)
    (programs,) = (found.programs for found in layer_programs(net.graph, BATCH) if found.ensemble is layer)
    assert "kept" not in programs["forward"].text


@pytest.mark.parametrize(("kind", "reference"), ENSEMBLE_LAYERS)
def test_ensembles(kind: type[Ensemble], reference: Callable[..., torch.Tensor], target: Target) -> None:
    net = Net(BATCH, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (FEATURES,))
    layer = net.add_ensemble(kind(shape=(FEATURES,), dims=("c",), name="layer"))
    net.add_connections(data, layer, lambda *indices: None)
    _check(net, data, layer, reference, (FEATURES,), target)
