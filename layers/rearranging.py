"""Layers that move elements and compute nothing: split, padded, seen in another shape or order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import Any

from latte.ensemble import Ensemble
from latte.errors import DeclarationError
from latte.layers.arguments import check_axis, choice, names_of_dimensions, source_of
from latte.model.checks import check_ensemble_name, check_padding, is_integer
from latte.model.source_location import user_location
from latte.net import Net
from latte.neuron import Neuron


class CopyNeuron(Neuron):
    """The element that the mapping names."""

    def forward(self) -> None:
        self.value = self.input


def SplitLayer(
    net: Net, input_ensemble: Ensemble, sizes: Sequence[int], *, axis: int = 0, name: str | None = None
) -> list[Ensemble]:
    """Consecutive parts of the source, along the channels by default: a list of layers.

    Args:
        net: the net.
        input_ensemble: any shape.
        sizes: extent of each part; together, that of the source.
        axis: the dimension that is split, without the batch: 0 for channels.
        name: of the parts, with ``_0``, ``_1``, …; by default their kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit.
    """
    source = source_of(net, input_ensemble, "SplitLayer")
    check_axis(source, axis)
    fits = isinstance(sizes, (list, tuple)) and all(is_integer(size) and size > 0 for size in sizes)
    if not fits or sum(sizes) != source.shape[axis]:
        raise DeclarationError(
            f"sizes must be positive integers whose sum is {source.shape[axis]}, the extent of dimension {axis} of"
            f" {source!r}, not {sizes!r}",
            location=user_location(),
        )
    parts, given = [], check_ensemble_name(name, user_location())
    with net.graph.all_or_nothing():
        for number, (size, end) in enumerate(zip(sizes, accumulate(sizes), strict=True)):
            shape = (*source.shape[:axis], int(size), *source.shape[axis + 1 :])
            begins = tuple(end - size if dim == axis else 0 for dim in range(source.ndim))
            called = f"{given}_{number}" if given else None
            parts.append(_moved(net, source, shape, _from(begins), "split", called))
    return parts


def PaddingLayer(
    net: Net,
    input_ensemble: Ensemble,
    pad: Sequence[int | tuple[int, int]],
    mode: str = "zero",
    *,
    name: str | None = None,
) -> Ensemble:
    """The source with a border around it.

    Convolution and pooling have paddings of their own, which take no memory.

    Args:
        net: the net.
        input_ensemble: any shape.
        pad: for each dimension of the source (elements before, elements after), or one number for both.
        mode: ``"zero"``, or ``"edge"``: the nearest element of the source.
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit.
    """
    source = source_of(net, input_ensemble, "PaddingLayer")
    choice("mode", mode, ("zero", "edge"))
    pads = check_padding(pad if pad is not None else (), source.shape)
    shape = tuple(extent + before + after for extent, (before, after) in zip(source.shape, pads, strict=True))
    if mode == "zero":
        return _moved(net, source, shape, _from((0,) * source.ndim), "padding", name, padding=pads)
    begins = tuple(-before for before, _ in pads)
    return _moved(net, source, shape, _from(begins), "padding", name, clamp=True)


def ReshapeLayer(net: Net, input_ensemble: Ensemble, shape: Sequence[int], *, name: str | None = None) -> Ensemble:
    """The source's elements in row-major order, in another shape.

    Args:
        net: the net.
        input_ensemble: any shape.
        shape: without the batch, as many elements; one extent may be -1, and is then what is left.
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit.
    """
    source = source_of(net, input_ensemble, "ReshapeLayer")
    given = tuple(shape) if isinstance(shape, (list, tuple)) else (shape,)
    extents = list(given)
    if all(map(is_integer, given)) and given.count(-1) == 1 and (rest := -prod(given)) > 0:
        extents[given.index(-1)] = len(source) // rest
    if not all(is_integer(extent) and extent > 0 for extent in extents) or prod(extents) != len(source):
        raise DeclarationError(
            f"{source!r} has {len(source)} elements and cannot be given the shape {shape!r}",
            location=user_location(),
            way_out="positive integers, without the batch; one of them may be -1",
        )
    new = tuple(int(extent) for extent in extents)
    return _moved(net, source, new, _from((0,) * len(new)), "reshape", name, reshape=new)


def FlattenLayer(net: Net, input_ensemble: Ensemble, *, name: str | None = None) -> Ensemble:
    """The source as a vector, in row-major order. (A fully connected layer reads any shape and needs none.)

    Args:
        net: the net.
        input_ensemble: any shape.
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit.
    """
    source = source_of(net, input_ensemble, "FlattenLayer")
    new = (len(source),)
    return _moved(net, source, new, _from((0,)), "flatten", name, reshape=new)


def PermuteLayer(net: Net, input_ensemble: Ensemble, order: Sequence[int], *, name: str | None = None) -> Ensemble:
    """The source with its dimensions in another order: dimension ``i`` of the layer is ``order[i]`` of the source.

    Args:
        net: the net.
        input_ensemble: any shape.
        order: each dimension of the source once, without the batch: ``(1, 2, 0)`` puts the channels of an image last.
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit.
    """
    source = source_of(net, input_ensemble, "PermuteLayer")
    dims = order if isinstance(order, (list, tuple)) else ()
    if not all(map(is_integer, dims)) or sorted(dims) != list(range(source.ndim)):
        raise DeclarationError(
            f"order must have each of {tuple(range(source.ndim))} once, not {order!r}", location=user_location()
        )

    places = [list(dims).index(dim) for dim in range(source.ndim)]

    def mapping(*index):
        return tuple(index[place] for place in places)

    return _moved(net, source, tuple(source.shape[dim] for dim in dims), mapping, "permute", name)


def _from(begins: Sequence[int]) -> Callable[..., Any]:
    """The mapping that reads the source from ``begins`` on."""

    def mapping(*index):
        return tuple(i + first for i, first in zip(index, begins, strict=True))

    return mapping


def _moved(
    net: Net,
    source: Ensemble,
    shape: tuple[int, ...],
    mapping: Callable[..., Any],
    kind: str,
    name: str | None,
    **options: Any,
) -> Ensemble:
    """A layer whose elements are those of ``source`` that ``mapping`` names."""
    ensemble = net.add_ensemble(Ensemble(CopyNeuron, shape, names_of_dimensions(len(shape)), kind=kind, name=name))
    if "clamp" not in options:
        options = {"padding": (0,) * len(options.get("reshape", source.shape)), **options}
    net.add_connections(source, ensemble, mapping, **options)
    return ensemble
