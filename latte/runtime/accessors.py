"""Reading and setting an ensemble's fields: ``get_value()``, ``set_weights(array)``, ``get_bias_view()``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from latte.model.buffers import body_buffers, repeated_sources
from latte.model.calls import answering
from latte.model.ensemble import Ensemble
from latte.model.ensemble_kinds import DataEnsemble
from latte.model.ranges import ranges as body_ranges
from latte.model.source_location import user_location
from latte.runtime.data import check_array, check_fits, check_value
from latte.runtime.session import Session
from swirl.errors import DataError, LatteError

_ACCESSOR = re.compile(r"(get|set)_(.+?)(_view)?$")


class Accessors:
    """The getters and setters of one ensemble.

    Args:
        ensemble: in a net.
        session: asked for the net that runs; None before it is compiled.
    """

    def __init__(self, ensemble: Ensemble, session: Callable[[], Session | None]):
        self._ensemble, self._session = ensemble, session

    def __call__(self, name: str) -> Callable[..., Any] | None:
        """The getter or setter called ``name``; None if there is none.

        Raises:
            UnknownName: the ensemble has no such field.
        """
        match = _ACCESSOR.fullmatch(name)
        if match is None:
            return None
        verb, field, view = match.groups()
        if verb == "set" and view:
            return None
        storage = self._shown_storage(field) if verb == "get" else self._storage(field)
        called = f"{self._ensemble.name}.{name}"
        if verb == "set":
            return answering(lambda values: self._run(f"set_{field}", self._set, field, storage, values), called)
        if view:
            return answering(lambda: self._run("a view", self._view, field, storage), called)
        return answering(lambda: self._run(f"get_{field}", self._get, field, storage), called)

    def _storage(self, field: str) -> str:
        buffers = {name: b for name, b in body_buffers(self._ensemble).items() if b.role != "scalar"}
        field = repeated_sources(self._ensemble).get(field, field)  # a source that is connected twice
        if field in buffers:
            return buffers[field].name
        session = self._session()
        if session is not None:  # what autodiff added: mask_j, mask_k of a maximum
            storage = f"{self._ensemble.name}.{field}"
            if storage in session.executable.buffers:
                return storage
        raise self._ensemble.no_field(field, buffers)

    def _shown_storage(self, field: str) -> str:
        """The storage of a field; with ``compat`` a value is that of the activation on top of the layer."""
        session = self._session()
        if field == "value" and session is not None and not isinstance(self._ensemble, DataEnsemble):
            return f"{session.graph.shown(self._ensemble).name}.value"
        return self._storage(field)

    def _run(self, what: str, accessor: Callable[..., Any], *arguments: Any) -> Any:
        """Call an accessor with the net that runs, while no other thread's call does."""
        session = self._session()
        if session is None:
            raise LatteError(
                f"{what} of {self._ensemble!r}: the net is not compiled yet",
                location=user_location(),
                way_out="call net.compile() first",
            )
        with session.lock:
            return accessor(session, *arguments)

    def _get(self, session: Session, field: str, storage: str) -> np.ndarray:
        values = session.executable.read(storage)
        return np.zeros_like(values) if session.is_cleared(storage) else values

    def _view(self, session: Session, field: str, storage: str) -> np.ndarray:
        if field in body_ranges(self._ensemble):
            raise DataError(
                f"{storage} may be subscripts, which are checked when they are set: there is no view of them",
                location=user_location(),
                way_out=f"get_{field}() is a copy, set_{field}(array) sets it",
            )
        view = session.executable.view(storage)
        if session.executable.buffers[storage].role == "param_grad":
            session.settle_gradients()
            session.gradient_views = True
        if storage == f"{self._ensemble.name}.grad":
            session.seeds.view(self._ensemble)
        if storage == f"{self._ensemble.name}.value":
            session.given.add(self._ensemble.name)  # by whoever writes to the view
        return view

    def _set(self, session: Session, field: str, storage: str, values: Any) -> None:
        ensemble = self._ensemble
        what = f"{ensemble.name}.set_{field}"
        array = check_array(values, None, what)
        if field == "grad":
            check_fits(array, what)
            session.seed(session.graph.shown(ensemble), array)
            return
        executable = session.executable
        buffer = executable.buffer(storage)
        full = ensemble.fields()[field].shape if field in ensemble.fields() else buffer.shape
        needed = executable.shape(storage)
        if field == "value" and isinstance(ensemble, DataEnsemble) and array.shape == full:
            executable = session.use(session.batch_size)  # the batch before may have been a smaller one
            buffer, needed = executable.buffer(storage), full
        if buffer.role == "state" and array.shape == full:
            executable = session.whole  # the current batch may be a smaller one
            buffer, needed = executable.buffer(storage), full
        if buffer.role == "constant":
            raise DataError(
                f"{what}: {field} is a Constant, which the declaration gives",
                location=user_location(),
                way_out="declare a State for what changes",
            )
        check_array(array, needed, what)
        check_fits(array, what, buffer.dtype, body_ranges(ensemble).get(field))
        if field == "value":
            check_value(session.graph, ensemble, array)
            session.given.add(ensemble.name)
            if isinstance(ensemble, DataEnsemble):
                session.unchecked.add(ensemble.name)
        if buffer.role == "param_grad":
            session.settle_gradients()
        executable.write(storage, array)
