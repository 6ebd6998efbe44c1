"""Divisors, which tile sizes are."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """Those of a number, in order."""
    low = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return tuple(low + [number // each for each in reversed(low) if each * each != number])
