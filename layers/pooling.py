"""Pooling."""

from __future__ import annotations

from collections.abc import Sequence

from latte.ensemble import Ensemble
from latte.errors import DeclarationError
from latte.layers.arguments import pair, source_of
from latte.model.source_location import user_location
from latte.net import Net
from latte.neuron import INFINITY, Neuron, range_dim

Pair = int | Sequence[int]


class MaxPoolingNeuron(Neuron):
    """The largest element of a window. Differentiation keeps its first place in the window in ``mask_j``,
    ``mask_k``."""

    def forward(self) -> None:
        self.value = -INFINITY
        for j in range_dim(self.inputs, 1):
            for k in range_dim(self.inputs, 2):
                self.value = max(self.value, self.inputs[0, j, k])


def MaxPoolingLayer(
    net: Net,
    input_ensemble: Ensemble,
    kernel: Pair = 2,
    stride: Pair = 2,
    pad: Pair = 0,
    *,
    ceil_mode: bool = True,
    clamp: bool = True,
) -> Ensemble:
    """The largest element of each window; its gradient goes to the first largest one in row-major order.

    The defaults are Latte's old rule: the size is rounded up, and positions outside the source read the
    nearest edge. ``ceil_mode=False, clamp=False`` is PyTorch's ``MaxPool2d``, ``ceil_mode=True, clamp=False``
    its ``ceil_mode=True``: positions outside do not take part.

    Args:
        net: the net.
        input_ensemble: shape (channels, height, width).
        kernel: extent of the window, one integer or (y, x), as the two below.
        stride: distance between windows.
        pad: how far the first window begins outside.
        ceil_mode: whether the number of windows, ``(in + 2·pad - kernel) / stride + 1``, is rounded up, not
            down.
        clamp: whether positions outside read the nearest edge (else they are left out).

    Returns:
        An ensemble of shape (channels, height, width), with the fields ``mask_j`` and ``mask_k``: row and
        column of the winner within its window (with ``clamp=False``: within the part of the window that is
        inside).

    Raises:
        DeclarationError: for arguments that do not fit.
    """
    source = source_of(net, input_ensemble, "MaxPoolingLayer", 3)
    kernels, strides, pads = pair("kernel", kernel, 1), pair("stride", stride, 1), pair("pad", pad, 0)
    channels, height, width = source.shape
    if not clamp and any(2 * around > k for around, k in zip(pads, kernels, strict=True)):
        raise DeclarationError(
            f"pad {pads} is more than half of the kernel {kernels}: some windows would be empty",
            location=user_location(),
        )
    sizes = [
        _pooled_extent(source, axis, ceil_mode, clamp)
        for axis in (
            ("y", height, kernels[0], strides[0], pads[0]),
            ("x", width, kernels[1], strides[1], pads[1]),
        )
    ]

    def mapping(c, y, x):
        top, left = y * strides[0] - pads[0], x * strides[1] - pads[1]
        return range(c, c + 1), range(top, top + kernels[0]), range(left, left + kernels[1])

    def clipped(c, y, x):
        top, left = y * strides[0] - pads[0], x * strides[1] - pads[1]
        rows = range(max(0, top), min(height, top + kernels[0]))
        return range(c, c + 1), rows, range(max(0, left), min(width, left + kernels[1]))

    ensemble = Ensemble(MaxPoolingNeuron, (channels, *sizes), ("c", "y", "x"), kind="max_pooling")
    net.add_ensemble(ensemble)
    net.add_connections(source, ensemble, mapping if clamp else clipped, clamp=clamp)
    return ensemble


def _pooled_extent(source: Ensemble, axis: tuple[str, int, int, int, int], ceil_mode: bool, clamp: bool) -> int:
    """Number of windows along one axis: (name, extent, kernel, stride, pad)."""
    name, extent, kernel, stride, pad = axis
    room = extent + 2 * pad - kernel
    if room < 0:
        raise DeclarationError(
            f"the kernel covers {kernel} elements in {name}, the padded input of {source!r} has only"
            f" {extent + 2 * pad}",
            location=user_location(),
            way_out="use a smaller kernel",
        )
    count = (-(-room // stride) if ceil_mode else room // stride) + 1
    # A window that would begin past the source has nothing to read unless it is clamped.
    if ceil_mode and not clamp and (count - 1) * stride >= extent + pad:
        count -= 1
    return count
