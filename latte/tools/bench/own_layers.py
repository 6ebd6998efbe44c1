"""Layers as a user would declare them: no recipe, no schedule, no derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from latte.ensemble import ActivationEnsemble, Ensemble
from latte.net import Net
from latte.neuron import Field, Neuron, Param, constant, eachindex, exp, normal_fan_in, ones, sqrt, tanh, zeros
from latte.tools.bench.tried import Tried

EPSILON = 1e-5
GROUPS = 8
"""Groups of channels, of group norm and of the grouped convolution."""


# --- element by element -----------------------------------------------------------------------------------
class GELUNeuron(Neuron):
    """``0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))``."""

    def forward(self):
        t = tanh(0.7978845608 * (self.input + 0.044715 * self.input * self.input * self.input))
        self.value = 0.5 * self.input * (1.0 + t)


class PReLUNeuron(Neuron):
    """``x``, or ``slope · x`` where it is negative; a slope for each channel."""

    slope = Param("c", init=constant(0.25))

    def forward(self):
        self.value = self.input if self.input > 0.0 else self.slope * self.input


# --- windows ----------------------------------------------------------------------------------------------
class DepthwiseNeuron(Neuron):
    """A 3 × 3 convolution of each channel by itself."""

    weights = Param("c", shape=(1, 3, 3), init=normal_fan_in)

    def forward(self):
        self.value = 0.0
        for i in eachindex(self.inputs):
            self.value += self.weights[i] * self.inputs[i]


class MeanNeuron(Neuron):
    """The mean of 2 × 2 elements."""

    def forward(self):
        self.value = 0.0
        for i, j, k in eachindex(self.inputs):
            self.value += self.inputs[i, j, k]
        self.value = self.value / 4.0


class CopyNeuron(Neuron):
    """The one element that the mapping names."""

    def forward(self):
        self.value = self.inputs[0, 0, 0]


class TransposedEnsemble(Ensemble):
    """A 2 × 2 convolution of stride 2, transposed: each element of the source adds to four of the value."""

    def forward(self, inputs, value, weights):
        N, C, H, W = inputs.shape
        K = weights.shape[0]
        for n in range(N):
            for k in range(K):
                for c in range(C):
                    for y in range(H):
                        for x in range(W):
                            for i in range(2):
                                for j in range(2):
                                    value[n, k, 2 * y + i, 2 * x + j] += weights[k, c, i, j] * inputs[n, c, y, x]


# --- over the channels of a pixel, the pixels of a channel, an image ---------------------------------------
class SoftmaxEnsemble(Ensemble):
    """``exp(x)`` as a share of the sum over the channels of a pixel."""

    most = Field("n", "h", "w")
    total = Field("n", "h", "w")

    def forward(self, inputs, value, most, total):
        N, C, H, W = inputs.shape
        for n in range(N):
            for h in range(H):
                for w in range(W):
                    most[n, h, w] = inputs[n, 0, h, w]
                    for c in range(C):
                        most[n, h, w] = max(most[n, h, w], inputs[n, c, h, w])
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        value[n, c, h, w] = exp(inputs[n, c, h, w] - most[n, h, w])
                        total[n, h, w] += value[n, c, h, w]
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        value[n, c, h, w] = value[n, c, h, w] / total[n, h, w]


class L2Ensemble(Ensemble):
    """Each pixel's channels as a vector of length 1."""

    squares = Field("n", "h", "w")

    def forward(self, inputs, value, squares):
        N, C, H, W = inputs.shape
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        squares[n, h, w] += inputs[n, c, h, w] * inputs[n, c, h, w]
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        value[n, c, h, w] = inputs[n, c, h, w] / sqrt(squares[n, h, w] + EPSILON)


