"""What one thread of a process does at a time, as it changes what belongs to the whole process."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_LOCK = RLock()


def alone(function: Callable[P, R]) -> Callable[P, R]:
    """Compiling, in which threads take turns: recipes import modules anew, and isl has one context.

    It runs without Python's garbage collector, which looks through all trees again and again: a third of the time.
    Objects are still freed when they are dropped, except the few in reference cycles.
    """

    @wraps(function)
    def run(*arguments: P.args, **options: P.kwargs) -> R:
        with _LOCK:
            collects = gc.isenabled()
            gc.disable()
            try:
                return function(*arguments, **options)
            finally:
                if collects:
                    gc.enable()

    return run
