"""Residues of integer expressions: how far apart their values are, and how they are aligned."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from swirl.ir.affine import Affine, Ranges, affine
from swirl.ir.nest import Loop


@dataclass(frozen=True)
class Congruence:
    """All integers ``rest + k * step``; a step of 0 is one number, a step of 1 says nothing."""

    rest: int
    step: int

    def plus(self, other: Congruence) -> Congruence:
        return _reduced(self.rest + other.rest, gcd(self.step, other.step))

    def times(self, factor: int) -> Congruence:
        return _reduced(self.rest * factor, abs(self.step * factor))

    @property
    def divisor(self) -> int:
        """The greatest number that divides all of them; 0 where they are all 0."""
        return gcd(self.rest, self.step)


def _reduced(rest: int, step: int) -> Congruence:
    return Congruence(rest % step if step else rest, step)


def congruence(value: ast.expr | Affine, known: Mapping[str, Congruence], ranges: Ranges | None = None) -> Congruence:
    """The values that ``value`` may have, given those of its variables; nothing is known of other atoms (``//``,
    ``min``).

    Args:
        value: a quasi-affine expression.
        known: of its variables.
        ranges: of its variables; one of a single value is that number.
    """
    form = affine(value, ranges, fix=True) if isinstance(value, ast.expr) else value
    if form is None:
        return Congruence(0, 1)
    result = Congruence(form.constant, 0)
    for atom, coefficient in form.terms.items():
        result = result.plus(known.get(atom, Congruence(0, 1)).times(coefficient))
    return result


def of_loop(loop: Loop, known: Mapping[str, Congruence], ranges: Ranges | None = None) -> Congruence:
    """The values that a loop's variable may have."""
    return congruence(loop.start, known, ranges).plus(Congruence(0, abs(loop.step)))
