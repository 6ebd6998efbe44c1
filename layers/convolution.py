"""Convolutions (cross-correlations, as in all frameworks)."""

from __future__ import annotations

from collections.abc import Sequence

from latte.ensemble import Ensemble
from latte.errors import DeclarationError
from latte.layers.arguments import count, pair, source_of
from latte.model.source_location import user_location
from latte.net import Net
from latte.neuron import Neuron, Param, eachindex, uniform_fan_in, zeros

Pair = int | Sequence[int]


def ConvLayer(
    net: Net,
    input_ensemble: Ensemble,
    num_filters: int = 0,
    kernel: Pair = 3,
    stride: Pair = 1,
    pad: Pair = 1,
    dilation: Pair = 1,
    *,
    name: str | None = None,
) -> Ensemble:
    """Convolution with bias.

    ``value[n, k, y, x] = bias[k, 0] + Σ weights[k, c, ky, kx] · inputs[n, c, y·stride - pad + ky·dilation,
    …]``, zeros outside the source. Weights have shape ``(num_filters, channels, kernel, kernel)`` and start
    uniform in ±sqrt(3 / fan_in); the bias has shape ``(num_filters, 1)`` and starts at zero.

    Args:
        net: the net.
        input_ensemble: shape (channels, height, width).
        num_filters: number of output channels.
        kernel: extent of the window, one integer or (y, x), as the three below.
        stride: distance between windows.
        pad: zeros around the source.
        dilation: distance between the elements of a window.
        name: of the layer, unique in the net; by default its kind and a number.

    Returns:
        An ensemble of shape (num_filters, height, width), extents ``(in + 2·pad - extent of window) // stride
        + 1``.

    Raises:
        DeclarationError: for arguments that do not fit.
    """
    source = source_of(net, input_ensemble, "ConvLayer", 3)
    filters = _check_filters(num_filters)
    kernel_y, kernel_x = pair("kernel", kernel, 1)

    class ConvNeuron(Neuron):
        weights = Param("k", shape=(source.shape[0], kernel_y, kernel_x), init=uniform_fan_in)
        bias = Param("k", shape=(1,), init=zeros)

        def forward(self) -> None:
            self.value = self.bias[0]
            for c, ky, kx in eachindex(self.inputs):
                self.value += self.weights[c, ky, kx] * self.inputs[c, ky, kx]

    return _convolution(net, source, ConvNeuron, filters, (kernel_y, kernel_x), stride, pad, dilation, name)


def ConvLayerNoBias(
    net: Net,
    input_ensemble: Ensemble,
    num_filters: int = 0,
    kernel: Pair = 3,
    stride: Pair = 1,
    pad: Pair = 1,
    dilation: Pair = 1,
    *,
    name: str | None = None,
) -> Ensemble:
    """Convolution without bias; arguments, result and errors as :func:`ConvLayer`'s."""
    source = source_of(net, input_ensemble, "ConvLayerNoBias", 3)
    filters = _check_filters(num_filters)
    kernel_y, kernel_x = pair("kernel", kernel, 1)

    class ConvNeuron(Neuron):
        weights = Param("k", shape=(source.shape[0], kernel_y, kernel_x), init=uniform_fan_in)

        def forward(self) -> None:
            self.value = 0.0
            for c, ky, kx in eachindex(self.inputs):
                self.value += self.weights[c, ky, kx] * self.inputs[c, ky, kx]

    return _convolution(net, source, ConvNeuron, filters, (kernel_y, kernel_x), stride, pad, dilation, name)


def _check_filters(num_filters: int) -> int:
    return count("num_filters", num_filters)


def _convolution(
    net: Net,
    source: Ensemble,
    neuron: type[Neuron],
    filters: int,
    kernel: tuple[int, int],
    stride: Pair,
    pad: Pair,
    dilation: Pair,
    name: str | None,
) -> Ensemble:
    """An ensemble of ``neuron`` over the windows of ``source``."""
    strides, pads, dilations = pair("stride", stride, 1), pair("pad", pad, 0), pair("dilation", dilation, 1)
    channels, *extents = source.shape
    window_y, window_x = (1 + (k - 1) * d for k, d in zip(kernel, dilations, strict=True))
    for axis, extent, window, around in zip("yx", extents, (window_y, window_x), pads, strict=True):
        if window > extent + 2 * around:
            raise DeclarationError(
                f"the kernel covers {window} elements in {axis}, the padded input of {source!r} has only"
                f" {extent + 2 * around}",
                location=user_location(),
                way_out="use a smaller kernel or dilation, or more padding",
            )
    height, width = (
        (extent + 2 * around - window) // step + 1
        for extent, around, window, step in zip(extents, pads, (window_y, window_x), strides, strict=True)
    )

    def mapping(k, y, x):
        top, left = y * strides[0], x * strides[1]
        return (
            range(channels),
            range(top, top + window_y, dilations[0]),
            range(left, left + window_x, dilations[1]),
        )

    ensemble = Ensemble(neuron, (filters, height, width), ("k", "y", "x"), kind="conv", name=name)
    net.add_ensemble(ensemble)
    net.add_connections(source, ensemble, mapping, padding=(0, *pads))
    return ensemble
