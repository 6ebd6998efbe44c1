"""Softmax and its logarithm over the channels, or the features of a position."""

from __future__ import annotations

from latte.ensemble import Ensemble
from latte.layers.arguments import names_of_dimensions, one_to_one, source_of
from latte.net import Net
from latte.neuron import Field, exp, log1p, stop_gradient


def largest_of(inputs, n):
    """The largest element of an item, without a gradient."""
    largest = inputs[n, 0]
    for c in range(1, inputs.shape[1]):
        largest = max(largest, inputs[n, c])
    return stop_gradient(largest)


def exp_beside(x, largest):
    """``exp(x - largest)``; of the largest 0, with the slope 1: the sum of these keeps its digits where it is small."""
    part = exp(x - stop_gradient(largest))
    return part - 1.0 if x == largest else part


def largest_of_pixels(inputs, largest):
    """Computes ``largest``, (batch, y, x), over the channels."""
    N, C, H, W = inputs.shape
    for n in range(N):
        for y in range(H):
            for x in range(W):
                largest[n, y, x] = inputs[n, 0, y, x]
                for c in range(1, C):
                    largest[n, y, x] = max(largest[n, y, x], inputs[n, c, y, x])


class SoftmaxEnsemble(Ensemble):
    """``exp(x[c]) / Σ exp(x[c'])`` of vectors."""

    kind = "softmax"

    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            shift = largest_of(inputs, n)
            total = 0.0
            for c in range(C):
                value[n, c] = exp(inputs[n, c] - shift)
                total += value[n, c]
            for c in range(C):
                value[n, c] = value[n, c] / total


class LogSoftmaxEnsemble(Ensemble):
    """``x[c] - log Σ exp(x[c'])`` of vectors."""

    kind = "log_softmax"

    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            shift = largest_of(inputs, n)
            rest = 0.0
            equals = 0.0
            for c in range(C):
                rest += exp_beside(inputs[n, c], shift)
                equals += 1.0 if inputs[n, c] == shift else 0.0
            logarithm = log1p(rest + (equals - 1.0))
            for c in range(C):
                value[n, c] = inputs[n, c] - shift - logarithm


class SequenceSoftmaxEnsemble(Ensemble):
    """``exp(x[c]) / Σ exp(x[c'])`` of the features of each position."""

    kind = "softmax"

    def forward(self, inputs, value):
        N, T, C = inputs.shape
        for n in range(N):
            for t in range(T):
                largest = inputs[n, t, 0]
                for c in range(1, C):
                    largest = max(largest, inputs[n, t, c])
                shift = stop_gradient(largest)
                total = 0.0
                for c in range(C):
                    value[n, t, c] = exp(inputs[n, t, c] - shift)
                    total += value[n, t, c]
                for c in range(C):
                    value[n, t, c] = value[n, t, c] / total


class SequenceLogSoftmaxEnsemble(Ensemble):
    """``x[c] - log Σ exp(x[c'])`` of the features of each position."""

    kind = "log_softmax"

    def forward(self, inputs, value):
        N, T, C = inputs.shape
        for n in range(N):
            for t in range(T):
                largest = inputs[n, t, 0]
                for c in range(1, C):
                    largest = max(largest, inputs[n, t, c])
                shift = stop_gradient(largest)
                rest = 0.0
                equals = 0.0
                for c in range(C):
                    rest += exp_beside(inputs[n, t, c], shift)
                    equals += 1.0 if inputs[n, t, c] == shift else 0.0
                logarithm = log1p(rest + (equals - 1.0))
                for c in range(C):
                    value[n, t, c] = inputs[n, t, c] - shift - logarithm


class PixelSoftmaxEnsemble(Ensemble):
    """``exp(x[c]) / Σ exp(x[c'])`` of the channels of each pixel."""

    kind = "softmax"
    largest = Field("n", "y", "x")
    total = Field("n", "y", "x")

    def forward(self, inputs, value, largest, total):
        N, C, H, W = inputs.shape
        largest_of_pixels(inputs, largest)
        for n in range(N):
            for c in range(C):
                for y in range(H):
                    for x in range(W):
                        value[n, c, y, x] = exp(inputs[n, c, y, x] - stop_gradient(largest[n, y, x]))
                        total[n, y, x] += value[n, c, y, x]
        for n in range(N):
            for c in range(C):
                for y in range(H):
                    for x in range(W):
                        value[n, c, y, x] = value[n, c, y, x] / total[n, y, x]


class PixelLogSoftmaxEnsemble(Ensemble):
    """``x[c] - log Σ exp(x[c'])`` of the channels of each pixel."""

    kind = "log_softmax"
    largest = Field("n", "y", "x")
    rest = Field("n", "y", "x")
    equals = Field("n", "y", "x")

    def forward(self, inputs, value, largest, rest, equals):
        N, C, H, W = inputs.shape
        largest_of_pixels(inputs, largest)
        for n in range(N):
            for c in range(C):
                for y in range(H):
                    for x in range(W):
                        rest[n, y, x] += exp_beside(inputs[n, c, y, x], largest[n, y, x])
                        equals[n, y, x] += 1.0 if inputs[n, c, y, x] == largest[n, y, x] else 0.0
        for n in range(N):
            for c in range(C):
                for y in range(H):
                    for x in range(W):
                        shifted = inputs[n, c, y, x] - stop_gradient(largest[n, y, x])
                        value[n, c, y, x] = shifted - log1p(rest[n, y, x] + (equals[n, y, x] - 1.0))


def SoftmaxLayer(net: Net, input_ensemble: Ensemble, *, name: str | None = None) -> Ensemble:
    """``exp(x[c]) / Σ exp(x[c'])`` over the channels, or the features of a position; the largest is subtracted first.

    Args:
        net: the net.
        input_ensemble: shape (channels,), (positions, features), or (channels, height, width).
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit.
    """
    source = source_of(net, input_ensemble, "SoftmaxLayer", (1, 2, 3))
    return _by_rank(net, source, (SoftmaxEnsemble, SequenceSoftmaxEnsemble, PixelSoftmaxEnsemble), name)


def LogSoftmaxLayer(net: Net, input_ensemble: Ensemble, *, name: str | None = None) -> Ensemble:
    """``x[c] - log Σ exp(x[c'])`` over the channels, or the features of a position; arguments as
    :func:`SoftmaxLayer`'s."""
    source = source_of(net, input_ensemble, "LogSoftmaxLayer", (1, 2, 3))
    return _by_rank(net, source, (LogSoftmaxEnsemble, SequenceLogSoftmaxEnsemble, PixelLogSoftmaxEnsemble), name)


def _by_rank(net: Net, source: Ensemble, kinds: tuple[type[Ensemble], ...], name: str | None) -> Ensemble:
    kind = kinds[source.ndim - 1]
    return one_to_one(net, source, kind(shape=source.shape, dims=names_of_dimensions(source.ndim), name=name))
