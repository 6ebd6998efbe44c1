"""Layers that read several sources: side by side, added, multiplied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import accumulate
from typing import Any, ParamSpec

from latte.ensemble import Ensemble
from latte.errors import DeclarationError
from latte.layers.arguments import check_axis, names_of_dimensions, source_of
from latte.model.checks import check_number
from latte.model.source_location import user_location
from latte.net import Net
from latte.neuron import Neuron, eachindex

P = ParamSpec("P")


def _of_a_list(layer: Callable[P, Ensemble]) -> Callable[P, Ensemble]:
    """A constructor of ``(net, [a, b])`` that says so where it is given ``(net, a, b)``."""

    @wraps(layer)
    def checked(*given: P.args, **options: P.kwargs) -> Ensemble:
        if len(given) > 2:
            raise DeclarationError(
                f"{layer.__name__} reads one list of layers, and was given {len(given) - 1} arguments after the net",
                location=user_location(),
                way_out=f"{layer.__name__}(net, [a, b])",
            )
        return layer(*given, **options)

    return checked


class ConcatEnsemble(Ensemble):
    """Vectors side by side.

    Args:
        shape: of all together.
        firsts: where each source begins, a number for each dimension.
        name: of the layer.
    """

    kind = "concat"

    def __init__(self, shape: tuple[int, ...], firsts: Sequence[tuple[int, ...]], name: str | None):
        super().__init__(shape=shape, dims=names_of_dimensions(len(shape)), name=name)
        self.firsts = tuple(zip(*firsts, strict=True))
        """For each dimension where each source begins."""

    def forward(self, value, *sources):
        for source, first in zip(sources, self.firsts[0], strict=True):
            N, C = source.shape
            for n in range(N):
                for c in range(C):
                    value[n, first + c] = source[n, c]


class SequenceConcatEnsemble(ConcatEnsemble):
    """The same of sequences, (positions, features)."""

    def forward(self, value, *sources):
        for source, top, left in zip(sources, self.firsts[0], self.firsts[1], strict=True):
            N, H, W = source.shape
            for n in range(N):
                for y in range(H):
                    for x in range(W):
                        value[n, top + y, left + x] = source[n, y, x]


class ImageConcatEnsemble(ConcatEnsemble):
    """The same of images, (channels, height, width)."""

    def forward(self, value, *sources):
        for source, first, top, left in zip(sources, self.firsts[0], self.firsts[1], self.firsts[2], strict=True):
            N, C, H, W = source.shape
            for n in range(N):
                for c in range(C):
                    for y in range(H):
                        for x in range(W):
                            value[n, first + c, top + y, left + x] = source[n, c, y, x]


class AddEnsemble(Ensemble):
    """The sum of all sources."""

    kind = "add"

    def forward(self, value, *sources):
        for i in eachindex(value):
            total = sources[0][i]
            for source in sources[1:]:
                total += source[i]
            value[i] = total


class MultiplyEnsemble(Ensemble):
    """The product of all sources."""

    kind = "multiply"

    def forward(self, value, *sources):
        for i in eachindex(value):
            product = sources[0][i]
            for source in sources[1:]:
                product *= source[i]
            value[i] = product


class SumNeuron(Neuron):
    """The sum of an element of each of two sources."""

    first: Any
    second: Any

    def forward(self) -> None:
        self.value = self.first + self.second


class ProductNeuron(Neuron):
    """The product of an element of each of two sources."""

    first: Any
    second: Any

    def forward(self) -> None:
        self.value = self.first * self.second


@_of_a_list
def ConcatLayer(net: Net, input_ensemble: Sequence[Ensemble], *, axis: int = 0, name: str | None = None) -> Ensemble:
    """The sources side by side, along the channels by default.

    ``get_grad_inputs()`` is the gradient of the first source, ``get_grad_inputs1()`` that of the second, and so on.

    Args:
        net: the net.
        input_ensemble: two or more layers of at most 3 dimensions, equal but for the one of ``axis``.
        axis: the dimension along which they are put, without the batch: 0 for channels.
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit.
    """
    sources = _sources(net, input_ensemble, "ConcatLayer")
    shape = sources[0].shape
    if len(shape) > 3:
        raise DeclarationError(
            f"ConcatLayer reads at most 3 dimensions without the batch, {sources[0]!r} has {len(shape)}",
            location=user_location(),
        )
    check_axis(sources[0], axis)
    for source in sources[1:]:
        if source.shape[:axis] != shape[:axis] or source.shape[axis + 1 :] != shape[axis + 1 :]:
            raise DeclarationError(
                f"ConcatLayer: {source!r} and {sources[0]!r} differ in more than dimension {axis}",
                location=user_location(),
                way_out="all need the same number of dimensions, and equal extents in the others",
            )
    ends = list(accumulate(source.shape[axis] for source in sources))
    whole = (*shape[:axis], ends[-1], *shape[axis + 1 :])
    firsts = [tuple(first if d == axis else 0 for d in range(len(shape))) for first in (0, *ends[:-1])]
    kind = (ConcatEnsemble, SequenceConcatEnsemble, ImageConcatEnsemble)[len(shape) - 1]
    ensemble = net.add_ensemble(kind(whole, firsts, name))
    for source in sources:
        net.add_connections(source, ensemble)
    return ensemble


@_of_a_list
def AddLayer(net: Net, input_ensembles: Sequence[Ensemble], *, name: str | None = None) -> Ensemble:
    """``Σ xᵢ`` of two or more layers, element by element.

    Args:
        net: the net.
        input_ensembles: two or more layers of one shape. Of two, either may have extent 1 where the other has more:
            that element is for all, as a gate of shape (channels, 1, 1) for an image.
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit.
    """
    return _element_by_element(net, input_ensembles, AddEnsemble, SumNeuron, "AddLayer", name)


@_of_a_list
def MultiplyLayer(net: Net, input_ensembles: Sequence[Ensemble], *, name: str | None = None) -> Ensemble:
    """``Π xᵢ`` of two or more layers, element by element; arguments as :func:`AddLayer`'s."""
    return _element_by_element(net, input_ensembles, MultiplyEnsemble, ProductNeuron, "MultiplyLayer", name)