class SqueezeEnsemble(Ensemble):
    """Each channel times a gate that depends on its mean: ``x · σ(weight · mean + bias)``."""

    mean = Field("n", "c")
    weight = Param("c", init=ones)
    bias = Param("c", init=zeros)

    def forward(self, inputs, value, mean, weight, bias):
        N, C, H, W = inputs.shape
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        mean[n, c] += inputs[n, c, h, w]
                mean[n, c] = mean[n, c] / (H * W)
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        value[n, c, h, w] = inputs[n, c, h, w] / (1.0 + exp(-(weight[c] * mean[n, c] + bias[c])))


class RMSNormEnsemble(Ensemble):
    """Each image divided by its root mean square; a gain for each channel."""

    scale = Field("n")
    gain = Param("c", init=ones)

    def forward(self, inputs, value, scale, gain):
        N, C, H, W = inputs.shape
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        scale[n] += inputs[n, c, h, w] * inputs[n, c, h, w]
        for n in range(N):
            scale[n] = 1.0 / sqrt(scale[n] / (C * H * W) + EPSILON)
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        value[n, c, h, w] = gain[c] * scale[n] * inputs[n, c, h, w]


class LayerNormEnsemble(Ensemble):
    """Each image with mean 0 and variance 1; a gain and a shift for each element."""

    mean = Field("n")
    var = Field("n")
    gain = Param("c", "h", "w", init=ones)
    shift = Param("c", "h", "w", init=zeros)

    def forward(self, inputs, value, mean, var, gain, shift):
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
                        var[n] += (inputs[n, c, h, w] - mean[n]) * (inputs[n, c, h, w] - mean[n])
        for n in range(N):
            var[n] = var[n] / (C * H * W)
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        normal = (inputs[n, c, h, w] - mean[n]) / sqrt(var[n] + EPSILON)
                        value[n, c, h, w] = gain[c, h, w] * normal + shift[c, h, w]


class GroupNormEnsemble(Ensemble):
    """Each group of an image's channels with mean 0 and variance 1; a gain and a shift for each channel."""

    mean = Field("n", shape=(GROUPS,))
    var = Field("n", shape=(GROUPS,))
    gain = Param("c", init=ones)
    shift = Param("c", init=zeros)

    def forward(self, inputs, value, mean, var, gain, shift):
        N, C, H, W = inputs.shape
        S = C // GROUPS
        for n in range(N):
            for g in range(GROUPS):
                for c in range(S):
                    for h in range(H):
                        for w in range(W):
                            mean[n, g] += inputs[n, g * S + c, h, w]
        for n in range(N):
            for g in range(GROUPS):
                mean[n, g] = mean[n, g] / (S * H * W)
        for n in range(N):
            for g in range(GROUPS):
                for c in range(S):
                    for h in range(H):
                        for w in range(W):
                            d = inputs[n, g * S + c, h, w] - mean[n, g]
                            var[n, g] += d * d
        for n in range(N):
            for g in range(GROUPS):
                var[n, g] = var[n, g] / (S * H * W)
        for n in range(N):
            for g in range(GROUPS):
                for c in range(S):
                    for h in range(H):
                        for w in range(W):
                            normal = (inputs[n, g * S + c, h, w] - mean[n, g]) / sqrt(var[n, g] + EPSILON)
                            value[n, g * S + c, h, w] = gain[g * S + c] * normal + shift[g * S + c]


class AttentionEnsemble(Ensemble):
    """Attention's two products: ``(x xᵀ) x`` of the positions of a sequence."""

    def forward(self, inputs, value, scores):
        N, T, D = inputs.shape
        for n in range(N):
            for i in range(T):
                for j in range(T):
                    for d in range(D):
                        scores[n, i, j] += inputs[n, i, d] * inputs[n, j, d]
        for n in range(N):
            for i in range(T):
                for j in range(T):
                    for d in range(D):
                        value[n, i, d] += scores[n, i, j] * inputs[n, j, d] / T


# --- the same in PyTorch ---
def _per_channel(parameter: Any) -> Any:
    return parameter.reshape(-1, 1, 1)


