"""The lines of :mod:`latte.tools.bench.own_layers` in PyTorch. Parameters have the names of the fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from latte.tools.bench.own_layers import EPSILON, GROUPS


class Lines(nn.Module):
    """A layer with parameters of these shapes; ``lines`` computes it."""

    def __init__(self, lines: Callable[..., Tensor], **shapes: Sequence[int]):
        super().__init__()
        self.lines = lines
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(tuple(shape))))

    def forward(self, x: Tensor) -> Tensor:
        return self.lines(x, **dict(self.named_parameters()))


def _per_channel(parameter: Tensor) -> Tensor:
    return parameter.reshape(-1, 1, 1)


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def prelu(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x > 0.0, x, _per_channel(slope) * x)


def layer_norm(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    mean = x.mean((1, 2, 3), keepdim=True)
    var = ((x - mean) ** 2).mean((1, 2, 3), keepdim=True)
    return gain * (x - mean) / torch.sqrt(var + EPSILON) + shift


def group_norm(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    n, c, h, w = x.shape
    groups = x.reshape(n, GROUPS, c // GROUPS, h, w)
    mean = groups.mean((2, 3, 4), keepdim=True)
    var = ((groups - mean) ** 2).mean((2, 3, 4), keepdim=True)
    normal = ((groups - mean) / torch.sqrt(var + EPSILON)).reshape(x.shape)
    return _per_channel(gain) * normal + _per_channel(shift)


def rms_norm(x: Tensor, gain: Tensor) -> Tensor:
    scale = 1.0 / torch.sqrt((x * x).mean((1, 2, 3), keepdim=True) + EPSILON)
    return _per_channel(gain) * scale * x


def l2(x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).sum(1, keepdim=True) + EPSILON)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, 1)


def squeeze(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    mean = x.mean((2, 3), keepdim=True)
    return x * torch.sigmoid(_per_channel(weight) * mean + _per_channel(bias))


def mean_pool(x: Tensor) -> Tensor:
    return functional.avg_pool2d(x, 2)


def pixel_shuffle(x: Tensor) -> Tensor:
    return functional.pixel_shuffle(x, 2)


def depthwise(x: Tensor, weights: Tensor) -> Tensor:
    return functional.conv2d(x, weights, padding=1, groups=weights.shape[0])


def grouped(x: Tensor, weights: Tensor) -> Tensor:
    return functional.conv2d(x, weights, padding=1, groups=GROUPS)


def transposed(x: Tensor, weights: Tensor) -> Tensor:
    return functional.conv_transpose2d(x, weights.transpose(0, 1), stride=2)


def attention(x: Tensor) -> Tensor:
    return x @ x.transpose(1, 2) @ x / x.shape[1]


LINES: dict[str, Callable[..., Tensor]] = {
    "gelu": gelu,
    "prelu": prelu,
    "layer-norm": layer_norm,
    "group-norm": group_norm,
    "rms-norm": rms_norm,
    "l2": l2,
    "softmax": softmax,
    "squeeze": squeeze,
    "mean-pool": mean_pool,
    "pixel-shuffle": pixel_shuffle,
    "depthwise": depthwise,
    "grouped": grouped,
    "transposed": transposed,
    "attention": attention,
}
"""Name of a layer → its lines."""
