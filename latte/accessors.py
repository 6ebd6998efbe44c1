"""Reading and setting an ensemble's fields: ``get_value()``, ``set_weights(array)``, ``get_bias_view()``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from swirl.errors import DataError, LatteError

if TYPE_CHECKING:
    from latte.ensemble import Ensemble

_ACCESSOR = re.compile(r"(get|set)_(\w+?)(_view)?$")


def accessor(ensemble: Ensemble, name: str) -> Any:
    """The getter or setter called ``name``; None where the name is none.

    Raises:
        DataError: the ensemble has no such field.
    """
    match = _ACCESSOR.fullmatch(name)
    if match is None:
        return None
    verb, field, view = match.groups()
    if verb == "set" and view:
        return None
    storage = _storage(ensemble, field)
    if verb == "set":
        return lambda values: _set(ensemble, field, storage, values)
    return (lambda: _view(ensemble, storage)) if view else (lambda: _get(ensemble, field, storage))


def _storage(ensemble: Ensemble, field: str) -> str:
    buffers = ensemble.buffers()
    if field in buffers:
        return buffers[field].name
    net = ensemble.net
    if net is not None and net.compiled:  # what autodiff added: mask_j, mask_k of a maximum
        storage = f"{ensemble.name}.{field}"
        if storage in net.executable.buffers:
            return storage
    names = ", ".join(sorted(buffers))
    raise DataError(f"{ensemble!r} has no field {field!r}", way_out=f"its fields are {names}")


def _get(ensemble: Ensemble, field: str, storage: str) -> np.ndarray:
    executable = _running(ensemble, f"get_{field}")
    values: np.ndarray = executable.read(storage)
    assert ensemble.net is not None
    return np.zeros_like(values) if ensemble.net.is_cleared(storage) else values


def _view(ensemble: Ensemble, storage: str) -> np.ndarray:
    view: np.ndarray = _running(ensemble, "a view").view(storage)
    assert ensemble.net is not None
    if ensemble.net.is_cleared(storage):
        view[...] = 0
        ensemble.net.gradient_views = True
    return view


def _running(ensemble: Ensemble, what: str) -> Any:
    net = ensemble.net
    if net is None or not net.compiled:
        raise LatteError(f"{what} of {ensemble!r}: the net is not compiled yet", way_out="call net.compile() first")
    return net.executable


def _set(ensemble: Ensemble, field: str, storage: str, values: Any) -> None:
    executable = _running(ensemble, f"set_{field}")
    array = check_array(values, executable.buffers[storage].shape if storage in executable.buffers else None, f"set_{field}")
    if field == "value":
        check_labels(ensemble, array)
    if field == "grad":
        assert ensemble.net is not None
        ensemble.net.set_seed_gradient(ensemble, array)
        return
    executable.write(storage, array)
    if executable.buffers[storage].role == "param_grad":
        assert ensemble.net is not None
        ensemble.net.keep_gradients()


def check_array(values: Any, shape: tuple[int, ...] | None, what: str) -> np.ndarray:
    """``values`` as an array of real numbers of ``shape``, or DataError."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{what}: {error}") from error
    if array.dtype.kind not in "fiub":
        raise DataError(f"{what}: real numbers are needed, not {array.dtype}",
                        way_out="convert with array.astype(np.float32)")  # fmt: skip
    if shape is not None and array.shape != shape:
        raise DataError(f"{what}: the shape is {array.shape}, but {shape} is needed")
    return array


def check_labels(ensemble: Ensemble, values: np.ndarray) -> None:
    """DataError where ``ensemble`` gives labels to a loss and a value is no class number."""
    assert ensemble.net is not None
    for edge in ensemble.net.readers(ensemble):
        if not edge.is_label:
            continue
        classes = next(len(e.source) for e in edge.sink.connections if not e.is_label)
        wrong = np.flatnonzero((values < 0) | (values >= classes) | (values != np.floor(values)))
        if wrong.size:
            first = int(wrong[0])
            raise DataError(f"labels of {edge.sink.name} must be class numbers from 0 to {classes - 1}; "
                            f"number {first} is {values.flat[first]}")  # fmt: skip
