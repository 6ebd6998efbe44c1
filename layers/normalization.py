"""Normalization layers, written as the plain loops of their definitions; the compiler reorders and fuses
them."""

from __future__ import annotations

from latte.ensemble import Ensemble
from latte.layers.arguments import one_to_one, positive, source_of
from latte.model.checks import check_number
from latte.net import Net
from latte.neuron import Field, Param, State, ones, sqrt, zeros


class BatchNormEnsemble(Ensemble):
    """Batch norm of images (batch, channels, height, width)."""

    kind = "batch_norm"
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


def BatchNormLayer(
    net: Net, input_ensemble: Ensemble, epsilon: float = 1e-5, momentum: float = 0.1, *, name: str | None = None
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
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit.

    Source: Ioffe, Szegedy, *Batch normalization*, ICML 2015, algorithms 1 and 2.
    """
    source = source_of(net, input_ensemble, "BatchNormLayer", (1, 3))
    added, weight = positive("epsilon", epsilon), check_number("momentum", momentum, least=0.0, most=1.0)
    kind = BatchNormEnsemble if source.ndim == 3 else BatchNormVectorEnsemble
    return one_to_one(net, source, kind(source.shape, added, weight, name))
