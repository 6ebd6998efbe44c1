"""The layers of :mod:`latte.tools.bench.shipped_layers` in PyTorch. Parameters have the names of the fields."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from latte.tools.bench.shipped_layers import GROUPS

Lines = Callable[..., Tensor]


def _convolution(groups: Callable[[Tensor], int]) -> Lines:
    def lines(x: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
        return functional.conv2d(x, weights, bias.flatten(), padding=1, groups=groups(x))

    return lines


def transposed(x: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    return functional.conv_transpose2d(x, weights, bias.flatten(), stride=2)


def linear(x: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    return functional.linear(x, weights, bias.flatten())


def batch_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    mean, var = torch.zeros_like(gamma).flatten(), torch.ones_like(gamma).flatten()
    return functional.batch_norm(x, mean, var, gamma.flatten(), beta.flatten(), training=True)


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return functional.layer_norm(x, gamma.shape, gamma, beta)


def group_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return functional.group_norm(x, GROUPS, gamma, beta)


def instance_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return functional.instance_norm(x, None, None, gamma, beta)


def _recurrent(run: Callable[..., tuple[Tensor, ...]], states: int) -> Lines:
    def lines(x: Tensor, weights_ih: Tensor, weights_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor) -> Tensor:
        state = x.new_zeros(1, len(x), weights_hh.shape[1])
        start = (state,) * states if states > 1 else state
        parameters = [weights_ih, weights_hh, bias_ih, bias_hh]
        return run(x, start, parameters, True, 1, 0.0, True, False, True)[0]

    return lines


def attention(x: Tensor) -> Tensor:
    heads = x.unflatten(2, (2, -1)).transpose(1, 2)
    return functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)


def softmax_loss(x: Tensor) -> Tensor:
    return functional.cross_entropy(x, torch.zeros(len(x), dtype=torch.int64)).reshape(1)


def _loss(function: Callable[[Tensor, Tensor], Tensor]) -> Lines:
    return lambda x: function(x, torch.zeros_like(x)).reshape(1)


SHIPPED_LINES: dict[str, Lines] = {
    "conv": _convolution(lambda x: 1),
    "conv-grouped": _convolution(lambda x: GROUPS),
    "conv-depthwise": _convolution(lambda x: x.shape[1]),
    "conv-transposed": transposed,
    "fully-connected": linear,
    "positionwise-linear": linear,
    "max-pool": lambda x: functional.max_pool2d(x, 2),
    "mean-pool": lambda x: functional.avg_pool2d(x, 2),
    "global-mean-pool": lambda x: functional.adaptive_avg_pool2d(x, 1),
    "relu": functional.relu,
    "relu6": functional.relu6,
    "leaky-relu": functional.leaky_relu,
    "prelu": lambda x, slope: functional.prelu(x, slope.flatten()),
    "elu": functional.elu,
    "gelu": functional.gelu,
    "gelu-tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softmax": lambda x: functional.softmax(x, 1),
    "log-softmax": lambda x: functional.log_softmax(x, 1),
    "batch-norm": batch_norm,
    "layer-norm": layer_norm,
    "layer-norm-sequence": layer_norm,
    "group-norm": group_norm,
    "instance-norm": instance_norm,
    "lrn": lambda x: functional.local_response_norm(x, 5),
    "dropout": lambda x: functional.dropout(x, 0.5, training=True),
    "concat": lambda x: torch.cat([x, x], 1),
    "split": lambda x: x[:, : x.shape[1] // 2].contiguous(),
    "add": lambda x: x + x,
    "multiply": lambda x: x * x,
    "residual": lambda x: x + 0.5 * x,
    "nearest": lambda x: functional.interpolate(x, scale_factor=2),
    "bilinear": lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
    "padding": lambda x: functional.pad(x, (1, 1, 1, 1)),
    "flatten": lambda x: x.flatten(1).clone(),
    "reshape": lambda x: x.reshape(len(x), *x.shape[:0:-1]).clone(),
    "permute": lambda x: x.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format),
    "embedding": lambda x, weights: functional.embedding(x, weights),
    "rnn": _recurrent(torch.rnn_tanh, 1),
    "lstm": _recurrent(torch.lstm, 2),
    "gru": _recurrent(torch.gru, 1),
    "attention": attention,
    "softmax-loss": softmax_loss,
    "squared-loss": _loss(functional.mse_loss),
    "l1-loss": _loss(functional.l1_loss),
    "huber-loss": _loss(functional.huber_loss),
    "binary-loss": _loss(functional.binary_cross_entropy_with_logits),
}
"""Name of a layer → its lines. Where PyTorch would return a view, a copy is made, as the layer's value is stored."""
