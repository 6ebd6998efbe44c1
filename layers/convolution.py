"""Convolutions (cross-correlations, as in all frameworks)."""

from __future__ import annotations

from collections.abc import Sequence

from latte.ensemble import Ensemble
from latte.errors import DeclarationError
from latte.layers.arguments import count, own_or_shared, pair, source_of
from latte.model.sharing import Shared
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
    groups: int = 1,
    weights: Shared | None = None,
    bias: Shared | None = None,
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
        groups: into how many the channels and the filters are divided; each filter reads the channels of its group
            alone, and weights have shape ``(num_filters, channels / groups, kernel, kernel)``. As many groups as
            channels are a depthwise convolution.
        weights, bias: parameters of other layers to share (``other.weights``), of these shapes; by default its own.
        name: of the layer, unique in the net; by default its kind and a number.

    Returns:
        An ensemble of shape (num_filters, height, width), extents ``(in + 2·pad - extent of window) // stride
        + 1``.

    Raises:
        DeclarationError: for arguments that do not fit.
    """
    source = source_of(net, input_ensemble, "ConvLayer", 3)
    filters = count("num_filters", num_filters)
    kernel_y, kernel_x = pair("kernel", kernel, 1)
    channels = _channels_of_group(source, filters, groups)
    taps = Param("k", shape=(channels, kernel_y, kernel_x), init=uniform_fan_in)
    w = own_or_shared("weights", weights, taps, filters)
    b = own_or_shared("bias", bias, Param("k", shape=(1,), init=zeros), filters)

    class ConvNeuron(Neuron):
        weights = w
        bias = b

        def forward(self) -> None:
            self.value = self.bias[0]
            for c, ky, kx in eachindex(self.inputs):
                self.value += self.weights[c, ky, kx] * self.inputs[c, ky, kx]

    window = _Window((kernel_y, kernel_x), stride, pad, dilation)
    return _convolution(net, source, ConvNeuron, filters, channels, window, name)


def ConvLayerNoBias(
    net: Net,
    input_ensemble: Ensemble,
    num_filters: int = 0,
    kernel: Pair = 3,
    stride: Pair = 1,
    pad: Pair = 1,
    dilation: Pair = 1,
    *,
    groups: int = 1,
    weights: Shared | None = None,
    name: str | None = None,
) -> Ensemble:
    """Convolution without bias; arguments, result and errors as :func:`ConvLayer`'s."""
    source = source_of(net, input_ensemble, "ConvLayerNoBias", 3)
    filters = count("num_filters", num_filters)
    kernel_y, kernel_x = pair("kernel", kernel, 1)
    channels = _channels_of_group(source, filters, groups)
    taps = Param("k", shape=(channels, kernel_y, kernel_x), init=uniform_fan_in)
    w = own_or_shared("weights", weights, taps, filters)

    class ConvNeuron(Neuron):
        weights = w

        def forward(self) -> None:
            self.value = 0.0
            for c, ky, kx in eachindex(self.inputs):
                self.value += self.weights[c, ky, kx] * self.inputs[c, ky, kx]

    window = _Window((kernel_y, kernel_x), stride, pad, dilation)
    return _convolution(net, source, ConvNeuron, filters, channels, window, name)


def _channels_of_group(source: Ensemble, filters: int, groups: int) -> int:
    """How many channels a filter reads.

    Raises:
        DeclarationError: channels or filters cannot be divided into as many groups.
    """
    channels = source.shape[0]
    if count("groups", groups) > 1 and (channels % groups or filters % groups):
        raise DeclarationError(
            f"{channels} channels and {filters} filters cannot be divided into {groups} groups",
            location=user_location(),
            way_out="groups must divide both",
        )
    return channels // int(groups)


class _Window:
    """What a filter covers, in y and x: checked numbers.

    Args:
        kernel, stride, pad, dilation: as given to the layer.
    """

    def __init__(self, kernel: Pair, stride: Pair, pad: Pair, dilation: Pair):
        self.kernel, self.stride = pair("kernel", kernel, 1), pair("stride", stride, 1)
        self.pad, self.dilation = pair("pad", pad, 0), pair("dilation", dilation, 1)
        self.extents = [1 + (k - 1) * d for k, d in zip(self.kernel, self.dilation, strict=True)]


def _convolution(
    net: Net, source: Ensemble, neuron: type[Neuron], filters: int, channels: int, window: _Window, name: str | None
) -> Ensemble:
    """An ensemble of ``neuron`` over the windows of ``source``, each of ``channels`` channels."""
    (step_y, step_x), (dilation_y, dilation_x) = window.stride, window.dilation
    high, wide = window.extents
    for axis, extent, covered, around in zip("yx", source.shape[1:], window.extents, window.pad, strict=True):
        if covered > extent + 2 * around:
            raise DeclarationError(
                f"the kernel covers {covered} elements in {axis}, the padded input of {source!r} has only"
                f" {extent + 2 * around}",
                location=user_location(),
                way_out="use a smaller kernel or dilation, or more padding",
            )
    height, width = (
        (extent + 2 * around - covered) // step + 1
        for extent, around, covered, step in zip(
            source.shape[1:], window.pad, window.extents, window.stride, strict=True
        )
    )
    groups = source.shape[0] // channels
    per_group = filters // groups

    def mapping(k, y, x):
        first, top, left = k // per_group * channels, y * step_y, x * step_x
        return (
            range(first, first + channels),
            range(top, top + high, dilation_y),
            range(left, left + wide, dilation_x),
        )

    # Filters of groups have no register tile in common: the recipe for convolutions is not for them.
    kind = "conv" if groups == 1 else "grouped_conv"
    ensemble = Ensemble(neuron, (filters, height, width), ("k", "y", "x"), kind=kind, name=name)
    net.add_ensemble(ensemble)
    net.add_connections(source, ensemble, mapping, padding=(0, *window.pad))
    return ensemble
