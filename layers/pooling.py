"""Pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from latte.ensemble import Ensemble
from latte.errors import DeclarationError
from latte.layers.arguments import flag, pair, source_of
from latte.model.sizes import tell_of_sizes
from latte.model.source_location import user_location
from latte.net import Net
from latte.neuron import INFINITY, Neuron, range_dim

Pair = int | Sequence[int]


class MeanInsideNeuron(Neuron):
    """The mean of the elements of a window, which may be clipped."""

    def forward(self) -> None:
        self.value = 0.0
        count = 0.0
        for j in range_dim(self.inputs, 1):
            for k in range_dim(self.inputs, 2):
                self.value += self.inputs[0, j, k]
                count += 1.0
        self.value = self.value / count


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
    ceil_mode: bool | None = None,
    clamp: bool | None = None,
    name: str | None = None,
) -> Ensemble:
    """``max inputs[n, c, y·stride - pad + j, x·stride - pad + k]`` over the window ``j``, ``k``.

    The gradient goes to the first largest element in row-major order.

    Extents are ``⌊(in + 2·pad - kernel) / stride⌋ + 1``, and positions outside the source do not take part, as of
    PyTorch's ``MaxPool2d``. In a net with ``compat`` the defaults are those of the original Latte: extents are rounded
    up, and positions outside read the nearest edge.

    Args:
        net: the net.
        input_ensemble: shape (channels, height, width).
        kernel: extent of the window, one integer or (y, x), as the two below.
        stride: distance between windows.
        pad: how far the first window begins outside.
        ceil_mode: whether extents are rounded up, not down; without ``clamp``, a window that would begin after the
            source and its padding is left out, as in PyTorch.
        clamp: whether positions outside read the nearest edge (else they are left out).
        name: of the layer, unique in the net; by default its kind and a number.

    Returns:
        An ensemble of shape (channels, height, width), with the fields ``mask_j`` and ``mask_k``: row and column of the
        winner within its window (without ``clamp``: within the part of the window that is inside).

    Raises:
        DeclarationError: for arguments that do not fit.
    """
    windows = _windows(net, input_ensemble, "MaxPoolingLayer", kernel, stride, pad, ceil_mode, clamp)
    return windows.pooled(net, MaxPoolingNeuron, "max_pooling", name)


def MeanPoolingLayer(
    net: Net,
    input_ensemble: Ensemble,
    kernel: Pair = 2,
    stride: Pair = 2,
    pad: Pair = 0,
    *,
    ceil_mode: bool | None = None,
    clamp: bool | None = None,
    count_include_pad: bool = True,
    name: str | None = None,
) -> Ensemble:
    """``Σ inputs[n, c, y·stride - pad + j, x·stride - pad + k] / (kernel y · kernel x)`` over the window ``j``, ``k``.

    Extents are those of :func:`MaxPoolingLayer`, and the padding is zeros, as of PyTorch's ``AvgPool2d``. In a net with
    ``compat`` the defaults are those of the original Latte: extents are rounded up, and positions outside the source
    read the nearest edge; the divisor is the number of elements of the kernel.

    Args:
        net: the net.
        input_ensemble: shape (channels, height, width).
        kernel, stride, pad, ceil_mode: see :func:`MaxPoolingLayer`.
        clamp: whether positions outside read the nearest edge.
        count_include_pad: without ``clamp``, whether the zeros of the padding count: the divisor is the number of a
            window's elements that are inside of the padded source; otherwise, of those inside of the source.
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit.
    """
    windows = _windows(net, input_ensemble, "MeanPoolingLayer", kernel, stride, pad, ceil_mode, clamp)
    area = float(windows.kernel[0] * windows.kernel[1])

    class MeanNeuron(Neuron):
        def forward(self) -> None:
            self.value = 0.0
            for j in range_dim(self.inputs, 1):
                for k in range_dim(self.inputs, 2):
                    self.value += self.inputs[0, j, k]
            self.value = self.value / area

    zeros_count = flag("count_include_pad", count_include_pad) and not windows.clamp
    if zeros_count and windows.beyond_padding:  # not all windows have as many elements
        return windows.pooled(net, MeanInsideNeuron, "mean_pooling", name, padded=True)
    neuron = MeanNeuron if windows.clamp or zeros_count or windows.inside else MeanInsideNeuron
    return windows.pooled(net, neuron, "mean_pooling", name)


def GlobalMeanPoolingLayer(net: Net, input_ensemble: Ensemble, *, name: str | None = None) -> Ensemble:
    """``Σ inputs[n, c, y, x] / (height · width)`` for each channel, shape (channels, 1, 1).

    Args:
        net: the net.
        input_ensemble: shape (channels, height, width).
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit.
    """
    source = source_of(net, input_ensemble, "GlobalMeanPoolingLayer", 3)
    extents = source.shape[1:]
    return MeanPoolingLayer(net, source, extents, extents, ceil_mode=False, clamp=False, name=name)


@dataclass(frozen=True)
class _Windows:
    """The windows of a pooling layer.

    Args:
        source: that is read.
        kernel, stride, pad: in y and x.
        sizes: number of windows in y and x.
        clamp: whether positions outside read the nearest edge.
    """

    source: Ensemble
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int]
    sizes: tuple[int, int]
    clamp: bool

    @property
    def inside(self) -> bool:
        """Whether every window is inside of the source."""
        return self.pad == (0, 0) and not self.beyond_padding

    @property
    def beyond_padding(self) -> bool:
        """Whether a window ends after the padding."""
        ends = [(size - 1) * s + k for size, s, k in zip(self.sizes, self.stride, self.kernel, strict=True)]
        return any(
            end > extent + 2 * pad for end, extent, pad in zip(ends, self.source.shape[1:], self.pad, strict=True)
        )

    def pooled(self, net: Net, neuron: type[Neuron], kind: str, name: str | None, *, padded: bool = False) -> Ensemble:
        """A layer with a neuron for each window.

        Args:
            net: the net.
            neuron: what it computes.
            kind, name: of the layer.
            padded: without ``clamp``, whether windows are clipped to the padded source, and read its zeros; otherwise
                to the source.
        """
        channels, height, width = self.source.shape
        (rows, columns), (down, right), (above, left_of) = self.kernel, self.stride, self.pad

        def mapping(c, y, x):
            top, left = y * down - above, x * right - left_of
            return range(c, c + 1), range(top, top + rows), range(left, left + columns)

        def clipped(c, y, x):
            top, left = y * down - above, x * right - left_of
            inside = range(max(0, top), min(height, top + rows))
            return range(c, c + 1), inside, range(max(0, left), min(width, left + columns))

        def clipped_to_padding(c, y, x):
            top, left = y * down, x * right  # the first zero is 0
            inside = range(top, min(height + 2 * above, top + rows))
            return range(c, c + 1), inside, range(left, min(width + 2 * left_of, left + columns))

        ensemble = Ensemble(neuron, (channels, *self.sizes), ("c", "y", "x"), kind=kind, name=name)
        net.add_ensemble(ensemble)
        if self.clamp or self.inside:
            net.add_connections(self.source, ensemble, mapping, clamp=True)
        elif padded:
            net.add_connections(self.source, ensemble, clipped_to_padding, padding=(0, above, left_of))
        else:
            net.add_connections(self.source, ensemble, clipped, padding=(0, 0, 0))
        return ensemble


def _windows(
    net: Net,
    source: Ensemble,
    layer: str,
    kernel: Pair,
    stride: Pair,
    pad: Pair,
    ceil_mode: bool | None,
    clamp: bool | None,
) -> _Windows:
    """The windows that these arguments of a layer ask for; None is the net's default."""
    source = source_of(net, source, layer, 3)
    old = net.graph.settings.compat
    rounded = old if ceil_mode is None else flag("ceil_mode", ceil_mode)
    clamped = old if clamp is None else flag("clamp", clamp)
    kernels, strides, pads = pair("kernel", kernel, 1), pair("stride", stride, 1), pair("pad", pad, 0)
    if not clamped and any(2 * around > k for around, k in zip(pads, kernels, strict=True)):
        raise DeclarationError(
            f"pad {pads} is more than half of the kernel {kernels}: some windows would be empty",
            location=user_location(),
        )

    def sizes(ceil_mode: bool, clamp: bool) -> tuple[int, int]:
        _, height, width = source.shape
        rows = _pooled_extent(source, ("y", height, kernels[0], strides[0], pads[0]), ceil_mode, clamp)
        return rows, _pooled_extent(source, ("x", width, kernels[1], strides[1], pads[1]), ceil_mode, clamp)

    made = sizes(rounded, clamped)
    original = {"ceil_mode": ceil_mode is None or rounded, "clamp": clamp is None or clamped}
    if not old and made != (before := sizes(**original)):
        tell_of_sizes(net.graph.settings, layer, (made, {"ceil_mode": rounded, "clamp": clamped}), (before, original))
    return _Windows(source, kernels, strides, pads, made, clamped)


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
