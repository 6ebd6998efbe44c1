"""Normalisation of each item by itself: over groups of channels, over all elements, over neighbouring channels.

A variance does not change with its mean, as the sum of what is centred is zero: ``stop_gradient(mean)`` leaves out of
the gradient what would be zero, and with it a pass over the data. Where parameters are fewer than a group's elements,
its scale is computed once, and so is the derivative of that: otherwise the sums over items would be outside of those
elements.
"""

from __future__ import annotations

from latte.ensemble import Ensemble
from latte.errors import DeclarationError
from latte.layers.arguments import count, one_to_one, positive, source_of
from latte.model.checks import check_number
from latte.model.source_location import user_location
from latte.net import Net
from latte.neuron import Field, Param, ones, sqrt, stop_gradient, zeros


class GroupNormEnsemble(Ensemble):
    """Group norm of images."""

    kind = "group_norm"
    gamma = Param("c", init=ones)
    beta = Param("c", init=zeros)

    def __init__(self, shape: tuple[int, ...], groups: int, epsilon: float, name: str | None):
        super().__init__(shape=shape, dims=("c", "h", "w"), name=name)
        self.epsilon = epsilon
        self.groups = groups
        self.add_field("mean", Field("n", shape=(groups,)))
        self.add_field("var", Field("n", shape=(groups,)))

    def forward(self, inputs, value, mean, var, gamma, beta):
        N, C, H, W = inputs.shape
        G = self.groups
        S = C // G
        for n in range(N):
            for g in range(G):
                for s in range(S):
                    for h in range(H):
                        for w in range(W):
                            mean[n, g] += inputs[n, g * S + s, h, w]
        for n in range(N):
            for g in range(G):
                mean[n, g] = mean[n, g] / (S * H * W)
        for n in range(N):
            for g in range(G):
                for s in range(S):
                    for h in range(H):
                        for w in range(W):
                            centred = inputs[n, g * S + s, h, w] - stop_gradient(mean[n, g])
                            var[n, g] += centred * centred
        for n in range(N):
            for g in range(G):
                var[n, g] = var[n, g] / (S * H * W)
        for n in range(N):
            for g in range(G):
                scale = 1.0 / sqrt(var[n, g] + self.epsilon)
                for s in range(S):
                    for h in range(H):
                        for w in range(W):
                            normalized = (inputs[n, g * S + s, h, w] - mean[n, g]) * scale
                            value[n, g * S + s, h, w] = gamma[g * S + s] * normalized + beta[g * S + s]


class InstanceNormEnsemble(GroupNormEnsemble):
    """Group norm with a group for each channel."""

    kind = "instance_norm"


class LayerNormEnsemble(Ensemble):
    """Layer norm of images: over all elements of an item."""

    kind = "layer_norm"
    gamma = Param("c", "h", "w", init=ones)
    beta = Param("c", "h", "w", init=zeros)
    mean = Field("n")
    var = Field("n")

    def __init__(self, shape: tuple[int, ...], epsilon: float, name: str | None):
        super().__init__(shape=shape, dims=("c", "h", "w"), name=name)
        self.epsilon = epsilon

    def forward(self, inputs, value, mean, var, gamma, beta):
        N, C, H, W = inputs.shape
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        mean[n] += inputs[n, c, h, w]
        for n in range(N):
            mean[n] = mean[n] / (C * H * W)
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        centred = inputs[n, c, h, w] - stop_gradient(mean[n])
                        var[n] += centred * centred
        for n in range(N):
            var[n] = var[n] / (C * H * W)
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        normalized = (inputs[n, c, h, w] - mean[n]) / sqrt(var[n] + self.epsilon)
                        value[n, c, h, w] = gamma[c, h, w] * normalized + beta[c, h, w]


class LayerNormSequenceEnsemble(Ensemble):
    """Layer norm of sequences: over the features of each position."""

    kind = "layer_norm"
    gamma = Param("f", init=ones)
    beta = Param("f", init=zeros)
    mean = Field("n", "t")
    var = Field("n", "t")

    def __init__(self, shape: tuple[int, ...], epsilon: float, name: str | None):
        super().__init__(shape=shape, dims=("t", "f"), name=name)
        self.epsilon = epsilon

    def forward(self, inputs, value, mean, var, gamma, beta):
        N, T, F = inputs.shape
        for n in range(N):
            for t in range(T):
                for f in range(F):
                    mean[n, t] += inputs[n, t, f]
                mean[n, t] = mean[n, t] / F
                for f in range(F):
                    centred = inputs[n, t, f] - stop_gradient(mean[n, t])
                    var[n, t] += centred * centred
                var[n, t] = var[n, t] / F
                scale = 1.0 / sqrt(var[n, t] + self.epsilon)
                for f in range(F):
                    normalized = (inputs[n, t, f] - mean[n, t]) * scale
                    value[n, t, f] = gamma[f] * normalized + beta[f]


