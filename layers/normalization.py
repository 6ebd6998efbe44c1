"""Normalization layers, written as the plain loops of their definitions; the compiler reorders and fuses
them."""

from __future__ import annotations

from latte.ensemble import BatchSumEnsemble, Ensemble
from latte.layers.arguments import flag, one_to_one, positive, source_of
from latte.model.checks import check_number
from latte.net import Net
from latte.neuron import Field, Param, State, ones, sqrt, stop_gradient, zeros


class BatchNormFields(Ensemble):
    """What batch norm has for each channel, or feature."""

    gamma = Param("c", init=ones)
    beta = Param("c", init=zeros)
    mean = Field("c")
    var = Field("c")
    running_mean = State("c", init=zeros)
    running_var = State("c", init=ones)

    def __init__(self, shape: tuple[int, ...], epsilon: float, momentum: float, name: str | None):
        super().__init__(shape=shape, dims=("c", "h", "w")[: len(shape)], name=name)
        self.epsilon = epsilon
        self.momentum = momentum


class BatchNormEnsemble(BatchNormFields):
    """Batch norm of images (batch, channels, height, width)."""

    kind = "batch_norm"

    def forward(self, inputs, value, mean, var, gamma, beta, running_mean, running_var):
        N, C, H, W = inputs.shape
        M = N * H * W
        if self.training:
            for n in range(N):
                for c in range(C):
                    for h in range(H):
                        for w in range(W):
                            mean[c] += inputs[n, c, h, w]
            for c in range(C):
                mean[c] = mean[c] / M
            for n in range(N):
                for c in range(C):
                    for h in range(H):
                        for w in range(W):
                            var[c] += (inputs[n, c, h, w] - mean[c]) * (inputs[n, c, h, w] - mean[c])
            for c in range(C):
                var[c] = var[c] / M
            for n in range(N):
                for c in range(C):
                    for h in range(H):
                        for w in range(W):
                            normalized = (inputs[n, c, h, w] - mean[c]) / sqrt(var[c] + self.epsilon)
                            value[n, c, h, w] = gamma[c] * normalized + beta[c]
            self.update_running(mean, var, running_mean, running_var, M)
        else:
            for n in range(N):
                for c in range(C):
                    for h in range(H):
                        for w in range(W):
                            normalized = (inputs[n, c, h, w] - running_mean[c]) / sqrt(running_var[c] + self.epsilon)
                            value[n, c, h, w] = gamma[c] * normalized + beta[c]

    def update_running(self, mean, var, running_mean, running_var, M):
        """Of ``M`` elements in each channel."""
        for c in range(mean.shape[0]):
            running_mean[c] = (1.0 - self.momentum) * running_mean[c] + self.momentum * mean[c]
            running_var[c] = (1.0 - self.momentum) * running_var[c] + self.momentum * M / max(M - 1, 1) * var[c]


class BatchNormVectorEnsemble(BatchNormEnsemble):
    """Batch norm of vectors (batch, features)."""

    def forward(self, inputs, value, mean, var, gamma, beta, running_mean, running_var):
        N, C = inputs.shape
        if self.training:
            for n in range(N):
                for c in range(C):
                    mean[c] += inputs[n, c]
            for c in range(C):
                mean[c] = mean[c] / N
            for n in range(N):
                for c in range(C):
                    var[c] += (inputs[n, c] - mean[c]) * (inputs[n, c] - mean[c])
            for c in range(C):
                var[c] = var[c] / N
            for n in range(N):
                for c in range(C):
                    normalized = (inputs[n, c] - mean[c]) / sqrt(var[c] + self.epsilon)
                    value[n, c] = gamma[c] * normalized + beta[c]
            self.update_running(mean, var, running_mean, running_var, N)
        else:
            for n in range(N):
                for c in range(C):
                    normalized = (inputs[n, c] - running_mean[c]) / sqrt(running_var[c] + self.epsilon)
                    value[n, c] = gamma[c] * normalized + beta[c]


class ChannelSumsEnsemble(BatchSumEnsemble):
    """Of each channel of images: the sum of its elements (0), and their number (1)."""

    kind = "channel_sums"

    def forward(self, inputs, value):
        N, C, H, W = inputs.shape
        if self.training:
            for n in range(N):
                for c in range(C):
                    for h in range(H):
                        for w in range(W):
                            value[0, c] += inputs[n, c, h, w]
            for c in range(C):
                value[1, c] = N * H * W


class FeatureSumsEnsemble(BatchSumEnsemble):
    """The same of vectors."""

    kind = "feature_sums"

    def forward(self, inputs, value):
        N, C = inputs.shape
        if self.training:
            for n in range(N):
                for c in range(C):
                    value[0, c] += inputs[n, c]
            for c in range(C):
                value[1, c] = N


class ChannelSquaresEnsemble(BatchSumEnsemble):
    """Of each channel of images: the sum of the squares of its elements without their mean."""

    kind = "channel_squares"

    def forward(self, inputs, sums, value):
        N, C, H, W = inputs.shape
        if self.training:
            for n in range(N):
                for c in range(C):
                    mean = stop_gradient(sums[0, c] / sums[1, c])  # its slope is the sum of all that differs from it: 0
                    for h in range(H):
                        for w in range(W):
                            centred = inputs[n, c, h, w] - mean
                            value[c] += centred * centred


