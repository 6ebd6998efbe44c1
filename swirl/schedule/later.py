"""Sequences and mappings that are made when somebody looks: of what is kept on disk, most is never looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeVar, overload

K = TypeVar("K")
T = TypeVar("T", covariant=True)


class Later(Sequence[T]):
    """A sequence.

    Args:
        make: it.
    """

    def __init__(self, make: Callable[[], Sequence[T]]):
        self._make = make

    @cached_property
    def _made(self) -> Sequence[T]:
        return self._make()

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._made[index]

    def __len__(self) -> int:
        return len(self._made)


class LaterMapping(Mapping[K, T]):
    """A mapping whose keys are known.

    Args:
        keys: in their order.
        make: the value of a key.
    """

    def __init__(self, keys: Sequence[K], make: Callable[[K], T]):
        self._keys, self._make = dict.fromkeys(keys), make
        self._known: dict[K, T] = {}

    def __getitem__(self, key: K) -> T:
        if key not in self._known:
            if key not in self._keys:
                raise KeyError(key)
            self._known[key] = self._make(key)
        return self._known[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
