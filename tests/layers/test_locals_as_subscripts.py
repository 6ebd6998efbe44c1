"""Locals that are affine in loop variables: what they are, wherever they are read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.neuron import Neuron, Param, normal
from swirl.errors import LatteError

STRIDE = 2


def row_of(y: int, k: int) -> int:
    return STRIDE * y + k - 1


class Strided(Ensemble):
    """A convolution of stride 2 with zeros around the image."""

    weights = Param("c", shape=(4, 3, 3), init=normal(0.5))

    def forward(self, inputs, weights, value):
        N, C, H, W = value.shape
        _, K, height, width = inputs.shape
        for n in range(N):
            for c in range(C):
                for y in range(H):
                    for x in range(W):
                        value[n, c, y, x] = 0.0
                        for p in range(3):
                            row = row_of(y, p)
                            for q in range(3):
                                column = self.stride * x
                                column_here = column + q - 1
                                above = row < 0
                                inside = not above and row < height and column_here >= 0 and column_here < width
                                for k in range(K):
                                    if inside:
                                        value[n, c, y, x] += weights[c, k, p, q] * inputs[n, k, row, column_here]

    stride = STRIDE


def test_a_convolution_with_rows_and_columns_of_its_own() -> None:
    net = Net(2, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (4, 9, 7))
    conv = net.add_ensemble(Strided(shape=(5, 5, 4), dims=("c", "y", "x")))
    net.add_connections(data, conv)
    net.compile()
    x = np.random.default_rng(0).normal(size=(2, 4, 9, 7)).astype(np.float32)
    gradient = np.random.default_rng(1).normal(size=(2, 5, 5, 4)).astype(np.float32)
    data.set_value(x)
    conv.set_grad(gradient)
    net.forward()
    net.backward()
    theirs, weights = torch.tensor(x, requires_grad=True), torch.tensor(conv.get_weights(), requires_grad=True)
    expected = functional.conv2d(theirs, weights, stride=2, padding=1)
    expected.backward(torch.tensor(gradient))
    np.testing.assert_allclose(conv.get_value(), expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(data.get_grad(), theirs.grad.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(conv.get_grad_weights(), weights.grad.numpy(), rtol=1e-4, atol=1e-5)


def value_of(neuron: type, x: np.ndarray) -> np.ndarray:
    net = Net(len(x))
    data = MemoryDataLayer(net, x.shape[1:])
    layer = net.add_ensemble(Ensemble(neuron, (3,), ("c",)))
    net.add_connections(data, layer, lambda c: range(x.shape[1]))
    net.compile(target="portable")
    data.set_value(x)
    net.forward()
    return layer.get_value()


X = np.arange(16, dtype=np.float32).reshape(2, 8) + 1


def test_as_numbers_and_bounds() -> None:
    class Own(Neuron):
        def forward(self) -> None:
            first = 2 * c + 1  # noqa: F821
            half = first // 2
            self.value = 0.5 * first
            for k in range(half, first):
                after = k + 1
                if after % 2 == 0:
                    self.value += self.inputs[after] * half

    expected = np.zeros((2, 3), np.float32)
    for n in range(2):
        for row in range(3):
            expected[n, row] = 0.5 * (2 * row + 1)
            for k in range(row, 2 * row + 1):
                expected[n, row] += X[n, k + 1] * row if (k + 1) % 2 == 0 else 0
    np.testing.assert_array_equal(value_of(Own, X), expected)


def test_a_local_that_is_read_after_its_block_or_assigned_again_is_a_variable() -> None:
    class Last(Neuron):
        def forward(self) -> None:
            for k in range(4):
                last = 2 * k
            again = c  # noqa: F821
            again = again + last
            self.value = self.inputs[0] + 10.0 * again

    expected = X[:, :1] + 10 * (np.arange(3, dtype=np.float32) + 6)
    np.testing.assert_array_equal(value_of(Last, X), expected)

    class Subscript(Neuron):
        def forward(self) -> None:
            again = c  # noqa: F821
            again = again + 1
            self.value = self.inputs[again]

    with pytest.raises(LatteError, match="again cannot be a subscript here: such a local is affine in loop variables"):
        value_of(Subscript, X)


def test_what_leaves_the_array_is_refused() -> None:
    class Outside(Neuron):
        def forward(self) -> None:
            at = 4 * c  # noqa: F821
            self.value = self.inputs[at]

    with pytest.raises(LatteError, match=r"c \* 4 runs from 0 to 8, the extent is 8"):
        value_of(Outside, X)
