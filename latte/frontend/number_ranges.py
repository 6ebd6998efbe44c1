"""Ranges of whole numbers, and what arithmetic and comparisons make of them."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable
from dataclasses import dataclass

from swirl.analysis.integers import LARGEST
from swirl.ir.operations import CALLS, COMPARISONS, FUNCTIONS, OPERATORS


@dataclass(frozen=True)
class Range:
    """What a whole number may be.

    Args:
        low, high: the least and the greatest value; infinite where it is not known.
    """

    low: float = -math.inf
    high: float = math.inf

    def __str__(self) -> str:
        return f"{_shown(self.low)} to {_shown(self.high)}"

    @property
    def fits(self) -> bool:
        """Whether 32 bits have what it is known to reach."""
        return not (-math.inf < self.low < -LARGEST - 1 or LARGEST < self.high < math.inf)

    @property
    def wrapped(self) -> Range:
        """In 32 bits: of any integer where one might not fit, as arithmetic wraps."""
        return self if self.low >= -LARGEST - 1 and self.high <= LARGEST else WHOLE

    def __neg__(self) -> Range:
        return Range(-self.high, -self.low)

    def __or__(self, other: Range) -> Range:
        """One or the other."""
        return Range(min(self.low, other.low), max(self.high, other.high))

    def both(self, other: Range) -> Range | None:
        """What is in both; None where they exclude each other."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Range(low, high) if low <= high else None

    def beyond(self, before: Range) -> tuple[float, float] | None:
        """How far both ends are from those of another range, where they are known in both or in neither; else None."""
        ends = ((before.low, self.low), (before.high, self.high))
        if any(math.isinf(old) != math.isinf(new) for old, new in ends):
            return None
        low, high = (0 if math.isinf(old) else new - old for old, new in ends)
        return low, high

    def shifted(self, step: tuple[float, float], times: int) -> Range:
        """The range with its ends moved so many times."""
        return Range(self.low + step[0] * times, self.high + step[1] * times)


ANY = Range()
TRUTH = Range(0, 1)
WHOLE = Range(-LARGEST - 1, LARGEST)
"""Of any integer."""


def combined(operation: ast.operator, one: Range, two: Range) -> Range:
    """The range of what an operation makes of two whole numbers."""
    known = OPERATORS.get(type(operation))
    return ANY if known is None else Range(*known.interval((one.low, one.high), (two.low, two.high)))


def of_call(name: str, given: Iterable[Range]) -> Range:
    """The range of what a function makes of whole numbers; floating-point numbers are rounded, and may be any."""
    if name not in CALLS or name in FUNCTIONS:
        return ANY
    return Range(*CALLS[name].interval(*((each.low, each.high) for each in given)))


def compared(operation: ast.cmpop, holds: bool, other: Range, *, swapped: bool = False) -> Range:
    """The range of a whole number for which ``number < other`` holds, or does not.

    Args:
        operation: the comparison.
        holds: whether it holds.
        other: what the number is compared with.
        swapped: whether the number is on the right side.
    """
    kind: type[ast.cmpop] = type(operation) if holds else COMPARISONS[type(operation)].opposite
    kind = COMPARISONS[kind].mirrored if swapped else kind
    if kind in (ast.Lt, ast.LtE):
        return Range(high=other.high - (kind is ast.Lt))
    if kind in (ast.Gt, ast.GtE):
        return Range(low=other.low + (kind is ast.Gt))
    return other if kind is ast.Eq else ANY


def _shown(end: float) -> str:
    if math.isinf(end):
        return "…"
    return f"{end:,}" if abs(end) < 10**15 else f"{'-' if end < 0 else ''}10**{len(str(abs(end))) - 1}"
