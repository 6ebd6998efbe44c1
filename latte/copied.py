"""Copies and pickles of nets."""

from __future__ import annotations

import copy
from typing import Any

from latte.compiling import session_elsewhere
from latte.model.graph import Graph
from latte.model.source_location import user_location
from latte.runtime.accessors import Accessors
from latte.runtime.copying import Progress, go_on, progress
from latte.runtime.pickling import restored, to_bytes
from latte.runtime.session import Session
from swirl.errors import TrainingError


class Copied:
    """What copies and pickles of a net have: its declaration, compiled as it is, and what it has learned."""

    graph: Graph
    _session: Session | None
    _asked: tuple[str | None, int | None]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """The same declaration, compiled as this one is, with what it has learned, its data and gradients."""
        memo[id(self)] = made = type(self).__new__(type(self))
        attributes, there = self._state(with_data=True)
        made.__setstate__((copy.deepcopy(attributes, memo), there))
        return made

    def __reduce__(self) -> Any:
        """The declaration, with the sources of what cannot be imported, and what the net has learned."""
        return restored, (to_bytes((type(self), self._state(with_data=False))),)

    def __copy__(self) -> Any:
        raise TrainingError(
            "two nets cannot share their layers", location=user_location(), way_out="copy.deepcopy(net)"
        )

    def _state(self, *, with_data: bool) -> tuple[dict[str, Any], Progress | None]:
        attributes = {name: value for name, value in self.__dict__.items() if name != "_session"}
        return attributes, None if self._session is None else progress(self._session, with_data=with_data)

    def __setstate__(self, state: tuple[dict[str, Any], Progress | None]) -> None:
        """Be a net with these attributes, compiled and trained as far as another one."""
        attributes, there = state
        self.__dict__.update(attributes, _session=None)
        for ensemble in self.graph.ensembles:
            ensemble.accessor = Accessors(ensemble, lambda: self._session)
        if there is not None:
            self._session = session_elsewhere(self.graph, *self._asked)
            go_on(self._session, there)
