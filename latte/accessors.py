"""Reading and setting an ensemble's fields: ``get_value()``, ``set_weights(array)``, ``get_bias_view()``."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np

from latte.place import user_place
from swirl.errors import DataError, LatteError, UnknownName

if TYPE_CHECKING:
    from latte.ensemble import Ensemble

_ACCESSOR = re.compile(r"(get|set)_(\w+?)(_view)?$")


def accessor(ensemble: Ensemble, name: str) -> Any:
    """The getter or setter called ``name``; None where the name is none.

    Raises:
        UnknownName: the ensemble has no such field.
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
    close = get_close_matches(field, buffers, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    names = ", ".join(sorted(buffers))
    raise UnknownName(f"{ensemble!r} has no field {field!r}", place=user_place(),
                      way_out=f"{hint}its fields are {names}")  # fmt: skip


def _get(ensemble: Ensemble, field: str, storage: str) -> np.ndarray:
    executable = _running(ensemble, f"get_{field}")
    values: np.ndarray = executable.read(storage)
    assert ensemble.net is not None
    return np.zeros_like(values) if ensemble.net.is_cleared(storage) else values


def _view(ensemble: Ensemble, storage: str) -> np.ndarray:
    executable = _running(ensemble, "a view")
    view: np.ndarray = executable.view(storage)
    assert ensemble.net is not None
    if executable.buffers[storage].role == "param_grad":
        ensemble.net.settle_gradients()
        ensemble.net.gradient_views = True
    if storage == f"{ensemble.name}.grad":
        ensemble.net.top_gradient_viewed(ensemble)
    return view


def _running(ensemble: Ensemble, what: str) -> Any:
    net = ensemble.net
    if net is None or not net.compiled:
        raise LatteError(
            f"{what} of {ensemble!r}: the net is not compiled yet", way_out="call net.compile() first"
        )
    return net.executable


def _set(ensemble: Ensemble, field: str, storage: str, values: Any) -> None:
    from latte.ensemble import DataEnsemble  # which imports this module

    executable = _running(ensemble, f"set_{field}")
    net = ensemble.net
    assert net is not None
    if field == "grad":
        net.set_seed_gradient(ensemble, check_array(values, None, "set_grad"))
        return
    buffer = executable.buffer(storage)
    full = ensemble.fields(net.batch_size)[field].shape if field in ensemble.fields() else buffer.shape
    array = check_array(values, None, f"set_{field}")
    if field == "value" and isinstance(ensemble, DataEnsemble) and array.shape == full:
        executable = net.use_full_batch()  # the batch before may have been a smaller one
        buffer = executable.buffer(storage)
    check_array(array, buffer.shape, f"set_{field}")
    if field == "value":
        check_labels(ensemble, array)
    if buffer.role == "param_grad":
        net.settle_gradients()
    executable.write(storage, array)


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
