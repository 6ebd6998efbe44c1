"""Norms of constant and of nearly constant rows, in other layers than those that were wrong first: library layers,
norms of one's own in many spellings, chains.

The bounds are those of a two-pass algorithm in float32 whose mean is right within two roundings of the largest element
(so that it is exact for a constant row, as PyTorch's is): such an error of the mean moves each normalised element by
that error in standard deviations, and gradients accordingly. All else has a few roundings of the terms' size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from latte import (
    BatchNormLayer,
    ConvLayer,
    FullyConnectedLayer,
    GroupNormLayer,
    InstanceNormLayer,
    LayerNormLayer,
    LRNLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
)
from latte.ensemble import Ensemble
from latte.neuron import Field, Neuron, Param, constant, eachindex, ones, sqrt, zeros
from tests.layers.references import ROUNDING, assert_within
from tests.support import running_targets

EPSILON = 1e-5
TARGETS = running_targets()


def of_target(number: int) -> str:
    """A target that runs here, another one for the next number."""
    return TARGETS[number % len(TARGETS)]


# --- rows --------------------------------------------------------------------------------------------------
def constant_row(number: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda generator, length: np.full(length, number)


def near(number: float, deviation: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda generator, length: number + deviation * generator.standard_normal(length)


def first_off(number: float, by: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    """The first element is far from the others, which are equal."""
    return lambda generator, length: np.r_[number + by, np.full(length - 1, number)]


def last_bit(number: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Every third element is the next float32."""
    return lambda generator, length: np.where(
        np.arange(length) % 3 == 1, np.nextafter(np.float32(number), np.float32(np.inf)), np.float32(number)
    )


FIRST_OFF = first_off(1000.1, 30.0)
ROWS = (
    constant_row(1000.1),
    near(1e4, 1e-2),
    constant_row(1e-20),
    constant_row(0.0),
    near(1e4, 0.1),
    constant_row(1e4),
    last_bit(1000.1),
    near(0.0, 1.0),
    FIRST_OFF,
    constant_row(-77777.77),
    near(-3e5, 1.0),
    constant_row(0.1),
)


def rows_of(count: int, length: int, kinds: tuple[Callable[..., np.ndarray], ...] = ROWS) -> np.ndarray:
    """``count`` rows of each kind in turn, in float32."""
    generator = np.random.default_rng(count * 1000 + length)
    return np.stack([kinds[r % len(kinds)](generator, length) for r in range(count)]).astype(np.float32)


