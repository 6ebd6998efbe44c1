"""Checks of the data that users give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from latte.model.checks import masked, misfit
from latte.model.ensemble import Ensemble
from latte.model.ensemble_kinds import DataEnsemble
from latte.model.graph import Graph
from latte.model.ranges import classes_of
from latte.model.source_location import user_location
from swirl.errors import DataError

BLOCK = 2**20
"""Elements that are looked at together in a large array."""


UNREADABLE = (ValueError, TypeError, RuntimeError)
"""What :func:`as_array` raises: NumPy the first, PyTorch the others, of tensors that are not plain arrays."""


def check_data(
    graph: Graph,
    arrays: Sequence[Any],
    layers: Sequence[DataEnsemble] | None = None,
    numbers: Sequence[int] | np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """``arrays`` for data layers of a net (all of them by default), as arrays of shape (items, …) by the layers' names.

    Args:
        graph: of the net.
        arrays: values.
        layers: that they are for.
        numbers: of the items in their data set, for messages; by default those in the arrays.

    Raises:
        DataError: wrong number of arrays, wrong shapes or types, labels out of range.
    """
    layers = graph.data() if layers is None else layers
    if not layers:
        raise DataError("the net has no data layer", location=user_location(), way_out="MemoryDataLayer(net, shape)")
    if len(arrays) != len(layers):
        names = ", ".join(layer.name for layer in layers)
        needed = "1 array is needed" if len(layers) == 1 else f"{len(layers)} arrays are needed"
        left_out = [layer.name for layer in graph.data() if layer not in layers]
        more = bool(left_out) and len(arrays) > len(layers)
        way_out = f"labels are left out: nothing is needed for {', '.join(left_out)}" if more else None
        if len(arrays) == 1 and not hasattr(arrays[0], "shape"):
            way_out = "items of a data set: latte.data.DataLoader(data_set, batch_size=…)"
        raise DataError(
            f"{needed} (for {names}), not {len(arrays)}",
            location=user_location(),
            way_out=way_out,
        )
    checked = {}
    for layer, values in zip(layers, arrays, strict=True):
        if values is None:
            names = ", ".join(each.name for each in layers)
            raise DataError(
                f"the array for {layer.name} is None",
                location=user_location(),
                way_out=f"the arrays are given in the order of the data layers: {names}",
            )
        array = check_array(values, None, layer.name)
        if array.ndim == 1 and layer.shape == (1,):
            array = array[:, None]
        if array.ndim == 0 or array.shape[1:] != layer.shape:
            raise DataError(
                f"{layer.name}: the shape is {array.shape}, but (batch, {', '.join(map(str, layer.shape))}) is needed",
                location=user_location(),
                way_out="the arrays are given in the order of the data layers",
            )
        check_value(graph, layer, array, numbers)
        checked[layer.name] = array
    counts = [len(array) for array in checked.values()]
    if len(set(counts)) > 1:
        raise DataError(f"the arrays have different numbers of items: {counts}", location=user_location())
    return checked


def check_finite(arrays: Mapping[str, np.ndarray], numbers: Sequence[int] | np.ndarray | None = None) -> None:
    """DataError where an array has NaN or infinity, or has it as float32: in which layer, item and element.

    Args:
        arrays: (items, …) by the layers' names.
        numbers: of the items in their data set; by default those in the arrays.
    """
    for name, array in arrays.items():
        where = _not_finite(array)
        if where is None:
            continue
        too_large = ", which is infinite as float32" if np.isfinite(array[where]) else ""
        raise DataError(
            f"the data have {array[where]} in {name}: {_place(where, array, numbers)}{too_large}",
            location=user_location(),
            way_out="scale the data, or leave out such items: float32 goes up to 3.4e38"
            if too_large
            else "mend or leave out such items before training: np.isfinite(array) finds them",
        )


def _not_finite(array: np.ndarray) -> tuple[int, ...] | None:
    """Where the first element is that is not finite as float32; None if there is none. Takes memory for a block."""
    if array.dtype.kind != "f":
        return None
    items = max(1, BLOCK // max(1, prod(array.shape[1:])))
    for start in range(0, len(array), items):
        finite = np.isfinite(converted(array[start : start + items], np.float32))  # as the net computes with it
        if not finite.all():
            first, *rest = (int(index) for index in np.argwhere(~finite)[0])
            return start + first, *rest
    return None


def converted(array: np.ndarray, dtype: type[np.generic]) -> np.ndarray:
    """An array in another type; itself, if that is its own. Numbers that are too large become infinite without NumPy's
    warning: callers have checked them, refuse them next, or take infinity from users."""
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def _place(where: tuple[int, ...], array: np.ndarray, numbers: Sequence[int] | np.ndarray | None) -> str:
    """``item 7 at (0, 2)``: of the data set, where the numbers of its items are known."""
    item = where[0] if numbers is None else int(numbers[where[0]])
    return f"item {item} at {where[1:]}" if array[0].size > 1 else f"item {item}"


def as_array(values: Any) -> np.ndarray:
    """An array of what users give: a tensor's values, short floats as float32, as NumPy does not have all of them.

    Raises:
        ValueError, TypeError, RuntimeError: it is not an array, or some of it is masked.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() and values.element_size() < 4 else values
    if (wrong := masked(values)) is not None:
        raise ValueError(wrong)
    return np.asarray(values)


