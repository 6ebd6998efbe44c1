"""Plain NumPy definitions of the layers in float64, and what the tests of all layers share.

No schedule, no trick: loops over output positions, and a product of matrices within one. Every function takes and
returns arrays with the batch first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble

ROUNDING = 2.0**-24
"""Largest relative error of one float32 operation."""

Pair = tuple[int, int]


def both(value: int | Pair) -> Pair:
    """One number for y and x, or the two that were given."""
    return value if isinstance(value, tuple) else (value, value)


# --- how far float32 may be off ----------------------------------------------------------------------------
def assert_within(actual: np.ndarray, expected: np.ndarray, bound: np.ndarray | float, what: str = "") -> None:
    """``|actual - expected| <= bound`` in every element, with equal shapes and no NaN.

    Args:
        actual: computed in float32.
        expected: in float64.
        bound: absolute, of the shape of ``expected`` or one number.
        what: shown when it fails.
    """
    assert actual.shape == expected.shape, f"{what}: {actual.shape} instead of {expected.shape}"
    bound = np.broadcast_to(bound, expected.shape)
    error = np.abs(actual.astype(np.float64) - expected)
    wrong = ~(error <= bound)
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{what}{list(place)}: {actual[place]!r}, expected {expected[place]!r} within {bound[place]:.3g}"
            f" ({int(wrong.sum())} of {wrong.size} are off)"
        )


def sum_bound(terms: int, magnitude: np.ndarray) -> np.ndarray:
    """How far a float32 sum of ``terms`` products may be off, in any order.

    Each product and each addition rounds once, so that the error is at most (terms + 1) roundings of the sum
    of the absolute values (Higham, *Accuracy and Stability*, 3.5); one more for what was accumulated before.

    Args:
        terms: number of products in one sum.
        magnitude: the sum of the products' absolute values.
    """
    return (terms + 2) * ROUNDING * magnitude + 1e-37


# --- convolution -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Windows:
    """Which elements of an image of (height, width) each window covers; zeros around it."""

    height: int
    width: int
    kernel: Pair
    stride: Pair
    pad: Pair
    dilation: Pair

    @property
    def counts(self) -> Pair:
        """Number of windows in y and x."""
        sizes = []
        for axis, extent in enumerate((self.height, self.width)):
            covered = (self.kernel[axis] - 1) * self.dilation[axis] + 1
            sizes.append((extent + 2 * self.pad[axis] - covered) // self.stride[axis] + 1)
        return sizes[0], sizes[1]

    def position(self, y: int, x: int) -> tuple[slice, slice]:
        """The elements of the padded image that window (y, x) covers."""
        top, left = y * self.stride[0], x * self.stride[1]
        (rows, columns), (down, right) = self.kernel, self.dilation
        return slice(top, top + (rows - 1) * down + 1, down), slice(left, left + (columns - 1) * right + 1, right)

    def padded(self, image: np.ndarray) -> np.ndarray:
        """The image with its zeros."""
        (up, left), (batch, channels) = self.pad, image.shape[:2]
        result = np.zeros((batch, channels, self.height + 2 * up, self.width + 2 * left))
        result[:, :, up : up + self.height, left : left + self.width] = image
        return result

    def cropped(self, padded: np.ndarray) -> np.ndarray:
        """A padded image without its border."""
        up, left = self.pad
        return padded[:, :, up : up + self.height, left : left + self.width]


def convolve(x: np.ndarray, weights: np.ndarray, bias: np.ndarray | None, windows: Windows) -> np.ndarray:
    """``out[n, k, y, x] = bias[k, 0] + Σ weights[k, c, i, j] · in[n, c, y·stride - pad + i·dilation, …]``."""
    padded, weights = windows.padded(x), weights.astype(np.float64)
    out = np.zeros((len(x), len(weights), *windows.counts))
    for y, x_ in np.ndindex(*windows.counts):
        rows, columns = windows.position(y, x_)
        out[:, :, y, x_] = np.tensordot(padded[:, :, rows, columns], weights, ([1, 2, 3], [1, 2, 3]))
    return out if bias is None else out + bias.astype(np.float64).reshape(1, -1, 1, 1)


def convolve_input_gradient(gradient: np.ndarray, weights: np.ndarray, windows: Windows) -> np.ndarray:
    """Every output's gradient, scattered to the elements that its window covers."""
    gradient, weights = gradient.astype(np.float64), weights.astype(np.float64)
    padded = windows.padded(np.zeros((len(gradient), weights.shape[1], windows.height, windows.width)))
    for y, x_ in np.ndindex(*windows.counts):
        rows, columns = windows.position(y, x_)
        padded[:, :, rows, columns] += np.tensordot(gradient[:, :, y, x_], weights, 1)
    return windows.cropped(padded)


def convolve_weight_gradient(gradient: np.ndarray, x: np.ndarray, windows: Windows) -> np.ndarray:
    """Every output's gradient times the elements that its window covers, summed over the batch."""
    gradient, padded = gradient.astype(np.float64), windows.padded(x)
    result = np.zeros((gradient.shape[1], x.shape[1], *windows.kernel))
    for y, x_ in np.ndindex(*windows.counts):
        rows, columns = windows.position(y, x_)
        result += np.tensordot(gradient[:, :, y, x_], padded[:, :, rows, columns], ([0], [0]))
    return result


