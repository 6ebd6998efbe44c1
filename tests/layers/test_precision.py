"""The tolerances that users of the original have in their own tests, at its shapes.

``np.allclose(actual, expected, atol, rtol=1e-5)`` with the naive NumPy result, all numbers in [0, 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from latte import ConvLayer, FullyConnectedLayer, MaxPoolingLayer, MemoryDataLayer, Net, ReLULayer
from latte.ensemble import Ensemble
from tests.layers.references import (
    Windows,
    convolve,
    convolve_input_gradient,
    convolve_weight_gradient,
    max_pool,
)

BATCH, SIZE = 2, 12
WINDOWS = Windows(SIZE, SIZE, (3, 3), (1, 1), (1, 1), (1, 1))


def close(actual: np.ndarray, expected: np.ndarray, atol: float) -> None:
    np.testing.assert_allclose(actual, expected.astype(np.float32), atol=atol, rtol=1e-5)


@dataclass(frozen=True)
class Convolutions:
    """data (16) → conv (16) → conv (16), and conv → ReLU → max pool."""

    data: Ensemble
    first: Ensemble
    second: Ensemble
    pool: Ensemble
    x: np.ndarray
    seed: np.ndarray


@pytest.fixture(scope="module")
def convolutions() -> Convolutions:
    net = Net(BATCH, seed=1, keep="all")
    net.force_backward = True
    data = MemoryDataLayer(net, (16, SIZE, SIZE))
    first = ConvLayer(net, data, 16)
    second = ConvLayer(net, first, 16)
    pool = MaxPoolingLayer(net, ReLULayer(net, second))
    net.compile(threads=1)
    generator = np.random.default_rng(0)
    x = generator.random((BATCH, 16, SIZE, SIZE)).astype(np.float32)
    data.set_value(x)
    for layer in (first, second):
        layer.set_weights(generator.random(layer.get_weights().shape))
        layer.set_bias(generator.random((16, 1)))
    seed = generator.random((BATCH, 16, SIZE // 2, SIZE // 2)).astype(np.float32)
    pool.set_grad(seed)
    net.forward()
    net.backward()
    return Convolutions(data, first, second, pool, x, seed)


def test_values_of_two_convolutions(convolutions: Convolutions) -> None:
    c = convolutions
    first = convolve(c.x, c.first.get_weights(), c.first.get_bias(), WINDOWS)
    close(c.first.get_value(), first, 1e-6)
    close(c.second.get_value(), convolve(first, c.second.get_weights(), c.second.get_bias(), WINDOWS), 1e-4)
    close(c.pool.get_value(), max_pool(c.second.get_value(), (2, 2), (2, 2), (0, 0))[0], 1e-6)


def test_gradients_of_two_convolutions(convolutions: Convolutions) -> None:
    c = convolutions
    of_second = c.second.get_grad()
    assert of_second.sum() == pytest.approx(c.seed.sum(), rel=1e-5)  # every window's went to one element
    close(c.second.get_grad_bias()[:, 0], of_second.sum((0, 2, 3), dtype=float), 1e-6)
    close(c.second.get_grad_weights(), convolve_weight_gradient(of_second, c.first.get_value(), WINDOWS), 1e-5)
    of_first = convolve_input_gradient(of_second, c.second.get_weights(), WINDOWS)
    close(c.first.get_grad(), of_first, 1e-4)
    close(c.first.get_grad_weights(), convolve_weight_gradient(of_first, c.x, WINDOWS), 1e-4)
    close(c.data.get_grad(), convolve_input_gradient(of_first, c.first.get_weights(), WINDOWS), 1e-4)


@pytest.mark.parametrize(("shape", "atol"), [((32,), 1e-4), ((128, 16, 16), 1e-5)])
def test_fully_connected(shape: tuple[int, ...], atol: float) -> None:
    """32 and 32,768 inputs. The second needs several partial sums: one accumulator uses 0.7 of the tolerance."""
    net = Net(2, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, shape)
    layer = FullyConnectedLayer(net, data, 32 if len(shape) == 1 else 3)
    net.compile(threads=1)
    generator = np.random.default_rng(0)
    x = generator.random((2, *shape)).astype(np.float32)
    gradient = generator.random((2, *layer.shape)).astype(np.float32)
    data.set_value(x)
    layer.set_weights(generator.random(layer.get_weights().shape))
    layer.set_bias(generator.random(layer.get_bias().shape))
    layer.set_grad(gradient)
    net.forward()
    net.backward()
    weights = layer.get_weights().reshape(len(layer), -1).astype(float)
    flat = x.reshape(2, -1).astype(float)
    close(layer.get_value(), flat @ weights.T + layer.get_bias()[:, 0], atol)
    close(layer.get_grad_weights().reshape(len(layer), -1), gradient.T.astype(float) @ flat, 1e-4)
    close(layer.get_grad_bias()[:, 0], gradient.sum(0), 1e-4)
    close(data.get_grad().reshape(2, -1), gradient.astype(float) @ weights, 1e-3)
