"""Views of blocked buffers: arrays of the logical shape that stand for storage of another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from weakref import ReferenceType, ref

import numpy as np

from swirl.ir.buffers import Buffer


class BlockedViews:
    """The arrays that users hold for storage without a view of the logical shape: packed before phases run, unpacked
    after.

    An array is kept up to date as long as it, or a part of it, is held. There is one object for all batch sizes of a
    net: their parameters are the same storage.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[np.ndarray, Buffer, ReferenceType[np.ndarray]]] = {}

    def view(self, storage: np.ndarray, buffer: Buffer) -> np.ndarray:
        """The array that stands for ``storage``: the same one for as long as it is held."""
        for known, _, held in self._alive():
            if known is storage:
                return held
        made = buffer.layout.unpack(storage, buffer.shape)
        self._held[id(storage)] = (storage, buffer, ref(made))
        return made

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

    def _alive(self) -> list[tuple[np.ndarray, Buffer, np.ndarray]]:
        alive = []
        for key, (storage, buffer, reference) in list(self._held.items()):
            held = reference()
            if held is None:
                del self._held[key]
            else:
                alive.append((storage, buffer, held))
        return alive