# --- what is right, and how far float32 may be off ----------------------------------------------------------
@dataclass(frozen=True)
class Norm:
    """Norm of the rows of ``x``: ``gamma · (x - mean) / sqrt(var + epsilon) + beta``, in float64.

    Args:
        x, gamma, beta, g: (rows, length); ``g`` is the gradient of the value.
        lost: what the variance's divisor has less than the length.
    """

    x: np.ndarray
    g: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    epsilon: float = EPSILON
    lost: int = 0

    def __post_init__(self) -> None:
        x = self.x.astype(np.float64)
        count = x.shape[1]
        centred = x - x.mean(1, keepdims=True)
        scale = 1 / np.sqrt((centred**2).sum(1, keepdims=True) / (count - self.lost) + self.epsilon)
        normal = centred * scale
        g = self.g * self.gamma
        along = (g * normal).sum(1, keepdims=True) / (count - self.lost)
        off = np.where(np.ptp(x, 1) == 0, 0, 2 * ROUNDING * abs(x).max(1))[:, None] * scale  # in standard deviations
        farthest = np.maximum(1, abs(normal).max(1, keepdims=True))
        of_normal = off + 32 * ROUNDING * farthest
        results = {
            "value": (self.gamma * normal + self.beta, abs(self.gamma) * of_normal + 2 * ROUNDING * abs(self.beta)),
            "inputs": (
                scale * (g - g.mean(1, keepdims=True) - normal * along),
                scale * abs(g).max(1, keepdims=True) * (3 * off * farthest + 64 * ROUNDING * farthest**2),
            ),
            "gamma": (self.g * normal, abs(self.g) * of_normal),
            "beta": (self.g, 32 * ROUNDING * abs(self.g)),
        }
        object.__setattr__(self, "results", results)

    def check(self, what: str, found: np.ndarray) -> None:
        """``found`` is the value or a gradient, as rows."""
        expected, bound = self.results[what]  # type: ignore[attr-defined]
        assert_within(found, expected, bound, what)

    def check_sum(self, what: str, found: np.ndarray, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
        """``found`` is the gradient of a parameter: the sum over ``axes`` of rows that have ``shape``."""
        expected, bound = (part.reshape(shape).sum(axes) for part in self.results[what])  # type: ignore[attr-defined]
        assert_within(found.reshape(expected.shape), expected, bound, what)


@dataclass(frozen=True)
class Run:
    """A net of one norm: the layers, and the seed at the norm."""

    net: Net
    data: list[Ensemble]
    layer: Ensemble
    g: np.ndarray


def run(
    batch: int,
    given: list[np.ndarray],
    make: Callable[..., Ensemble],
    *,
    target: int = 0,
    threads: int = 1,
    changed: dict[str, np.ndarray] | None = None,
) -> Run:
    """Forward and backward of a layer on data ``given``; ``changed`` are parameters that are set before."""
    net = Net(batch, seed=1)
    net.force_backward = True
    data = [MemoryDataLayer(net, x.shape[1:]) for x in given]
    layer = make(net, *data)
    net.compile(target=of_target(target), threads=threads)
    for name, array in (changed or {}).items():
        getattr(layer, f"set_{name}")(array)
    net.set_batch(*given)
    g = np.random.default_rng(5).standard_normal((len(given[0]), *layer.shape)).astype(np.float32)
    net.forward()
    layer.set_grad(g)
    net.backward()
    return Run(net, data, layer, g)


def numbers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Parameters, none of them small."""
    return np.random.default_rng(seed).uniform(0.5, 2, shape).astype(np.float32)


# --- library layers ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("batch", "shape", "target", "threads"),
    [
        (13, (1001,), 0, 2),
        (2, (13, 37), 1, 1),
        (5, (3, 5, 7), 2, 2),
        (5, (1,), 0, 1),
    ],
)
def test_layer_norm(batch: int, shape: tuple[int, ...], target: int, threads: int) -> None:
    over = shape[-1:] if len(shape) == 2 else shape
    length = int(np.prod(over))
    x = rows_of(batch * int(np.prod(shape)) // length, length).reshape(batch, *shape)
    gamma, beta = numbers(over, 2), numbers(over, 3)
    got = run(batch, [x], LayerNormLayer, target=target, threads=threads, changed={"gamma": gamma, "beta": beta})
    spread = [np.broadcast_to(p, x.shape).reshape(-1, length) for p in (gamma, beta)]
    norm = Norm(x.reshape(-1, length), got.g.reshape(-1, length), *spread)
    norm.check("value", got.layer.get_value().reshape(-1, length))
    norm.check("inputs", got.data[0].get_grad().reshape(-1, length))
    norm.check_sum("gamma", got.layer.get_grad_gamma(), (-1, length), (0,))
    norm.check_sum("beta", got.layer.get_grad_beta(), (-1, length), (0,))
    got.net.test()
    norm.check("value", got.layer.get_value().reshape(-1, length))


@pytest.mark.parametrize(
    ("batch", "shape", "target", "threads", "items"),
    [(7, (13, 5, 9), 0, 2, 7), (37, (19,), 1, 1, 37), (4, (16, 8, 8), 2, 1, 3)],
)
def test_batch_norm(batch: int, shape: tuple[int, ...], target: int, threads: int, items: int) -> None:
    """Of the channels; running statistics, and inference by them; fewer items than the net has.

    Not of rows whose first element alone is far off: ``moments`` loses digits of these, as its page says.
    """
    channels, pixels = shape[0], int(np.prod(shape[1:]))
    length = items * pixels

    def as_rows(a: np.ndarray) -> np.ndarray:
        return a.reshape(items, channels, pixels).swapaxes(0, 1).reshape(channels, length)

    def from_rows(a: np.ndarray) -> np.ndarray:
        return a.reshape(channels, items, pixels).swapaxes(0, 1).reshape(items, *shape)

    x = from_rows(rows_of(channels, length, tuple(row for row in ROWS if row is not FIRST_OFF)))
    gamma, beta = numbers((channels,), 2), numbers((channels,), 3)
    got = run(
        batch,
        [x],
        lambda net, source: BatchNormLayer(net, source, momentum=1.0),
        target=target,
        threads=threads,
        changed={"gamma": gamma, "beta": beta},
    )
    spread = [np.repeat(p[:, None], length, 1) for p in (gamma, beta)]
    norm = Norm(as_rows(x), as_rows(got.g), *spread)
    norm.check("value", as_rows(got.layer.get_value()))
    norm.check("inputs", as_rows(got.data[0].get_grad()))
    norm.check_sum("gamma", got.layer.get_grad_gamma(), (channels, -1), (1,))
    norm.check_sum("beta", got.layer.get_grad_beta(), (channels, -1), (1,))
    wide = as_rows(x).astype(np.float64)
    rounded = np.where(np.ptp(wide, 1) == 0, ROUNDING, 2 * ROUNDING) * abs(wide).max(1)
    assert_within(got.layer.get_running_mean(), wide.mean(1), rounded, "running_mean")
    deviation = 4 * rounded * wide.std(1) + rounded**2
    assert_within(
        got.layer.get_running_var(), wide.var(1, ddof=1), deviation + 64 * ROUNDING * wide.var(1), "running_var"
    )
    got.net.test()  # the mean, one rounding off, is subtracted from what is as large
    scale = 1 / np.sqrt(wide.var(1) * length / (length - 1) + EPSILON)[:, None]
    expected = spread[0] * (wide - wide.mean(1, keepdims=True)) * scale + spread[1]
    off = rounded[:, None] * scale * (1 + abs(wide - wide.mean(1, keepdims=True)) * scale)
    assert_within(as_rows(got.layer.get_value()), expected, spread[0] * (2 * off + 2e-5 * (1 + abs(expected))), "test")


@pytest.mark.parametrize(
    ("make", "groups", "shape", "target", "threads"),
    [
        (lambda net, source: GroupNormLayer(net, source, 3), 3, (9, 5, 7), 1, 2),
        (InstanceNormLayer, 6, (6, 11, 17), 2, 1),
        (InstanceNormLayer, 13, (13, 1, 1), 0, 2),
    ],
)
def test_group_and_instance_norm(
    make: Callable[..., Ensemble], groups: int, shape: tuple[int, ...], target: int, threads: int
) -> None:
    batch = 4
    length = int(np.prod(shape)) // groups
    x = rows_of(batch * groups, length).reshape(batch, *shape)
    gamma, beta = numbers(shape[:1], 2), numbers(shape[:1], 3)
    got = run(batch, [x], make, target=target, threads=threads, changed={"gamma": gamma, "beta": beta})
    spread = [np.broadcast_to(p[:, None, None], x.shape).reshape(-1, length) for p in (gamma, beta)]
    norm = Norm(x.reshape(-1, length), got.g.reshape(-1, length), *spread)
    norm.check("value", got.layer.get_value().reshape(-1, length))
    norm.check("inputs", got.data[0].get_grad().reshape(-1, length))
    norm.check_sum("gamma", got.layer.get_grad_gamma(), x.shape, (0, 2, 3))
    norm.check_sum("beta", got.layer.get_grad_beta(), x.shape, (0, 2, 3))
    got.net.test()
    norm.check("value", got.layer.get_value().reshape(-1, length))


@pytest.mark.parametrize("target", [0, 1])
def test_response_norm(target: int) -> None:
    """Pixels whose channels are constant. The gradient is a difference of terms: the bound is of their size."""
    n, alpha, beta, k = 5, 0.5, 0.75, 2.0
    x = rows_of(2 * 7 * 9, 11).reshape(2, 7, 9, 11).transpose(0, 3, 1, 2).copy()
    got = run(2, [x], lambda net, source: LRNLayer(net, source, n, beta, alpha, k), target=target, threads=2)
    wide, g = x.astype(np.float64), got.g.astype(np.float64)
    near = np.array([[abs(i - j) <= n // 2 for i in range(11)] for j in range(11)], float)
    s = k + alpha / n * np.einsum("cd,ndhw->nchw", near, wide**2)
    value = wide * s**-beta
    assert_within(got.layer.get_value(), value, 40 * ROUNDING * abs(value), "value")
    through = 2 * alpha * beta / n * wide * np.einsum("cd,ndhw->nchw", near, g * wide * s ** (-beta - 1))
    size = 2 * alpha * beta / n * abs(wide) * np.einsum("cd,ndhw->nchw", near, abs(g * wide) * s ** (-beta - 1))
    bound = 60 * ROUNDING * (abs(g) * s**-beta + size)
    assert_within(got.data[0].get_grad(), g * s**-beta - through, bound, "grad")


@pytest.mark.parametrize(("target", "threads"), [(0, 2)])
def test_chains_whose_rows_are_their_biases(target: int, threads: int) -> None:
    """Convolution of zeros, batch norm, ReLU: each channel is its bias. The same of a fully connected layer and layer
    norm. What is normalised is 0, exactly up to the roundings of one product."""
    biases = np.resize([1000.1, 1e4, 1e-20, 0.0, -77777.77, 0.1, 3.0], 19).astype(np.float32)
    net = Net(3, seed=1)
    image = MemoryDataLayer(net, (2, 9, 9))
    conv = ConvLayer(net, image, 19, kernel=3, pad=1)
    norm = BatchNormLayer(net, conv)
    relu = ReLULayer(net, norm)
    full = FullyConnectedLayer(net, relu, 203)
    last = LayerNormLayer(net, full)
    net.compile(target=of_target(target), threads=threads)
    conv.set_weights(np.zeros((19, 2, 3, 3)))
    conv.set_bias(biases[:, None])
    norm.set_beta(np.full(19, 0.5))
    full.set_weights(np.zeros((203, 19, 9, 9)))
    full.set_bias(np.full((203, 1), 1000.1))
    net.set_batch(np.random.default_rng(0).standard_normal((3, 2, 9, 9)))
    net.forward()
    g = np.random.default_rng(1).standard_normal((3, 203)).astype(np.float32)
    last.set_grad(g)
    net.backward()
    assert_within(relu.get_value(), np.full((3, 19, 9, 9), 0.5), 1e-6, "relu")
    assert_within(last.get_value(), np.zeros((3, 203)), 1e-6, "layer norm")
    assert_within(last.get_grad_gamma(), np.zeros(203), 1e-5, "gamma")
    g = g.astype(np.float64)
    wanted = (g - g.mean(1, keepdims=True)) / np.sqrt(EPSILON)
    assert_within(full.get_grad_bias()[:, 0], wanted.sum(0), 1e-5 * abs(wanted).max(), "bias")
    net.test()
    assert_within(last.get_value(), np.zeros((3, 203)), 1e-6, "inference")


# --- norms of one's own ------------------------------------------------------------------------------------
class AddAndNorm(Ensemble):
    """Norm of the sum of two sources, of which each alone varies."""

    def forward(self, first, second, value):
        N, F = first.shape
        for n in range(N):
            mean = 0.0
            for f in range(F):
                mean += first[n, f] + second[n, f]
            mean /= F
            var = 0.0
            for f in range(F):
                var += (first[n, f] + second[n, f] - mean) * (first[n, f] + second[n, f] - mean)
            for f in range(F):
                value[n, f] = (first[n, f] + second[n, f] - mean) / sqrt(var / F + 1e-5)


@pytest.mark.parametrize(("length", "target", "threads"), [(257, 1, 2)])
def test_own_norm_of_a_sum(length: int, target: int, threads: int) -> None:
    """The sources are whole multiples of 2^-4, so that their sums are exact: the rows are what they are."""
    total = np.stack([np.full(length, c) for c in (1000.0625, 1e4, 0.0, -77777.75)])
    total = np.concatenate([total, 1e4 + np.random.default_rng(2).integers(-3, 4, (3, length)) / 16]).astype(np.float32)
    first = (np.random.default_rng(1).integers(-999, 999, total.shape) / 16).astype(np.float32)
    second = total - first

    def make(net: Net, a: Ensemble, b: Ensemble) -> Ensemble:
        layer = net.add_ensemble(AddAndNorm(shape=a.shape, dims=("f",)))
        net.add_one_to_one_connections(a, layer, name="first")
        net.add_one_to_one_connections(b, layer, name="second")
        return layer

    got = run(7, [first, second], make, target=target, threads=threads)
    norm = Norm(total, got.g, np.ones_like(total), np.zeros_like(total))
    norm.check("value", got.layer.get_value())
    norm.check("inputs", got.data[0].get_grad())
    norm.check("inputs", got.data[1].get_grad())
    got.net.test()
    norm.check("value", got.layer.get_value())


class ChannelNorm(Ensemble):
    """Over the channels of each pixel; quotients are added up."""

    gamma = Param("c", init=ones)
    mean = Field("n", "h", "w")

    def forward(self, inputs, value, mean, gamma):
        N, C, H, W = inputs.shape
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        mean[n, h, w] += inputs[n, c, h, w] / C
        for n in range(N):
            for h in range(H):
                for w in range(W):
                    var = 0.0
                    for c in range(C):
                        var += (mean[n, h, w] - inputs[n, c, h, w]) ** 2 / C
                    for c in range(C):
                        value[n, c, h, w] = gamma[c] * (inputs[n, c, h, w] - mean[n, h, w]) / sqrt(var + 1e-5)


class UnbiasedNorm(Ensemble):
    """With the negated sum, the divisor F - 1 and a power."""

    def forward(self, inputs, value):
        N, F = inputs.shape
        for n in range(N):
            less = 0.0
            for f in range(F):
                less -= inputs[n, f]
            squares = 0.0
            for f in range(F):
                d = inputs[n, f] + less / F
                squares = squares + d * d
            for f in range(F):
                value[n, f] = (inputs[n, f] + less / F) * pow(squares / (F - 1) + 1e-5, -0.5)


LENGTH = 67


class WindowNeuron(Neuron):
    """Each neuron computes the mean of the row that it reads, and finds itself in it."""

    def forward(self):
        total = 0.0
        for i in eachindex(self.inputs):
            total = self.inputs[i] + total
        mean = total * (1.0 / LENGTH)
        var = 0.0
        for i in eachindex(self.inputs):
            var += (self.inputs[i] - mean) * (self.inputs[i] - mean)
        self.value = (self.inputs[c] - mean) / sqrt(var / LENGTH + 1e-5)  # noqa: F821


def mean_of(row, n):
    total = 0.0
    for f in range(row.shape[1]):
        total += row[n, f]
    return total / row.shape[1]


class HelpedNorm(Ensemble):
    """Of what the body has computed before, in a field; by helper functions."""

    scaled = Field("n", "f")
    factor = Param(shape=(1,), init=constant(2.0))
    shift = Param(shape=(1,), init=zeros)

    def forward(self, inputs, value, scaled, factor, shift):
        N, F = inputs.shape
        for n in range(N):
            for f in range(F):
                scaled[n, f] = factor[0] * inputs[n, f] + shift[0]
        for n in range(N):
            mean = mean_of(scaled, n)
            var = 0.0
            for f in range(F):
                var += self.square(scaled[n, f] - mean)
            deviation = sqrt(var / F + 1e-5)
            for f in range(F):
                value[n, f] = (scaled[n, f] - mean) / deviation

    def square(self, x):
        return x * x


class KeptTotal(Ensemble):
    """The total stays in a field, and is used for something else than the mean."""

    total = Field("n")
    mean = Field("n")

    def forward(self, inputs, value, total, mean):
        N, F = inputs.shape
        for n in range(N):
            for f in range(F):
                total[n] = total[n] + inputs[n, f]
            mean[n] = total[n] * (1.0 / F)
            var = 0.0
            for f in range(F):
                var += (inputs[n, f] - mean[n]) * (inputs[n, f] - mean[n])
            for f in range(F):
                value[n, f] = (inputs[n, f] - mean[n]) / sqrt(var / F + 1e-5)


def own(ensemble: Callable[[tuple[int, ...]], Ensemble]) -> Callable[[Net, Ensemble], Ensemble]:
    """Declares the layer that has the source's shape."""

    def make(net: Net, source: Ensemble) -> Ensemble:
        layer = net.add_ensemble(ensemble(source.shape))
        net.add_one_to_one_connections(source, layer)
        return layer

    return make


def windows(net: Net, source: Ensemble) -> Ensemble:
    layer = net.add_ensemble(Ensemble(WindowNeuron, source.shape, dims=("c",), kind="window"))
    net.add_connections(source, layer, lambda c: range(source.shape[0]))
    return layer


VECTORS = {
    "unbiased": (own(lambda shape: UnbiasedNorm(shape=shape, dims=("f",))), 1, 1.0),
    "windows": (windows, 0, 1.0),
    "helped": (own(lambda shape: HelpedNorm(shape=shape, dims=("f",))), 0, 2.0),
    "kept total": (own(lambda shape: KeptTotal(shape=shape, dims=("f",))), 0, 1.0),
}


@pytest.mark.parametrize(
    ("kind", "batch", "length", "target", "threads"),
    [
        ("unbiased", 12, 1001, 0, 2),
        ("unbiased", 13, 5, 2, 1),
        ("windows", 12, LENGTH, 1, 1),
        ("helped", 13, 33, 2, 1),
        ("kept total", 12, 129, 1, 2),
    ],
)
def test_own_norms_of_vectors(kind: str, batch: int, length: int, target: int, threads: int) -> None:
    make, lost, factor = VECTORS[kind]
    x = rows_of(batch, length)
    got = run(batch, [x], make, target=target, threads=threads)
    norm = Norm(factor * x, got.g, np.ones_like(x), np.zeros_like(x), lost=lost)
    norm.check("value", got.layer.get_value())
    norm.check("inputs", got.data[0].get_grad() / factor)
    if kind == "kept total":
        wide = x.astype(np.float64)
        assert_within(got.layer.get_total(), wide.sum(1), 1e-6 * abs(wide).sum(1), "total")
    got.net.test()
    norm.check("value", got.layer.get_value())


@pytest.mark.parametrize(("shape", "target", "threads"), [((65, 3, 4), 0, 2)])
def test_own_norm_of_channels(shape: tuple[int, ...], target: int, threads: int) -> None:
    channels, pixels = shape[0], shape[1] * shape[2]

    def as_rows(a: np.ndarray) -> np.ndarray:
        return a.reshape(2, channels, pixels).swapaxes(1, 2).reshape(-1, channels)

    x = rows_of(2 * pixels, channels).reshape(2, pixels, channels).swapaxes(1, 2).reshape(2, *shape)
    gamma = numbers((channels,), 2)
    make = own(lambda shape: ChannelNorm(shape=shape, dims=("c", "h", "w")))
    got = run(2, [x], make, target=target, threads=threads, changed={"gamma": gamma})
    norm = Norm(as_rows(x), as_rows(got.g), np.tile(gamma, (2 * pixels, 1)), np.zeros((2 * pixels, channels)))
    norm.check("value", as_rows(got.layer.get_value()))
    norm.check("inputs", as_rows(got.data[0].get_grad()))
    norm.check_sum("gamma", got.layer.get_grad_gamma(), (-1, channels), (0,))
