"""How far arrays are from each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

TOLERANCE = 1e-5
"""Relative to the largest value in a buffer: a hundred roundings of float32, for sums in another order."""


@dataclass(frozen=True)
class Difference:
    """How far one buffer is from another one of the same shape.

    Args:
        name: of the buffer.
        largest: difference of two elements; infinite where only one of them is a number.
        scale: largest magnitude in the first buffer.
        same_bits: whether all elements are equal (any NaN equals any other).
        count: of elements that differ by more than the tolerance.
        first: index of the first one of these, or None.
        values: the two values there.
    """

    name: str
    largest: float
    scale: float
    same_bits: bool
    count: int = 0
    first: tuple[int, ...] | None = None
    values: tuple[float, float] = (0.0, 0.0)

    def __str__(self) -> str:
        if self.same_bits:
            return f"{self.name}: the same bits"
        if self.first is None:
            return f"{self.name}: largest difference {self.largest:.3g}, of values up to {self.scale:.3g}"
        return (
            f"{self.name}{list(self.first)}: {self.values[0]!r} and {self.values[1]!r}; "
            f"{self.count} elements differ, by up to {self.largest:.3g}, of values up to {self.scale:.3g}"
        )


def differences(
    first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray], tolerance: float = TOLERANCE
) -> Iterator[Difference]:
    """The difference of every buffer of ``first`` from that of ``second``."""
    for name, left in first.items():
        right = second[name]
        a, b = left.astype(np.float64), right.astype(np.float64)
        finite = np.abs(a[np.isfinite(a)])
        scale = float(finite.max()) if finite.size else 0.0
        with np.errstate(all="ignore"):
            equal = (a == b) | (np.isnan(a) & np.isnan(b))
            distances = np.where(equal, 0.0, np.abs(a - b))
        distances[np.isnan(distances)] = np.inf
        largest = float(distances.max()) if distances.size else 0.0
        wrong = distances > tolerance * scale
        if not wrong.any():
            yield Difference(name, largest, scale, bool(equal.all()))
            continue
        where = tuple(int(index) for index in np.argwhere(wrong)[0])
        values = (float(left[where]), float(right[where]))
        yield Difference(name, largest, scale, False, int(wrong.sum()), where, values)