def gelu_in_torch(torch: Any, x: Any) -> Any:
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def prelu_in_torch(torch: Any, x: Any, slope: Any) -> Any:
    return torch.where(x > 0.0, x, _per_channel(slope) * x)


def layer_norm_in_torch(torch: Any, x: Any, gain: Any, shift: Any) -> Any:
    mean = x.mean((1, 2, 3), keepdim=True)
    var = ((x - mean) ** 2).mean((1, 2, 3), keepdim=True)
    return gain * (x - mean) / torch.sqrt(var + EPSILON) + shift


def group_norm_in_torch(torch: Any, x: Any, gain: Any, shift: Any) -> Any:
    n, c, h, w = x.shape
    groups = x.reshape(n, GROUPS, c // GROUPS, h, w)
    mean = groups.mean((2, 3, 4), keepdim=True)
    var = ((groups - mean) ** 2).mean((2, 3, 4), keepdim=True)
    normal = ((groups - mean) / torch.sqrt(var + EPSILON)).reshape(x.shape)
    return _per_channel(gain) * normal + _per_channel(shift)


def rms_norm_in_torch(torch: Any, x: Any, gain: Any) -> Any:
    scale = 1.0 / torch.sqrt((x * x).mean((1, 2, 3), keepdim=True) + EPSILON)
    return _per_channel(gain) * scale * x


def squeeze_in_torch(torch: Any, x: Any, weight: Any, bias: Any) -> Any:
    mean = x.mean((2, 3), keepdim=True)
    return x * torch.sigmoid(_per_channel(weight) * mean + _per_channel(bias))


def depthwise_in_torch(torch: Any, x: Any, weights: Any) -> Any:
    return torch.nn.functional.conv2d(x, weights, padding=1, groups=weights.shape[0])


def grouped_in_torch(torch: Any, x: Any, weights: Any) -> Any:
    return torch.nn.functional.conv2d(x, weights, padding=1, groups=GROUPS)


def transposed_in_torch(torch: Any, x: Any, weights: Any) -> Any:
    return torch.nn.functional.conv_transpose2d(x, weights.transpose(0, 1), stride=2)


def l2_in_torch(torch: Any, x: Any) -> Any:
    return x / torch.sqrt((x * x).sum(1, keepdim=True) + EPSILON)


def pixel_shuffle_in_torch(torch: Any, x: Any) -> Any:
    return torch.nn.functional.pixel_shuffle(x, 2)


def attention_in_torch(torch: Any, x: Any) -> Any:
    return x @ x.transpose(1, 2) @ x / x.shape[1]


# --- constructors -----------------------------------------------------------------------------------------
Declare = Callable[[Net, Ensemble], Ensemble]


def _elements(neuron: type[Neuron]) -> Declare:
    def declare(net: Net, source: Ensemble) -> Ensemble:
        ensemble = net.add_ensemble(ActivationEnsemble(neuron, source.shape, dims=("c", "y", "x")))
        net.add_one_to_one_connections(source, ensemble)
        return ensemble

    return declare


def _arrays(kind: type[Ensemble]) -> Declare:
    def declare(net: Net, source: Ensemble) -> Ensemble:
        ensemble = net.add_ensemble(kind(shape=source.shape, dims=("c", "h", "w")))
        net.add_one_to_one_connections(source, ensemble)
        return ensemble

    return declare


def _depthwise(net: Net, source: Ensemble) -> Ensemble:
    def window(c, y, x):
        return range(c, c + 1), range(y, y + 3), range(x, x + 3)

    ensemble = net.add_ensemble(Ensemble(DepthwiseNeuron, source.shape, dims=("c", "y", "x")))
    net.add_connections(source, ensemble, window, padding=(0, 1, 1))
    return ensemble


def _grouped(net: Net, source: Ensemble) -> Ensemble:
    size = source.shape[0] // GROUPS

    class GroupedNeuron(DepthwiseNeuron):
        """A 3 × 3 convolution of each group of channels by itself."""

        weights = Param("c", shape=(size, 3, 3), init=normal_fan_in)

    def window(c, y, x):
        return range(c // size * size, c // size * size + size), range(y, y + 3), range(x, x + 3)

    ensemble = net.add_ensemble(Ensemble(GroupedNeuron, source.shape, dims=("c", "y", "x")))
    net.add_connections(source, ensemble, window, padding=(0, 1, 1))
    return ensemble


def _mean_pool(net: Net, source: Ensemble) -> Ensemble:
    def window(c, y, x):
        return range(c, c + 1), range(2 * y, 2 * y + 2), range(2 * x, 2 * x + 2)

    channels, height, width = source.shape
    ensemble = net.add_ensemble(Ensemble(MeanNeuron, (channels, height // 2, width // 2), dims=("c", "y", "x")))
    net.add_connections(source, ensemble, window)
    return ensemble


def _pixel_shuffle(net: Net, source: Ensemble) -> Ensemble:
    def element(c, y, x):
        channel = 4 * c + 2 * (y % 2) + x % 2
        return range(channel, channel + 1), range(y // 2, y // 2 + 1), range(x // 2, x // 2 + 1)

    channels, height, width = source.shape
    ensemble = net.add_ensemble(Ensemble(CopyNeuron, (channels // 4, height * 2, width * 2), dims=("c", "y", "x")))
    net.add_connections(source, ensemble, element)
    return ensemble


def _transposed(net: Net, source: Ensemble) -> Ensemble:
    channels, height, width = source.shape

    class Transposed(TransposedEnsemble):
        weights = Param("k", shape=(channels, 2, 2), init=normal_fan_in)

    def element(k, y, x):
        return range(channels), range(y // 2, y // 2 + 1), range(x // 2, x // 2 + 1)

    ensemble = net.add_ensemble(Transposed(shape=(channels, height * 2, width * 2), dims=("k", "y", "x")))
    net.add_connections(source, ensemble, element)
    return ensemble


def _attention(net: Net, source: Ensemble) -> Ensemble:
    positions, _ = source.shape

    class Attention(AttentionEnsemble):
        scores = Field("n", shape=(positions, positions))

    ensemble = net.add_ensemble(Attention(shape=source.shape, dims=("t", "d")))
    net.add_one_to_one_connections(source, ensemble)
    return ensemble


OWN: dict[str, Tried] = {
    "gelu": Tried(declare=_elements(GELUNeuron), computed=gelu_in_torch),
    "prelu": Tried(declare=_elements(PReLUNeuron), computed=prelu_in_torch),
    "layer-norm": Tried(declare=_arrays(LayerNormEnsemble), computed=layer_norm_in_torch),
    "group-norm": Tried(declare=_arrays(GroupNormEnsemble), computed=group_norm_in_torch, channels=GROUPS),
    "rms-norm": Tried(declare=_arrays(RMSNormEnsemble), computed=rms_norm_in_torch),
    "l2": Tried(declare=_arrays(L2Ensemble), computed=l2_in_torch),
    "softmax": Tried(declare=_arrays(SoftmaxEnsemble), computed=lambda torch, x: torch.softmax(x, 1)),
    "squeeze": Tried(declare=_arrays(SqueezeEnsemble), computed=squeeze_in_torch),
    "mean-pool": Tried(declare=_mean_pool, computed=lambda torch, x: torch.nn.functional.avg_pool2d(x, 2), extent=2),
    "pixel-shuffle": Tried(declare=_pixel_shuffle, computed=pixel_shuffle_in_torch, channels=4),
    "depthwise": Tried(declare=_depthwise, computed=depthwise_in_torch),
    "grouped": Tried(declare=_grouped, computed=grouped_in_torch, channels=GROUPS),
    "transposed": Tried(declare=_transposed, computed=transposed_in_torch),
    "attention": Tried(declare=_attention, computed=attention_in_torch, source="sequence"),
}
"""Name → layer."""