def ResidualSumLayer(
    net: Net, shortcut: Ensemble, branch: Ensemble, scale: float = 1.0, *, name: str | None = None
) -> Ensemble:
    """``shortcut + scale · branch``, element by element: the end of a residual block.

    Args:
        net: the net.
        shortcut: what the block reads (or its projection), any shape.
        branch: what its layers have made of it, the same shape.
        scale: of the branch; 0.1 … 0.3 makes deep nets stable (Szegedy et al., section 3.3).
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit.

    Source: He et al., *Deep residual learning for image recognition*, CVPR 2016; Szegedy et al., *Inception-v4*, 2016.
    """
    factor = check_number("scale", scale)

    class ResidualSumNeuron(Neuron):
        shortcut: Any
        branch: Any

        def forward(self) -> None:
            self.value = self.shortcut + factor * self.branch

    sources = _of_one_shape(_sources(net, (shortcut, branch), "ResidualSumLayer"), "ResidualSumLayer")
    shape = sources[0].shape
    ensemble = net.add_ensemble(
        Ensemble(ResidualSumNeuron, shape, names_of_dimensions(len(shape)), kind="residual_sum", name=name)
    )
    net.add_one_to_one_connections(shortcut, ensemble, name="shortcut")
    net.add_one_to_one_connections(branch, ensemble, name="branch")
    return ensemble


def _element_by_element(
    net: Net, given: Sequence[Ensemble], kind: type[Ensemble], neuron: type[Neuron], layer: str, name: str | None
) -> Ensemble:
    sources = _sources(net, given, layer)
    if len(sources) == 2 and sources[0].shape != sources[1].shape:
        return _stretched(net, sources[0], sources[1], neuron, kind.kind, layer, name)
    shape = _of_one_shape(sources, layer)[0].shape
    ensemble = net.add_ensemble(kind(shape=shape, dims=names_of_dimensions(len(shape)), name=name))
    for source in sources:
        net.add_one_to_one_connections(source, ensemble)
    return ensemble


def _stretched(
    net: Net, first: Ensemble, second: Ensemble, neuron: type[Neuron], kind: str, layer: str, name: str | None
) -> Ensemble:
    """Two sources of as many dimensions, of which either may have extent 1 where the other has more."""
    pairs = list(zip(first.shape, second.shape, strict=False))
    if first.ndim != second.ndim or any(1 not in pair and pair[0] != pair[1] for pair in pairs):
        raise DeclarationError(
            f"{layer}: {first!r} and {second!r} have different shapes",
            location=user_location(),
            way_out="extents must be equal, or one of the two 1",
        )
    shape = tuple(max(pair) for pair in pairs)
    ensemble = net.add_ensemble(Ensemble(neuron, shape, names_of_dimensions(len(shape)), kind=kind, name=name))
    for source, called in ((first, "first"), (second, "second")):
        net.add_connections(source, ensemble, _one_for_all(source), padding=(0,) * source.ndim, name=called)
    return ensemble


def _one_for_all(source: Ensemble) -> Callable[..., Any]:
    """The mapping to a neuron's own index, or to the one element that there is."""

    def mapping(*index):
        return tuple(0 if extent == 1 else i for i, extent in zip(index, source.shape, strict=True))

    return mapping


def _sources(net: Net, given: Sequence[Ensemble], layer: str) -> list[Ensemble]:
    if not isinstance(given, (list, tuple)) or len(given) < 2:
        raise DeclarationError(
            f"{layer} reads a list of two or more layers, not {given!r}",
            location=user_location(),
            way_out=f"{layer}(net, [a, b])",
        )
    return [source_of(net, source, layer) for source in given]


def _of_one_shape(sources: list[Ensemble], layer: str) -> list[Ensemble]:
    for source in sources:
        if source.shape != sources[0].shape:
            raise DeclarationError(
                f"{layer}: {sources[0]!r} and {source!r} have different shapes",
                location=user_location(),
                way_out=None
                if len(sources) == 2
                else "only of two layers extents of 1 are repeated: combine two at a time",
            )
    return sources