def check_array(values: Any, shape: tuple[int, ...] | None, what: str) -> np.ndarray:
    """``values`` as an array of real numbers of ``shape``, or DataError."""
    if values is None:
        raise DataError(f"{what}: an array is needed, not None", location=user_location())
    try:
        array = as_array(values)
    except UNREADABLE as error:
        raise DataError(f"{what}: {error}", location=user_location()) from error
    if array.dtype.kind not in "fiub":
        raise DataError(
            f"{what}: real numbers are needed, not {array.dtype}",
            location=user_location(),
            way_out="convert with array.astype(np.float32)",
        )
    if shape is not None and array.shape != shape:
        raise DataError(f"{what}: the shape is {array.shape}, but {shape} is needed", location=user_location())
    return array


def check_fits(array: np.ndarray, what: str, dtype: str = "float32", below: int | None = None) -> None:
    """DataError where an element would change, apart from rounding: see :func:`latte.model.checks.misfit`."""
    if (wrong := misfit(array, dtype, below)) is not None:
        raise DataError(f"{what}: {wrong}", location=user_location())


def check_fields(graph: Graph, arrays: Mapping[str, np.ndarray], names: Mapping[str, str] | None = None) -> None:
    """DataError where values do not fit a field's type and range.

    Args:
        graph: of the net.
        arrays: storage → values.
        names: storage → what it is called in messages; the same by default.
    """
    specs = (spec for ensemble in graph.ensembles for spec in ensemble.fields().values())
    for spec in specs:
        if spec.storage in arrays:
            what = spec.storage if names is None else names[spec.storage]
            check_fits(arrays[spec.storage], what, spec.dtype, spec.below)


def check_value(
    graph: Graph, ensemble: Ensemble, values: np.ndarray, numbers: Sequence[int] | np.ndarray | None = None
) -> None:
    """DataError where ``ensemble`` has integers and a value is not one, or is out of range; or where it gives class
    numbers to a loss and a value is not one.

    Args:
        graph: of the net.
        ensemble: whose values they are.
        values: (items, …).
        numbers: of the items in their data set, for messages; by default those in the array.
    """
    if isinstance(ensemble, DataEnsemble) and ensemble.dtype == "int32":
        place_of = None if numbers is None else lambda where: _place(where, values, numbers)
        if (wrong := misfit(values, ensemble.dtype, ensemble.below, place_of)) is not None:
            raise DataError(f"{ensemble.name}: {wrong}", location=user_location())
    for edge in graph.readers(ensemble):
        if not (edge.is_label and edge.sink.class_labels):
            continue
        sink = edge.sink
        classes = classes_of(edge)
        outside = (values < 0) | (values >= classes)
        if values.dtype.kind == "f":
            outside |= values != np.floor(values)
        if sink.ignored_label is not None:
            outside &= values != sink.ignored_label
        if outside.any():
            where = tuple(int(index) for index in np.argwhere(outside)[0])
            raise DataError(
                f"labels of {sink.name} must be class numbers from 0 to {classes - 1}"
                f"{'' if sink.ignored_label is None else f', or {sink.ignored_label:g}'}; "
                f"{_place(where, values, numbers)} is {values[where]}",
                location=user_location(),
                way_out=None if sink.ignored_label is not None else "ignore_label=… of the layer leaves such items out",
            )
