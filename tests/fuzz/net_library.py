"""The rest of the layer library in random nets: activations, normalisations, means, interpolation, and the table of all
kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from latte import (
    ELULayer,
    GELULayer,
    GlobalMeanPoolingLayer,
    GroupNormLayer,
    InstanceNormLayer,
    InterpolationLayer,
    LayerNormLayer,
    LeakyReLULayer,
    LogSoftmaxLayer,
    LRNLayer,
    MeanPoolingLayer,
    MultiplyLayer,
    Net,
    PReLULayer,
    ReLU6Layer,
    ReshapeLayer,
    ResidualSumLayer,
    SigmoidLayer,
    SiLULayer,
    SoftmaxLayer,
    TransposedConvLayer,
)
from latte.ensemble import Ensemble
from tests.fuzz.net_layers import FIRST_KINDS, Formula, Kind, moments, normalized, windows_of, with_list, with_one

Parameters = Mapping[str, Any]


# --- activations ----------------------------------------------------------------------------------------------
def _of_torch(name: str, *arguments: Any, **options: Any) -> Any:
    """A function of ``torch.nn.functional`` without parameters."""

    def formula(f: Formula, layer: str, xs: Sequence[Any], p: Parameters) -> Any:
        return getattr(f.torch.nn.functional, name)(xs[0], *arguments, **options)

    return formula


def _gelu(f: Formula, name: str, xs: Sequence[Any], p: Parameters, approximate: str = "none") -> Any:
    return f.torch.nn.functional.gelu(xs[0], approximate=approximate)


def _relu6(f: Formula, name: str, xs: Sequence[Any], p: Parameters) -> Any:
    f.kink(xs[0])
    f.kink(6 - xs[0])
    return f.torch.nn.functional.relu6(xs[0])


def _leaky_relu(f: Formula, name: str, xs: Sequence[Any], p: Parameters, negative_slope: float = 0.01) -> Any:
    f.kink(xs[0])
    return f.torch.nn.functional.leaky_relu(xs[0], negative_slope)


def _prelu(f: Formula, name: str, xs: Sequence[Any], p: Parameters) -> Any:
    f.kink(xs[0])
    return f.torch.nn.functional.prelu(xs[0], p["slope"])


# --- normalisations -------------------------------------------------------------------------------------------
def _standardized(f: Formula, x: Any, axes: Sequence[int]) -> Any:
    return normalized(f, x, *moments(f, x, axes), 1e-5)


def _layer_norm(f: Formula, name: str, xs: Sequence[Any], p: Parameters) -> Any:
    return p["gamma"] * _standardized(f, xs[0], tuple(range(1, xs[0].ndim))) + p["beta"]


def _group_norm(f: Formula, name: str, xs: Sequence[Any], p: Parameters, groups: int) -> Any:
    x = _standardized(f, xs[0].unflatten(1, (groups, -1)), (2, 3, 4)).flatten(1, 2)
    return p["gamma"].reshape(-1, 1, 1) * x + p["beta"].reshape(-1, 1, 1)


def _instance_norm(f: Formula, name: str, xs: Sequence[Any], p: Parameters) -> Any:
    return _group_norm(f, name, xs, p, xs[0].shape[1])


# --- windows, sizes and places --------------------------------------------------------------------------------
def _mean_pooling(
    f: Formula,
    name: str,
    xs: Sequence[Any],
    p: Parameters,
    clamp: bool = False,
    count_include_pad: bool = True,
    **options: Any,
) -> Any:
    windows = windows_of(f.torch, xs[0], clamp=clamp, **options)
    if clamp:
        return windows.values.mean(-1)
    total = windows.values.masked_fill(~windows.inside, 0.0).sum(-1)
    return total / (windows.padded if count_include_pad else windows.inside).sum(-1)


def _mean(f: Formula, name: str, xs: Sequence[Any], p: Parameters) -> Any:
    return xs[0].mean((2, 3), keepdim=True)


def _transposed_conv(
    f: Formula,
    name: str,
    xs: Sequence[Any],
    p: Parameters,
    num_filters: int,
    kernel: Any = 3,
    stride: Any = 1,
    pad: Any = 0,
    dilation: Any = 1,
) -> Any:
    bias = p["bias"].flatten()
    return f.torch.nn.functional.conv_transpose2d(xs[0], p["weights"], bias, stride, pad, dilation=dilation)


def _interpolated(mode: str) -> Any:
    def declare(net: Net, sources: Sequence[Ensemble]) -> Ensemble:
        return InterpolationLayer(net, sources[0], resize_factor=2.0, mode=mode, centred=True)

    return declare


def _turned_around(net: Net, sources: Sequence[Ensemble]) -> Ensemble:
    """The elements in their order, in another shape."""
    return ReshapeLayer(net, sources[0], sources[0].shape[::-1])


def _reshaped(f: Formula, name: str, xs: Sequence[Any], p: Parameters) -> Any:
    return xs[0].reshape(-1, *xs[0].shape[:0:-1])


def _residual(net: Net, sources: Sequence[Ensemble]) -> Ensemble:
    return ResidualSumLayer(net, *sources, 0.5)


def _residual_sum(f: Formula, name: str, xs: Sequence[Any], p: Parameters) -> Any:
    return xs[0] + 0.5 * xs[1]


KINDS: dict[str, Kind] = {
    **FIRST_KINDS,
    "relu6": Kind(with_one(ReLU6Layer), _relu6),
    "leaky_relu": Kind(with_one(LeakyReLULayer), _leaky_relu, exact=False),
    "prelu": Kind(with_one(PReLULayer), _prelu),
    "elu": Kind(with_one(ELULayer), _of_torch("elu"), exact=False),
    "gelu": Kind(with_one(GELULayer), _gelu, exact=False),
    "silu": Kind(with_one(SiLULayer), _of_torch("silu"), exact=False),
    "sigmoid": Kind(with_one(SigmoidLayer), _of_torch("sigmoid"), exact=False),
    "softmax": Kind(with_one(SoftmaxLayer), _of_torch("softmax", 1), exact=False),
    "log_softmax": Kind(with_one(LogSoftmaxLayer), _of_torch("log_softmax", 1), exact=False),
    "layer_norm": Kind(with_one(LayerNormLayer), _layer_norm, exact=False),
    "group_norm": Kind(with_one(GroupNormLayer), _group_norm, (3,), exact=False),
    "instance_norm": Kind(with_one(InstanceNormLayer), _instance_norm, (3,), exact=False),
    "lrn": Kind(with_one(LRNLayer), _of_torch("local_response_norm", 5), (3,), exact=False),
    "mean_pooling": Kind(with_one(MeanPoolingLayer), _mean_pooling, (3,), exact=False),
    "global_mean_pooling": Kind(with_one(GlobalMeanPoolingLayer), _mean, (3,), exact=False),
    "transposed_conv": Kind(with_one(TransposedConvLayer), _transposed_conv, (3,)),
    "nearest": Kind(_interpolated("nearest"), _of_torch("interpolate", scale_factor=2), (3,)),
    "bilinear": Kind(
        _interpolated("bilinear"), _of_torch("interpolate", scale_factor=2, mode="bilinear"), (3,), exact=False
    ),
    "multiply": Kind(with_list(MultiplyLayer), FIRST_KINDS["product"].formula, sources=2),
    "residual_sum": Kind(_residual, _residual_sum, sources=2),
    "reshape": Kind(_turned_around, _reshaped, (3,)),
}


def taps(kind: str, options: Mapping[str, Any], source: tuple[int, ...]) -> int:
    """How many products an element of a layer's value sums, at most."""
    if kind.startswith("fully_connected"):
        return prod(source)
    if "kernel" not in options or not (kind.startswith("conv") or kind == "transposed_conv"):
        return 1
    kernel = options["kernel"]
    return source[0] * (prod(kernel) if isinstance(kernel, tuple) else kernel**2)