class LayerNormVectorEnsemble(Ensemble):
    """Layer norm of vectors."""

    kind = "layer_norm"
    gamma = Param("f", init=ones)
    beta = Param("f", init=zeros)
    mean = Field("n")
    var = Field("n")

    def __init__(self, shape: tuple[int, ...], epsilon: float, name: str | None):
        super().__init__(shape=shape, dims=("f",), name=name)
        self.epsilon = epsilon

    def forward(self, inputs, value, mean, var, gamma, beta):
        N, F = inputs.shape
        for n in range(N):
            for f in range(F):
                mean[n] += inputs[n, f]
            mean[n] = mean[n] / F
            for f in range(F):
                centred = inputs[n, f] - stop_gradient(mean[n])
                var[n] += centred * centred
            var[n] = var[n] / F
            for f in range(F):
                normalized = (inputs[n, f] - mean[n]) / sqrt(var[n] + self.epsilon)
                value[n, f] = gamma[f] * normalized + beta[f]


class LRNEnsemble(Ensemble):
    """Local response normalisation across channels."""

    kind = "lrn"
    squares = Field("n", "c", "h", "w")

    def __init__(self, shape: tuple[int, ...], n: int, beta: float, alpha: float, k: float, name: str | None):
        super().__init__(shape=shape, dims=("c", "h", "w"), name=name)
        self.before, self.after = n // 2, (n - 1) // 2
        self.scale, self.offset, self.exponent = alpha / n, k, beta

    def forward(self, inputs, value, squares):
        N, C, H, W = inputs.shape
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        for j in range(max(0, c - self.before), min(C, c + self.after + 1)):
                            squares[n, c, h, w] += inputs[n, j, h, w] * inputs[n, j, h, w]
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        bracket = self.offset + self.scale * squares[n, c, h, w]
                        value[n, c, h, w] = inputs[n, c, h, w] * pow(bracket, -self.exponent)


def GroupNormLayer(
    net: Net, input_ensemble: Ensemble, groups: int, epsilon: float = 1e-5, *, name: str | None = None
) -> Ensemble:
    """Each group of channels of each image with mean 0 and variance 1, then scaled and shifted by ``gamma``, ``beta``.

    ``gamma`` and ``beta`` have shape (channels,) and start at 1 and 0; ``mean`` and ``var``, of each item and group,
    are those of the last batch.

    Args:
        net: the net.
        input_ensemble: shape (channels, height, width).
        groups: number of groups; the channels are a multiple of it.
        epsilon: added to the variance, greater than 0.
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit; so it is for the layers below.

    Source: Wu, He, *Group normalization*, ECCV 2018.
    """
    source = source_of(net, input_ensemble, "GroupNormLayer", 3)
    parts = count("groups", groups)
    if source.shape[0] % parts:
        raise DeclarationError(
            f"{source.shape[0]} channels cannot be divided into {parts} groups", location=user_location()
        )
    return one_to_one(net, source, GroupNormEnsemble(source.shape, parts, positive("epsilon", epsilon), name))


def InstanceNormLayer(
    net: Net, input_ensemble: Ensemble, epsilon: float = 1e-5, *, name: str | None = None
) -> Ensemble:
    """Each channel of each image with mean 0 and variance 1, then scaled and shifted by ``gamma``, ``beta``.

    Arguments as :func:`GroupNormLayer`'s.

    Source: Ulyanov, Vedaldi, Lempitsky, *Instance normalization*, 2016.
    """
    source = source_of(net, input_ensemble, "InstanceNormLayer", 3)
    return one_to_one(
        net, source, InstanceNormEnsemble(source.shape, source.shape[0], positive("epsilon", epsilon), name)
    )


def LayerNormLayer(net: Net, input_ensemble: Ensemble, epsilon: float = 1e-5, *, name: str | None = None) -> Ensemble:
    """Mean 0 and variance 1 over all elements of an image or a vector, or over the features of each position of a
    sequence; then scaled and shifted by ``gamma`` and ``beta``, of the shape that is normalised over.

    Args:
        net: the net.
        input_ensemble: shape (features,), (positions, features), or (channels, height, width).
        epsilon, name: as :func:`GroupNormLayer`'s.

    Source: Ba, Kiros, Hinton, *Layer normalization*, 2016.
    """
    source = source_of(net, input_ensemble, "LayerNormLayer", (1, 2, 3))
    kinds = {1: LayerNormVectorEnsemble, 2: LayerNormSequenceEnsemble, 3: LayerNormEnsemble}
    return one_to_one(net, source, kinds[source.ndim](source.shape, positive("epsilon", epsilon), name))


def LRNLayer(
    net: Net,
    input_ensemble: Ensemble,
    n: int = 5,
    beta: float = 0.75,
    alpha: float = 0.0001,
    k: float = 1.0,
    *,
    name: str | None = None,
) -> Ensemble:
    """``x[c] / (k + alpha / n · Σ x[c']²)^beta`` over ``n`` neighbouring channels ``c'``; those that do not exist count
    as 0.

    Args:
        net: the net.
        input_ensemble: shape (channels, height, width).
        n: number of channels that are summed, ``n // 2`` of them before ``c``.
        beta: any number.
        alpha: at least 0.
        k: greater than 0.
        name: of the layer.

    Source: Krizhevsky, Sutskever, Hinton, *ImageNet classification with deep convolutional neural networks*, NIPS 2012,
    section 3.3; ``alpha / n`` as Caffe and PyTorch have it.
    """
    source = source_of(net, input_ensemble, "LRNLayer", 3)
    numbers = check_number("beta", beta), check_number("alpha", alpha, least=0.0), positive("k", k)
    return one_to_one(net, source, LRNEnsemble(source.shape, count("n", n), *numbers, name))
