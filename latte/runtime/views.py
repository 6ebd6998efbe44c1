"""Views of buffers: arrays of the logical shape that are their storage, or stand for storage of another shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from weakref import ref

import numpy as np

from swirl.ir.buffers import Buffer


class Views:
    """The arrays that users hold for storage. Where storage has no view of the logical shape, as of blocks, an array
    stands for it: packed before phases run, unpacked after.

    Such an array is kept up to date as long as it, or a part of it, is held. There is one object for all batch sizes of
    a net: their parameters are the same storage.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[np.ndarray, Buffer, Callable[[], np.ndarray | None]]] = {}
        self._plain: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def view(self, storage: np.ndarray, buffer: Buffer) -> np.ndarray:
        """The view of ``storage``; or the array that stands for it, the same one for as long as it is held."""
        held = self._standing_for(storage)
        if held is not None:
            return held
        view = buffer.layout.view(storage, buffer.shape)
        if view is not None:
            self._plain[id(storage)] = storage, view
            return view
        made = buffer.layout.unpack(storage, buffer.shape)
        self._held[id(storage)] = (storage, buffer, ref(made))
        return made

    def follow(self, others: Views, places: Mapping[int, tuple[np.ndarray, Buffer]]) -> None:
        """Let what users hold of the storage of another variant of a net show that of this one, too.

        Args:
            others: of the other variant.
            places: identity of its storage → the storage of this one that has taken its place, and its buffer.
        """
        for storage, _, held in others._alive():
            if id(storage) in places:
                self._let_stand(places[id(storage)], ref(held))
        for storage, view in others._plain.values():
            place = places.get(id(storage))
            if place is None or place[0] is storage:
                self._plain[id(storage)] = storage, view
            else:  # nobody can tell how long a plain view is held: for as long as this is used
                self._let_stand(place, partial(_itself, view))

    def _let_stand(self, place: tuple[np.ndarray, Buffer], held: Callable[[], np.ndarray | None]) -> None:
        storage, buffer = place
        if self._standing_for(storage) is None:
            self._held[id(storage)] = (storage, buffer, held)

    def in_storage(self) -> AbstractContextManager[None]:
        """Inside the context the storage has what was written to views; afterwards the views have what is written to
        it."""
        return self._in_storage() if self._held else nullcontext()

    @contextmanager
    def _in_storage(self) -> Iterator[None]:
        for storage, buffer, held in self._alive():
            storage[...] = buffer.layout.pack(held)
        try:
            yield
        finally:
            for storage, buffer, held in self._alive():
                held[...] = buffer.layout.unpack(storage, buffer.shape)

    def _standing_for(self, storage: np.ndarray) -> np.ndarray | None:
        """The array that stands for ``storage``, if one is held."""
        return next((held for known, _, held in self._alive() if known is storage), None)

    def _alive(self) -> list[tuple[np.ndarray, Buffer, np.ndarray]]:
        alive = []
        for key, (storage, buffer, reference) in list(self._held.items()):
            held = reference()
            if held is None:
                del self._held[key]
            else:
                alive.append((storage, buffer, held))
        return alive


def _itself(view: np.ndarray) -> np.ndarray:
    return view
