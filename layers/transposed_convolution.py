"""Transposed convolutions: a convolution's gradient of its inputs, as a layer."""

from __future__ import annotations

from collections.abc import Sequence

from latte.ensemble import Ensemble
from latte.errors import DeclarationError
from latte.layers.arguments import count, pair, source_of
from latte.model.source_location import user_location
from latte.net import Net
from latte.neuron import Param, uniform_fan_in, zeros

Pair = int | Sequence[int]


class TransposedConvEnsemble(Ensemble):
    """Each element of the source adds its multiple of a window to the result.

    Args:
        channels: of the source.
        shape: of the result.
        kernel, stride, pad, dilation: in y and x.
        name: of the layer.
    """

    kind = "transposed_conv"
    bias = Param("k", shape=(1,), init=zeros)

    def __init__(
        self,
        channels: int,
        shape: tuple[int, int, int],
        kernel: tuple[int, int],
        stride: tuple[int, int],
        pad: tuple[int, int],
        dilation: tuple[int, int],
        name: str | None,
    ):
        super().__init__(shape=shape, dims=("k", "y", "x"), name=name)
        self.stride, self.pads, self.dilation = stride, pad, dilation
        # An element of the result meets every stride-th element of the kernel.
        terms = max(1, channels * kernel[0] * kernel[1] // (stride[0] * stride[1]))
        self.add_field("weights", Param(shape=(channels, shape[0], *kernel), init=uniform_fan_in, fan_in=terms))

    def forward(self, inputs, value, weights, bias):
        N, K, Y, X = value.shape
        C, H, W = inputs.shape[1], inputs.shape[2], inputs.shape[3]
        rows, columns = weights.shape[2], weights.shape[3]
        SY, SX = self.stride
        PY, PX = self.pads
        DY, DX = self.dilation
        for n in range(N):
            for k in range(K):
                for y in range(Y):
                    for x in range(X):
                        value[n, k, y, x] = bias[k, 0]
        for n in range(N):
            for k in range(K):
                for c in range(C):
                    for h in range(H):
                        for w in range(W):
                            for ky in range(rows):
                                for kx in range(columns):
                                    if 0 <= h * SY + ky * DY - PY < Y and 0 <= w * SX + kx * DX - PX < X:
                                        value[n, k, h * SY + ky * DY - PY, w * SX + kx * DX - PX] += (
                                            weights[c, k, ky, kx] * inputs[n, c, h, w]
                                        )


def TransposedConvLayer(
    net: Net,
    input_ensemble: Ensemble,
    num_filters: int = 0,
    kernel: Pair = 3,
    stride: Pair = 1,
    pad: Pair = 0,
    dilation: Pair = 1,
    *,
    output_padding: Pair = 0,
    name: str | None = None,
) -> Ensemble:
    """Transposed convolution: each pixel of the source is spread over a window.

    ``value[n, k, y·stride - pad + ky·dilation, …] = bias[k, 0] + Σ weights[c, k, ky, kx] · inputs[n, c, y, x]``.

    Weights have shape ``(channels, num_filters, kernel, kernel)``, as PyTorch's ``ConvTranspose2d`` has them, and start
    uniform with variance 1 / (terms of an element); the bias has shape ``(num_filters, 1)`` and starts at zero.

    Args:
        net: the net.
        input_ensemble: shape (channels, height, width).
        num_filters: number of output channels.
        kernel: extent of the window, one integer or (y, x), as the four below.
        stride: distance between the windows of neighbouring pixels.
        pad: rows and columns that are cut off around the result.
        dilation: distance between the elements of a window.
        output_padding: rows below and columns right of the result that are not cut off, or are added; less than the
            stride or the dilation.
        name: of the layer, unique in the net; by default its kind and a number.

    Returns:
        An ensemble of shape (num_filters, height, width), extents ``(in - 1)·stride - 2·pad + (kernel - 1)·dilation + 1
        + output_padding``.

    Raises:
        DeclarationError: for arguments that do not fit.

    Source: Zeiler et al., *Deconvolutional networks*, CVPR 2010; Dumoulin, Visin, *A guide to convolution
    arithmetic for deep learning*, 2016, section 4.
    """
    source = source_of(net, input_ensemble, "TransposedConvLayer", 3)
    filters, kernels = count("num_filters", num_filters), pair("kernel", kernel, 1)
    strides, pads, dilations = pair("stride", stride, 1), pair("pad", pad, 0), pair("dilation", dilation, 1)
    more = pair("output_padding", output_padding, 0)
    channels, *extents = source.shape
    for axis, extra, step, apart in zip("yx", more, strides, dilations, strict=True):
        if extra >= max(step, apart):
            raise DeclarationError(
                f"output_padding {extra} in {axis} must be less than the stride {step} or the dilation {apart}",
                location=user_location(),
            )
    height, width = (
        (extent - 1) * step - 2 * around + (k - 1) * apart + 1 + extra
        for extent, step, around, k, apart, extra in zip(extents, strides, pads, kernels, dilations, more, strict=True)
    )
    if height < 1 or width < 1:
        raise DeclarationError(
            f"pad {pad} leaves nothing of the result: ({height}, {width})",
            location=user_location(),
            way_out="use less padding",
        )
    ensemble = TransposedConvEnsemble(channels, (filters, height, width), kernels, strides, pads, dilations, name)
    net.add_ensemble(ensemble)
    net.add_connections(source, ensemble)
    return ensemble
