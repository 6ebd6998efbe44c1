"""``backward`` and ``update`` written by hand, as a layer's author would, beside the derived ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from latte import BatchNormLayer, ConvLayer, FullyConnectedLayer, MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.neuron import Field, Neuron, Param, eachindex, ones, sqrt, uniform_fan_in, zeros
from tests.lowered import lowered

ROUNDING = 2.0**-24
SHAPE = (3, 6, 5)
CHANNELS, HEIGHT, WIDTH = SHAPE
BATCH, FILTERS = 2, 4


class WrittenConvolution(Neuron):
    weights = Param("k", shape=(CHANNELS, 3, 3), init=uniform_fan_in)
    bias = Param("k", shape=(1,), init=zeros)

    def forward(self) -> None:
        self.value = self.bias[0]
        for c, ky, kx in eachindex(self.inputs):
            self.value += self.weights[c, ky, kx] * self.inputs[c, ky, kx]

    def backward(self) -> None:
        for c, ky, kx in eachindex(self.inputs):
            self.grad_inputs[c, ky, kx] += self.grad * self.weights[c, ky, kx]

    def update(self) -> None:
        self.grad_bias[0] += self.grad
        for c, ky, kx in eachindex(self.inputs):
            self.grad_weights[c, ky, kx] += self.grad * self.inputs[c, ky, kx]


class WrittenFullyConnected(Neuron):
    weights = Param("k", shape=SHAPE, init=uniform_fan_in)
    bias = Param("k", shape=(1,), init=zeros)

    def forward(self) -> None:
        self.value = self.bias[0]
        for i in eachindex(self.inputs):
            self.value += self.weights[i] * self.inputs[i]

    def backward(self) -> None:
        for i in eachindex(self.inputs):
            self.grad_inputs[i] += self.grad * self.weights[i]

    def update_internal(self) -> None:  # the old name
        self.grad_bias[0] += self.grad
        for i in eachindex(self.inputs):
            self.grad_weights[i] += self.grad * self.inputs[i]


class WrittenBatchNorm(Ensemble):
    """The thesis' Figs. 3.1 to 3.3; ``N*H*W`` for its misprint ``N*C*W``, and the gradient of the mean."""

    gamma = Param("c", init=ones)
    beta = Param("c", init=zeros)
    mean = Field("c")
    var = Field("c")
    divar = Field("c")
    dvar = Field("c")
    dmu = Field("c")
    x_hat = Field("n", "c", "h", "w")
    dx = Field("n", "c", "h", "w")

    def __init__(self) -> None:
        super().__init__(shape=SHAPE, dims=("c", "h", "w"))
        self.epsilon = 0.001

    def forward(self, inputs, value, mean, var, x_hat, gamma, beta):
        N, C, H, W = inputs.shape
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        mean[c] += inputs[n, c, h, w]
        for c in range(C):
            mean[c] = mean[c] / (N * H * W)
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        var[c] += (inputs[n, c, h, w] - mean[c]) * (inputs[n, c, h, w] - mean[c])
        for c in range(C):
            var[c] = var[c] / (N * H * W)
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        x_hat[n, c, h, w] = (inputs[n, c, h, w] - mean[c]) / sqrt(var[c] + self.epsilon)
                        value[n, c, h, w] = gamma[c] * x_hat[n, c, h, w] + beta[c]

    def backward(self, inputs, grad, grad_inputs, mean, var, divar, dvar, dmu, dx, gamma):
        N, C, H, W = inputs.shape
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        divar[c] += grad[n, c, h, w] * gamma[c] * (inputs[n, c, h, w] - mean[c])
        for c in range(C):
            dvar[c] = -0.5 / ((var[c] + self.epsilon) * sqrt(var[c] + self.epsilon)) * divar[c]
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        through_mean = grad[n, c, h, w] * gamma[c] / sqrt(var[c] + self.epsilon)
                        through_var = 2.0 * (inputs[n, c, h, w] - mean[c]) / (N * H * W) * dvar[c]
                        dx[n, c, h, w] = through_mean + through_var
                        dmu[c] -= dx[n, c, h, w]
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        grad_inputs[n, c, h, w] += dx[n, c, h, w] + dmu[c] / (N * H * W)

    def update_internal(self, grad, x_hat, grad_gamma, grad_beta):
        N, C, H, W = grad.shape
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        grad_gamma[c] += grad[n, c, h, w] * x_hat[n, c, h, w]
                        grad_beta[c] += grad[n, c, h, w]


def written_convolution(net: Net, source: Ensemble) -> Ensemble:
    ensemble = net.add_ensemble(Ensemble(WrittenConvolution, (FILTERS, HEIGHT, WIDTH), ("k", "y", "x")))
    net.add_connections(
        source, ensemble, lambda k, y, x: (range(3), range(y, y + 3), range(x, x + 3)), padding=(0, 1, 1)
    )
    return ensemble