class FeatureSquaresEnsemble(BatchSumEnsemble):
    """The same of vectors."""

    kind = "feature_squares"

    def forward(self, inputs, sums, value):
        N, C = inputs.shape
        if self.training:
            for n in range(N):
                for c in range(C):
                    mean = stop_gradient(sums[0, c] / sums[1, c])
                    centred = inputs[n, c] - mean
                    value[c] += centred * centred


class SynchronisedBatchNormEnsemble(BatchNormFields):
    """Batch norm of images by sums over the items of all processes."""

    kind = "synchronised_batch_norm"

    def forward(self, inputs, sums, squares, value, mean, var, gamma, beta, running_mean, running_var):
        N, C, H, W = inputs.shape
        if self.training:
            for c in range(C):
                mean[c] = sums[0, c] / sums[1, c]
                var[c] = squares[c] / sums[1, c]
            for n in range(N):
                for c in range(C):
                    for h in range(H):
                        for w in range(W):
                            normalized = (inputs[n, c, h, w] - mean[c]) / sqrt(var[c] + self.epsilon)
                            value[n, c, h, w] = gamma[c] * normalized + beta[c]
            self.update_running(mean, squares, sums, running_mean, running_var)
        else:
            for n in range(N):
                for c in range(C):
                    for h in range(H):
                        for w in range(W):
                            normalized = (inputs[n, c, h, w] - running_mean[c]) / sqrt(running_var[c] + self.epsilon)
                            value[n, c, h, w] = gamma[c] * normalized + beta[c]

    def update_running(self, mean, squares, sums, running_mean, running_var):
        """Of as many elements in each channel as the sums say."""
        for c in range(mean.shape[0]):
            unbiased = squares[c] / max(sums[1, c] - 1.0, 1.0)
            running_mean[c] = (1.0 - self.momentum) * running_mean[c] + self.momentum * mean[c]
            running_var[c] = (1.0 - self.momentum) * running_var[c] + self.momentum * unbiased


class SynchronisedBatchNormVectorEnsemble(SynchronisedBatchNormEnsemble):
    """The same of vectors."""

    def forward(self, inputs, sums, squares, value, mean, var, gamma, beta, running_mean, running_var):
        N, C = inputs.shape
        if self.training:
            for c in range(C):
                mean[c] = sums[0, c] / sums[1, c]
                var[c] = squares[c] / sums[1, c]
            for n in range(N):
                for c in range(C):
                    normalized = (inputs[n, c] - mean[c]) / sqrt(var[c] + self.epsilon)
                    value[n, c] = gamma[c] * normalized + beta[c]
            self.update_running(mean, squares, sums, running_mean, running_var)
        else:
            for n in range(N):
                for c in range(C):
                    normalized = (inputs[n, c] - running_mean[c]) / sqrt(running_var[c] + self.epsilon)
                    value[n, c] = gamma[c] * normalized + beta[c]


_IMAGES = ChannelSumsEnsemble, ChannelSquaresEnsemble
_VECTORS = FeatureSumsEnsemble, FeatureSquaresEnsemble


def BatchNormLayer(
    net: Net,
    input_ensemble: Ensemble,
    epsilon: float = 1e-5,
    momentum: float = 0.1,
    synchronised: bool = False,
    *,
    name: str | None = None,
) -> Ensemble:
    """``gamma[c] · (x - mean[c]) / sqrt(var[c] + epsilon) + beta[c]``: each channel is shifted and scaled to mean 0 and
    variance 1 over the batch (in inference by running statistics), then by ``gamma`` and ``beta``.

    Fields, each of shape (channels,): ``gamma``, ``beta`` (trained, start at 1 and 0), ``mean``, ``var`` (of
    the last batch), ``running_mean``, ``running_var`` (start at 0 and 1; the variance unbiased, as PyTorch
    keeps it), which inference uses.

    Args:
        net: the net.
        input_ensemble: shape (channels, height, width) or (features,).
        epsilon: added to the variance, greater than 0.
        momentum: weight of the new batch in the running statistics, from 0 to 1.
        synchronised: whether processes that share a batch (``net.fit(…, distributed=True)``) take mean and variance
            over the items of all of them; otherwise each takes its own. The sums are layers before this one,
            ``<name>_sums`` and ``<name>_squares``; the processes wait for each other at each, forwards and backwards.
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit.

    Source: Ioffe, Szegedy, *Batch normalization*, ICML 2015, algorithms 1 and 2.
    """
    source = source_of(net, input_ensemble, "BatchNormLayer", (1, 3))
    added, weight = positive("epsilon", epsilon), check_number("momentum", momentum, least=0.0, most=1.0)
    images = source.ndim == 3
    if not flag("synchronised", synchronised):
        own = BatchNormEnsemble if images else BatchNormVectorEnsemble
        return one_to_one(net, source, own(source.shape, added, weight, name))
    shared = SynchronisedBatchNormEnsemble if images else SynchronisedBatchNormVectorEnsemble
    layer = shared(source.shape, added, weight, name)
    net.add_ensemble(layer)
    sums_of, squares_of = _IMAGES if images else _VECTORS
    sums = sums_of((2, source.shape[0]), ("of", "c"), name=f"{layer.name}_sums")
    squares = squares_of(source.shape[0], ("c",), name=f"{layer.name}_squares")
    for of_batch in (sums, squares):
        net.add_ensemble(of_batch)
    for reader in (sums, squares, layer):
        net.add_connections(source, reader)
    for reader in (squares, layer):
        net.add_connections(sums, reader, name="sums")
    net.add_connections(squares, layer, name="squares")
    return layer
