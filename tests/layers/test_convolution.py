"""Convolution, compiled, against its NumPy definition and against PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from latte import ConvLayer, ConvLayerNoBias, Net
from latte.ensemble import Ensemble
from swirl.target.machine import why_not
from swirl.target.targets import get_target
from tests.layers.references import (
    Alone,
    Pair,
    Windows,
    alone,
    assert_within,
    both,
    convolve,
    convolve_input_gradient,
    convolve_weight_gradient,
    sum_bound,
)


@dataclass(frozen=True)
class Shape:
    """One convolution: batch, source, filters, window."""

    batch: int
    source: tuple[int, int, int]
    filters: int
    kernel: int | Pair = 3
    stride: int | Pair = 1
    pad: int | Pair = 1
    dilation: int | Pair = 1
    bias: bool = True

    @property
    def windows(self) -> Windows:
        _, height, width = self.source
        return Windows(height, width, both(self.kernel), both(self.stride), both(self.pad), both(self.dilation))

    def declare(self, net: Net, data: Ensemble) -> Ensemble:
        """The layer on ``data``."""
        constructor = ConvLayer if self.bias else ConvLayerNoBias
        return constructor(net, data, self.filters, self.kernel, self.stride, self.pad, self.dilation)


SHAPES = {
    "3x3": Shape(2, (3, 9, 9), 16),
    "one of everything": Shape(1, (1, 1, 1), 1, kernel=1, pad=0),
    "one pixel, its padding around it": Shape(1, (4, 1, 1), 3),
    "vector width plus one, odd sizes": Shape(2, (17, 7, 5), 19),
    "1x1, plus three and plus one": Shape(2, (19, 6, 6), 17, kernel=1, pad=0, bias=False),
    "vector width": Shape(1, (16, 4, 16), 32),
    "5x5 stride 2": Shape(3, (2, 11, 9), 4, kernel=5, stride=2, pad=2),
    "7x7 stride 2": Shape(2, (3, 13, 11), 5, kernel=7, stride=2, pad=3, bias=False),
    "stride 3 leaves rows unread": Shape(2, (2, 10, 7), 3, stride=3, pad=0),
    "1x1 stride 2 leaves pixels unread": Shape(1, (2, 8, 8), 2, kernel=1, stride=2, pad=0),
    "dilation 2": Shape(2, (3, 9, 8), 4, pad=2, dilation=2),
    "dilation 2, stride 2": Shape(2, (2, 9, 9), 3, stride=2, dilation=2, bias=False),
    "padding wider than the source": Shape(2, (2, 4, 4), 3, kernel=4, pad=6, dilation=4),
    "each axis its own": Shape(2, (2, 7, 6), 3, (3, 2), (2, 1), (1, 0), (1, 2)),
    "one channel, digits": Shape(4, (1, 8, 8), 8),
}


@dataclass(frozen=True)
class Trial:
    """A convolution that ran forwards and backwards once, and how far each result may be off."""

    shape: Shape
    alone: Alone

    @property
    def weights(self) -> np.ndarray:
        return self.alone.layer.get_weights()

    @property
    def bias(self) -> np.ndarray | None:
        return self.alone.layer.get_bias() if self.shape.bias else None

    @property
    def value_bound(self) -> np.ndarray:
        bias = None if self.bias is None else abs(self.bias)
        size = convolve(abs(self.alone.x), abs(self.weights), bias, self.shape.windows)
        return sum_bound(self.weights[0].size + 1, size)

    @property
    def input_gradient_bound(self) -> np.ndarray:
        size = convolve_input_gradient(abs(self.alone.gradient), abs(self.weights), self.shape.windows)
        return sum_bound(len(self.weights) * int(np.prod(self.shape.windows.kernel)), size)

    @property
    def positions(self) -> int:
        """Number of outputs that one parameter of a filter takes part in."""
        return len(self.alone.x) * int(np.prod(self.shape.windows.counts))

    @property
    def weight_gradient_bound(self) -> np.ndarray:
        size = convolve_weight_gradient(abs(self.alone.gradient), abs(self.alone.x), self.shape.windows)
        return sum_bound(self.positions, size)

    @property
    def bias_gradient_bound(self) -> np.ndarray:
        return sum_bound(self.positions, abs(self.alone.gradient.astype(np.float64)).sum((0, 2, 3)))[:, None]


@pytest.fixture(scope="module", params=SHAPES)
def trial(request: pytest.FixtureRequest) -> Trial:
    shape = SHAPES[request.param]
    result = alone(shape.batch, shape.source, shape.declare)
    if shape.bias:  # it starts at zero, which would hide that it is left out
        result.layer.set_bias(np.random.default_rng(1).normal(size=(shape.filters, 1)))
        result.run()
    return Trial(shape, result)


def test_value(trial: Trial) -> None:
    expected = convolve(trial.alone.x, trial.weights, trial.bias, trial.shape.windows)
    assert trial.alone.layer.shape == expected.shape[1:]
    assert_within(trial.alone.layer.get_value(), expected, trial.value_bound, "value")


def test_value_in_inference(trial: Trial) -> None:
    trial.alone.net.test()
    expected = convolve(trial.alone.x, trial.weights, trial.bias, trial.shape.windows)
    assert_within(trial.alone.layer.get_value(), expected, trial.value_bound, "value")
    trial.alone.run()


def test_input_gradient(trial: Trial) -> None:
    result = trial.alone.data.get_grad()
    expected = convolve_input_gradient(trial.alone.gradient, trial.weights, trial.shape.windows)
    assert_within(result, expected, trial.input_gradient_bound, "grad_inputs")
    np.testing.assert_array_equal(trial.alone.layer.get_grad_inputs(), result)


def test_parameter_gradients(trial: Trial) -> None:
    layer, gradient = trial.alone.layer, trial.alone.gradient
    expected = convolve_weight_gradient(gradient, trial.alone.x, trial.shape.windows)
    assert_within(layer.get_grad_weights(), expected, trial.weight_gradient_bound, "grad_weights")
    if trial.shape.bias:
        expected = gradient.astype(np.float64).sum((0, 2, 3))[:, None]
        assert_within(layer.get_grad_bias(), expected, trial.bias_gradient_bound, "grad_bias")


def test_against_pytorch(trial: Trial) -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    shape, layer = trial.shape, trial.alone.layer
    # In float64, so that the bounds are those of our rounding alone.
    x = torch.tensor(trial.alone.x, dtype=torch.float64, requires_grad=True)
    weights = torch.tensor(trial.weights, dtype=torch.float64, requires_grad=True)
    bias = None
    if trial.bias is not None:
        bias = torch.tensor(trial.bias[:, 0], dtype=torch.float64, requires_grad=True)
    value = torch.nn.functional.conv2d(x, weights, bias, shape.stride, shape.pad, shape.dilation)
    value.backward(torch.tensor(trial.alone.gradient, dtype=torch.float64))
    assert_within(layer.get_value(), value.detach().numpy(), trial.value_bound, "value")
    assert_within(trial.alone.data.get_grad(), x.grad.numpy(), trial.input_gradient_bound, "grad_inputs")
    assert_within(layer.get_grad_weights(), weights.grad.numpy(), trial.weight_gradient_bound, "grad_weights")
    if bias is not None:
        expected = bias.grad.numpy()[:, None]
        assert_within(layer.get_grad_bias(), expected, trial.bias_gradient_bound, "grad_bias")


def test_repeated_phases(trial: Trial) -> None:
    """Forward is idempotent; gradients of values are computed afresh, those of parameters add up."""
    net, layer, data = trial.alone.net, trial.alone.layer, trial.alone.data
    value, of_data, of_weights = layer.get_value(), data.get_grad(), layer.get_grad_weights()
    net.forward()
    np.testing.assert_array_equal(layer.get_value(), value)
    net.backward()
    np.testing.assert_array_equal(data.get_grad(), of_data)
    expected = 2 * convolve_weight_gradient(trial.alone.gradient, trial.alone.x, trial.shape.windows)
    # Twice as many terms of twice the size.
    assert_within(layer.get_grad_weights(), expected, 4 * trial.weight_gradient_bound, "grad_weights, twice")
    net.clear_grad()
    assert not layer.get_grad_weights().any()
    net.backward()
    np.testing.assert_array_equal(layer.get_grad_weights(), of_weights)


@pytest.mark.parametrize("name", ["vector width plus one, odd sizes", "dilation 2, stride 2"])
@pytest.mark.parametrize("target", ["avx2", "portable"])
def test_other_targets(name: str, target: str) -> None:
    """The NumPy definition again, on the targets that the tests above do not choose."""
    reason = why_not(get_target(target))
    if reason:
        pytest.skip(f"{target}: {reason}")
    shape = replace(SHAPES[name], bias=False)
    trial = Trial(shape, alone(shape.batch, shape.source, shape.declare, target=target))
    test_value(trial)
    test_input_gradient(trial)
    test_parameter_gradients(trial)
