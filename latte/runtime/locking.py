"""Calls of several threads to one net wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar


class Locked(Protocol):
    """What only one thread at a time may use; that thread may take its lock again."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held while it is used."""


S = TypeVar("S", bound=Locked)
P = ParamSpec("P")
T = TypeVar("T")


def one_at_a_time(function: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """``function``, which holds the lock of its first argument for the whole of a call."""

    @wraps(function)
    def waiting(locked: S, /, *arguments: P.args, **options: P.kwargs) -> T:
        with locked.lock:
            return function(locked, *arguments, **options)

    return waiting
