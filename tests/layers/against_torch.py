"""A layer of any number of sources against PyTorch in double precision: value, gradients of sources and parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import latte
from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.tools.library.entries import NORMAL, LibraryLayer, options_at
from latte.tools.library.entries import Case as LibraryCase
from swirl.target.machine import why_not
from swirl.target.targets import TARGETS
from tests.layers.references import assert_within
from tests.support import running_targets, targets_in_turn

TOLERANCE = 3e-5
"""Of the greatest element: sums of up to some thousand terms, and functions within a few roundings."""


@dataclass(frozen=True)
class Case:
    """A layer, and the same in PyTorch.

    Args:
        layer: ``layer(net, *sources)`` declares it; it may return several.
        same: of tensors, and of parameters by name; returns as many.
        shapes: for each trial those of the sources, without the batch.
        data: what the sources are given, by their position, instead of random numbers: ``data(generator, shape)``.
        below: of sources that are subscripts, by their position: all are smaller.
    """

    layer: Callable[..., Any]
    same: Callable[..., Any]
    shapes: Sequence[tuple[tuple[int, ...], ...]]
    data: Mapping[int, Callable[..., np.ndarray]] = field(default_factory=dict)
    below: Mapping[int, int] = field(default_factory=dict)


def of_library(layer: LibraryLayer, case: LibraryCase) -> Case:
    """A case of the library's registry."""
    import torch

    def read(sources: Sequence[Any]) -> list[Any]:
        return [sources[number] for number in case.reads or range(len(sources))]

    count = len(case.sizes[0].sources)
    data = {number: case.data.get(number, NORMAL) for number in range(count)}
    return Case(
        lambda net, *sources: layer.declare(net, *read(sources), options=case.options),
        lambda *xs, **parameters: layer.computed(torch, *read(xs), options=case.options, **parameters),
        [sizes.sources for sizes in case.sizes],
        {number: each.draw for number, each in data.items()},
        {number: each.below for number, each in data.items() if each.below is not None},
    )


def arguments(layer: LibraryLayer, net: Net) -> dict[str, Any]:
    """Good arguments of a layer's constructor by name: those of its first case, at its first sizes."""
    case = next(iter(layer.cases.values()))
    compared = of_library(layer, case)
    sources = sources_of(net, compared, compared.shapes[0])
    signature = inspect.signature(getattr(latte, layer.name))
    bound = signature.bind_partial(net, *([sources] if layer.list_of_sources else sources))
    return {**bound.arguments, **options_at(case.options, compared.shapes[0])}


def in_turn(cases: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Each case's name, a target, and the number of one of its ``shapes``, along which vector targets take turns; a
    single shape meets each of them."""
    return [
        (name, target, number)
        for first, (name, case) in enumerate(cases.items())
        for number, target in (
            zip(range(len(case.shapes)), targets_in_turn(first, vectors=True), strict=False)
            if len(case.shapes) > 1
            else [(0, target) for target in running_targets(vectors=True)]
        )
    ]


def check_all(case: Case, target: str | None, batch: int = 3, number: int | None = None) -> None:
    """Compare a case at all of its shapes, or at one.

    Args:
        case: what is compared.
        target: what code is made for; the test is skipped where it does not run.
        batch: items.
        number: of the one shape.
    """
    if target is not None and (reason := why_not(TARGETS[target])):
        pytest.skip(reason)
    for shapes in case.shapes if number is None else [case.shapes[number]]:
        _check(case, shapes, target, batch)


def _check(case: Case, shapes: tuple[tuple[int, ...], ...], target: str | None, batch: int) -> None:
    import torch

    net = Net(batch, seed=3)
    net.force_backward = True
    sources = sources_of(net, case, shapes)
    made = case.layer(net, *sources)
    layers: list[Any] = made if isinstance(made, list) else [made]
    net.compile(threads=1, target=target)
    generator = np.random.default_rng(1)
    parameters = {name: _moved(layers[0], name, generator) for name in _parameters(layers[0])}
    arrays = [
        case.data.get(position, _normal)(generator, (batch, *shape)).astype(
            np.int32 if position in case.below else np.float32
        )
        for position, shape in enumerate(shapes)
    ]
    net.set_batch(*arrays)
    tensors = [
        torch.tensor(array) if position in case.below else torch.tensor(array, dtype=torch.float64, requires_grad=True)
        for position, array in enumerate(arrays)
    ]
    theirs = {name: torch.tensor(v, dtype=torch.float64, requires_grad=True) for name, v in parameters.items()}
    found = case.same(*tensors, **theirs)
    values = found if isinstance(found, list) else [found]
    is_loss = net.session.has_loss
    gradients = [generator.standard_normal(value.shape) for value in values]
    for layer, gradient in zip(layers, gradients, strict=True):
        if not is_loss:
            layer.set_grad(gradient)
    net.forward()
    net.backward()
    for layer, value in zip(layers, values, strict=True):
        near(layer.get_value().reshape(tuple(value.shape)), value, f"{shapes} value")
    if is_loss:
        values[0].backward()
    else:
        sum((value * torch.tensor(g)).sum() for value, g in zip(values, gradients, strict=True)).backward()
    for source, tensor in zip(sources, tensors, strict=True):
        if tensor.grad is not None:
            near(source.get_grad(), tensor.grad, f"{shapes} gradient of {source.name}")
    for name, tensor in theirs.items():
        near(getattr(layers[0], f"get_grad_{name}")(), tensor.grad, f"{shapes} gradient of {name}")


def sources_of(net: Net, case: Case, shapes: Sequence[tuple[int, ...]]) -> list[Ensemble]:
    """Data layers of these shapes for a case."""
    integers: dict[int, dict[str, Any]] = {number: {"dtype": "int32", "below": n} for number, n in case.below.items()}
    return [MemoryDataLayer(net, shape, **integers.get(number, {})) for number, shape in enumerate(shapes)]


def near(ours: np.ndarray, theirs: Any, what: str) -> None:
    """``ours`` is PyTorch's within the tolerance."""
    expected = theirs.detach().numpy()
    assert_within(ours, expected, TOLERANCE * max(1e-6, float(np.abs(expected).max())), what)


def _normal(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return generator.standard_normal(shape)


def _parameters(layer: Ensemble) -> list[str]:
    return [name for name, spec in layer.fields().items() if spec.role == "param"]


def _moved(layer: Any, name: str, generator: np.random.Generator) -> np.ndarray:
    """A parameter, after it has been set to other values than those that it starts with."""
    values = getattr(layer, f"get_{name}")()
    getattr(layer, f"set_{name}")(values + 0.1 * generator.standard_normal(values.shape))
    return np.asarray(getattr(layer, f"get_{name}")())
