"""Fully connected layers, compiled, against NumPy and PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from latte import FullyConnectedLayer, FullyConnectedLayerNoBias
from tests.layers.references import Alone, alone, assert_within, sum_bound


@dataclass(frozen=True)
class Shape:
    """One layer: batch, source, outputs."""

    batch: int
    source: tuple[int, ...]
    outputs: int
    bias: bool = True


SHAPES = {
    "vectors": Shape(5, (17,), 19),
    "one of everything": Shape(1, (1,), 1),
    "images": Shape(3, (3, 5, 4), 10),
    "two dimensions": Shape(2, (7, 3), 16, bias=False),
    "four dimensions": Shape(2, (2, 1, 2, 3), 3),
    "1000 outputs": Shape(2, (33,), 1000),
    "long sums": Shape(2, (32, 32, 8), 2, bias=False),
}


@dataclass(frozen=True)
class Trial:
    """A layer that ran forwards and backwards once; matrices in float64."""

    shape: Shape
    alone: Alone

    @property
    def weights(self) -> np.ndarray:
        return self.alone.layer.get_weights().reshape(self.shape.outputs, -1).astype(np.float64)

    @property
    def x(self) -> np.ndarray:
        return self.alone.x.reshape(self.shape.batch, -1).astype(np.float64)

    @property
    def gradient(self) -> np.ndarray:
        return self.alone.gradient.astype(np.float64)

    @property
    def bias(self) -> np.ndarray:
        if not self.shape.bias:
            return np.zeros(self.shape.outputs)
        return self.alone.layer.get_bias()[:, 0].astype(np.float64)

    @property
    def value_bound(self) -> np.ndarray:
        return sum_bound(self.x.shape[1] + 1, abs(self.x) @ abs(self.weights).T + abs(self.bias))

    @property
    def input_gradient_bound(self) -> np.ndarray:
        return sum_bound(self.shape.outputs, abs(self.gradient) @ abs(self.weights))

    @property
    def weight_gradient_bound(self) -> np.ndarray:
        return sum_bound(self.shape.batch, abs(self.gradient).T @ abs(self.x))


@pytest.fixture(scope="module", params=SHAPES)
def trial(request: pytest.FixtureRequest) -> Trial:
    shape = SHAPES[request.param]
    constructor = FullyConnectedLayer if shape.bias else FullyConnectedLayerNoBias
    result = alone(shape.batch, shape.source, lambda net, data: constructor(net, data, shape.outputs))
    if shape.bias:
        result.layer.set_bias(np.random.default_rng(1).normal(size=(shape.outputs, 1)))
        result.run()
    return Trial(shape, result)


def check(trial: Trial, value: np.ndarray, of_data: np.ndarray, of_weights: np.ndarray, of_bias: np.ndarray) -> None:
    """All results within the rounding of their sums."""
    layer, data = trial.alone.layer, trial.alone.data
    assert_within(layer.get_value(), value, trial.value_bound, "value")
    of_source = data.get_grad().reshape(trial.shape.batch, -1)
    assert_within(of_source, of_data, trial.input_gradient_bound, "grad_inputs")
    assert layer.get_grad_weights().shape == (trial.shape.outputs, *trial.shape.source)
    got = layer.get_grad_weights().reshape(trial.shape.outputs, -1)
    assert_within(got, of_weights, trial.weight_gradient_bound, "grad_weights")
    if trial.shape.bias:
        bound = sum_bound(trial.shape.batch, abs(trial.gradient).sum(0))[:, None]
        assert_within(layer.get_grad_bias(), of_bias[:, None], bound, "grad_bias")


def test_against_numpy(trial: Trial) -> None:
    x, weights, gradient = trial.x, trial.weights, trial.gradient
    check(trial, x @ weights.T + trial.bias, gradient @ weights, gradient.T @ x, gradient.sum(0))


def test_against_pytorch(trial: Trial) -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    x, weights, bias = (
        torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (trial.x, trial.weights, trial.bias)
    )
    value = torch.nn.functional.linear(x, weights, bias)
    value.backward(torch.tensor(trial.gradient))
    check(trial, value.detach().numpy(), x.grad.numpy(), weights.grad.numpy(), bias.grad.numpy())


def test_repeated_phases(trial: Trial) -> None:
    net, layer, data = trial.alone.net, trial.alone.layer, trial.alone.data
    before = layer.get_value(), data.get_grad(), layer.get_grad_weights()
    net.forward()
    net.backward()
    np.testing.assert_array_equal(layer.get_value(), before[0])
    np.testing.assert_array_equal(data.get_grad(), before[1])
    twice = 2 * trial.gradient.T @ trial.x
    got = layer.get_grad_weights().reshape(trial.shape.outputs, -1)
    assert_within(got, twice, 4 * trial.weight_gradient_bound, "grad_weights, twice")
    net.clear_grad()
    assert not layer.get_grad_weights().any()
    net.backward()
    np.testing.assert_array_equal(layer.get_grad_weights(), before[2])