def written_fully_connected(net: Net, source: Ensemble) -> Ensemble:
    ensemble = net.add_ensemble(Ensemble(WrittenFullyConnected, (FILTERS,), ("k",)))
    net.add_connections(source, ensemble, lambda k: (range(3), range(6), range(5)))
    return ensemble


def written_batch_norm(net: Net, source: Ensemble) -> Ensemble:
    ensemble = net.add_ensemble(WrittenBatchNorm())
    net.add_one_to_one_connections(source, ensemble)
    return ensemble


LAYERS: dict[str, tuple[Callable[..., Ensemble], Callable[..., Ensemble]]] = {
    "convolution": (written_convolution, lambda net, source: ConvLayer(net, source, FILTERS)),
    "fully connected": (
        written_fully_connected,
        lambda net, source: FullyConnectedLayer(net, source, FILTERS),
    ),
    "batch norm": (written_batch_norm, lambda net, source: BatchNormLayer(net, source, epsilon=0.001)),
}
Run = dict[str, np.ndarray]


def run(make: Callable[..., Ensemble], readers: int) -> tuple[Run, Run]:
    """Results of one and of two backward phases; ``readers`` layers of the kind read one source."""
    net = Net(BATCH, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, SHAPE)
    layers: list[Any] = [make(net, data) for _ in range(readers)]
    net.compile(threads=1)
    generator = np.random.default_rng(0)
    data.set_value(generator.normal(size=(BATCH, *SHAPE)))
    for layer in layers:
        for name, spec in layer.fields().items():
            if spec.role == "param":
                getattr(layer, f"set_{name}")(generator.normal(size=spec.shape))
        layer.set_grad(generator.normal(size=(BATCH, *layer.shape)))

    def results() -> Run:
        found = {"data": data.get_grad()}
        for number, layer in enumerate(layers):
            for name, spec in layer.fields().items():
                if spec.role == "param_grad":
                    found[f"{name} of {number}"] = getattr(layer, f"get_{name}")()
        return found

    net.forward()
    net.backward()
    once = results()
    net.backward()
    twice = results()
    net.clear_grad()
    net.forward()
    net.backward()
    for name, array in results().items():
        np.testing.assert_array_equal(array, once[name], err_msg=name)
    return once, twice


@pytest.mark.parametrize("readers", [1, 2])
@pytest.mark.parametrize("name", LAYERS)
def test_written_and_derived_agree(name: str, readers: int) -> None:
    """Within the rounding of sums of at most 90 terms of size 10, in two orders; also where they add up."""
    by_hand, shipped = LAYERS[name]
    written = run(by_hand, readers)
    with lowered():
        derived = run(shipped, readers)
    bound = 2 * 90 * ROUNDING * 10 * readers
    for repetition in range(2):
        assert written[repetition].keys() == derived[repetition].keys()
        for field, array in written[repetition].items():
            expected = derived[repetition][field]
            np.testing.assert_allclose(array, expected, rtol=0, atol=bound * (1 + repetition), err_msg=field)
            if repetition and field != "data":
                np.testing.assert_allclose(array, 2 * written[0][field], rtol=0, atol=2 * bound)
            elif repetition:
                np.testing.assert_array_equal(array, written[0][field])


class Halved(Neuron):
    """Only ``backward`` is written, and wrongly on purpose, so that it shows whose is used."""

    scale = Param(shape=(1,), init=ones)

    def forward(self) -> None:
        self.value = self.scale[0] * self.input

    def backward(self) -> None:
        self.grad_input += 0.5 * self.grad


class Assigned(Neuron):
    """Its backward assigns the gradient, which with a second reader must not lose the other's."""

    def forward(self) -> None:
        self.value = 2.0 * self.input

    def backward(self) -> None:
        self.grad_input = 2.0 * self.grad


def test_only_one_phase_written() -> None:
    net = Net(2, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (3,))
    layer = net.init_activation_ensemble(Halved, data)
    net.compile(threads=1)
    x, gradient = np.random.default_rng(0).normal(size=(2, 2, 3)).astype(np.float32)
    data.set_value(x)
    layer.set_grad(gradient)
    net.forward()
    net.backward()
    np.testing.assert_array_equal(data.get_grad(), gradient / 2)
    np.testing.assert_allclose(layer.get_grad_scale(), [(x * gradient).sum()], rtol=0, atol=16 * ROUNDING)


def test_a_backward_that_assigns_does_not_lose_another_reader_s_gradient() -> None:
    net = Net(1, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (3,))
    layers = [net.init_activation_ensemble(Assigned, data) for _ in range(2)]
    net.compile(threads=1)
    data.set_value(np.ones((1, 3)))
    for layer, seed in zip(layers, (1.0, 10.0), strict=True):
        layer.set_grad(np.full((1, 3), seed))
    net.forward()
    net.backward()
    np.testing.assert_array_equal(data.get_grad(), [[22.0, 22.0, 22.0]])