# --- max pooling -------------------------------------------------------------------------------------------
def max_pool(x: np.ndarray, kernel: Pair, stride: Pair, pad: Pair) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Latte's rule: sizes rounded up, positions outside clamped to the edge; (value, mask_j, mask_k)."""
    batch, channels, height, width = x.shape
    rows, columns = (
        -(-(extent + 2 * pad[axis] - kernel[axis]) // stride[axis]) + 1 for axis, extent in enumerate((height, width))
    )
    value = np.full((batch, channels, rows, columns), -np.inf)
    mask_j, mask_k = np.zeros(value.shape, np.int32), np.zeros(value.shape, np.int32)
    for n, c, y, x_ in np.ndindex(*value.shape):
        for j, k in np.ndindex(*kernel):
            row = np.clip(y * stride[0] - pad[0] + j, 0, height - 1)
            column = np.clip(x_ * stride[1] - pad[1] + k, 0, width - 1)
            if x[n, c, row, column] > value[n, c, y, x_]:
                value[n, c, y, x_] = x[n, c, row, column]
                mask_j[n, c, y, x_], mask_k[n, c, y, x_] = j, k
    return value, mask_j, mask_k


def max_pool_gradient(
    gradient: np.ndarray,
    masks: tuple[np.ndarray, np.ndarray],
    shape: tuple[int, ...],
    stride: Pair,
    pad: Pair,
) -> np.ndarray:
    """Every window's gradient, added to its winner, for a source of ``shape``."""
    result = np.zeros(shape)
    for n, c, y, x_ in np.ndindex(*gradient.shape):
        row = np.clip(y * stride[0] - pad[0] + masks[0][n, c, y, x_], 0, shape[2] - 1)
        column = np.clip(x_ * stride[1] - pad[1] + masks[1][n, c, y, x_], 0, shape[3] - 1)
        result[n, c, row, column] += gradient[n, c, y, x_]
    return result


# --- batch norm --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class BatchNorm:
    """Batch norm of ``x``, (batch, channels, …), in the training phase.

    Args:
        x: the source.
        gamma: (channels,).
        beta: (channels,).
        epsilon: added to the variance.
    """

    x: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    epsilon: float

    @property
    def axes(self) -> tuple[int, ...]:
        """All dimensions but the channels."""
        return (0, *range(2, self.x.ndim))

    @property
    def count(self) -> int:
        """Number of elements of a channel."""
        return self.x.size // self.x.shape[1]

    def each(self, values: np.ndarray) -> np.ndarray:
        """One number for each channel, in the shape that goes with ``x``."""
        return np.asarray(values, np.float64).reshape(1, -1, *[1] * (self.x.ndim - 2))

    @property
    def mean(self) -> np.ndarray:
        return self.x.mean(self.axes, dtype=np.float64)

    @property
    def var(self) -> np.ndarray:
        return self.x.astype(np.float64).var(self.axes)

    @property
    def normalized(self) -> np.ndarray:
        return (self.x - self.each(self.mean)) / np.sqrt(self.each(self.var) + self.epsilon)

    @property
    def value(self) -> np.ndarray:
        return self.each(self.gamma) * self.normalized + self.each(self.beta)

    def gradients(self, gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of the source, of gamma and of beta."""
        gradient, normalized = gradient.astype(np.float64), self.normalized
        of_gamma, of_beta = (gradient * normalized).sum(self.axes), gradient.sum(self.axes)
        spread = self.each(of_beta) / self.count + normalized * self.each(of_gamma) / self.count
        scale = self.each(self.gamma) / np.sqrt(self.each(self.var) + self.epsilon)
        return scale * (gradient - spread), of_gamma, of_beta


# --- softmax loss ------------------------------------------------------------------------------------------
def softmax(scores: np.ndarray) -> np.ndarray:
    """Of every row."""
    shifted = np.exp(scores.astype(np.float64) - scores.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def softmax_loss(scores: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean of ``-log softmax(scores)[label]``, and its gradient."""
    prob = softmax(scores)
    rows = np.arange(len(scores))
    gradient = prob.copy()
    gradient[rows, labels] -= 1.0
    return float(-np.log(prob[rows, labels]).mean()), gradient / len(scores)


# --- one layer on data -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Alone:
    """A compiled net of one data layer and one layer on top of it, with what it was given.

    Args:
        net: with ``force_backward``, on one thread.
        data: the data layer.
        layer: the layer that is tested.
        x: the data, drawn from a normal distribution.
        gradient: the seed at the layer, likewise.
    """

    net: Net
    data: Ensemble
    layer: Ensemble
    x: np.ndarray
    gradient: np.ndarray

    def run(self) -> None:
        """One forward and one backward, gradients started from zero."""
        self.net.clear_grad()
        self.net.forward()
        self.net.backward()


def alone(
    batch: int,
    shape: tuple[int, ...],
    make: Callable[[Net, Ensemble], Ensemble],
    *,
    change: Callable[[np.ndarray], np.ndarray] = np.asarray,
    target: str | None = None,
    threads: int = 1,
) -> Alone:
    """Declare, compile and seed a net of one layer on data, and run it once.

    Args:
        batch: items.
        shape: of the data.
        make: declares the layer on a data layer.
        change: what to do to the random data first (round them, say, so that there are equal ones).
        target: what code is made for.
        threads: that run it.
    """
    net = Net(batch, seed=3)
    net.force_backward = True
    data = MemoryDataLayer(net, shape)
    layer = make(net, data)
    net.compile(threads=threads, target=target)
    generator = np.random.default_rng(abs(hash((batch, shape))) % 2**32)
    x = change(generator.normal(size=(batch, *shape))).astype(np.float32)
    gradient = generator.normal(size=(batch, *layer.shape)).astype(np.float32)
    data.set_value(x)  # type: ignore[attr-defined]
    layer.set_grad(gradient)  # type: ignore[attr-defined]
    result = Alone(net, data, layer, x, gradient)
    result.run()
    return result
