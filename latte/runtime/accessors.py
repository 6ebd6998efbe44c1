"""Reading and setting an ensemble's fields: ``get_value()``, ``set_weights(array)``, ``get_bias_view()``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from latte.model.place import user_place
from latte.runtime.data import check_array, check_labels
from swirl.errors import LatteError, UnknownName, nearest

if TYPE_CHECKING:
    from latte.model.ensemble import Ensemble

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
    buffers = {name: b for name, b in ensemble.buffers().items() if b.role != "scalar"}
    if field in buffers:
        return buffers[field].name
    net = ensemble.net
    if net is not None and net.compiled:  # what autodiff added: mask_j, mask_k of a maximum
        storage = f"{ensemble.name}.{field}"
        if storage in net.executable.buffers:
            return storage
    hint = nearest(field, buffers)
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
        ensemble.net.given.view(ensemble)
    return view


def _running(ensemble: Ensemble, what: str) -> Any:
    net = ensemble.net
    if net is None or not net.compiled:
        raise LatteError(
            f"{what} of {ensemble!r}: the net is not compiled yet",
            place=user_place(),
            way_out="call net.compile() first",
        )
    return net.executable


def _set(ensemble: Ensemble, field: str, storage: str, values: Any) -> None:
    from latte.model.ensemble import DataEnsemble  # which imports this module

    what = f"{ensemble.name}.set_{field}"
    executable = _running(ensemble, f"set_{field}")
    net = ensemble.net
    assert net is not None
    if field == "grad":
        net.given.give(ensemble, check_array(values, None, what))
        return
    buffer = executable.buffer(storage)
    full = ensemble.fields(net.batch_size)[field].shape if field in ensemble.fields() else buffer.shape
    array = check_array(values, None, what)
    if field == "value" and isinstance(ensemble, DataEnsemble) and array.shape == full:
        executable = net.use_full_batch()  # the batch before may have been a smaller one
        buffer = executable.buffer(storage)
    check_array(array, buffer.shape, what)
    if field == "value":
        check_labels(ensemble, array)
    if buffer.role == "param_grad":
        net.settle_gradients()
    executable.write(storage, array)
