"""Counting integer points: sets of integers, and the values that an affine expression takes.

Domains of nests are boxes whose variables meet in few constraints (a tap clipped at a border: ``y`` and ``ky``). So
they are cut into groups of variables that meet; a single variable is counted in closed form, a group is enumerated with
NumPy. A group of more than :data:`LIMIT` points is bounded from above by its box, and marked as inexact.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from swirl.ir.affine import affine
from swirl.ir.names import INDEX_CALLS
from swirl.ir.operations import COMPARISONS, OPERATORS
from swirl.ir.printing import unparse
from swirl.ir.trees import fold, names_in

LIMIT = 1 << 21
"""Points enumerated at once."""


@dataclass(frozen=True)
class Values:
    """A set of integers: ``count`` of them from ``start`` on, ``step`` apart; or those in ``array``, ascending."""

    start: int = 0
    step: int = 1
    count: int = 0
    array: np.ndarray | None = None

    @classmethod
    def of(cls, array: np.ndarray) -> Values:
        """Those in an array."""
        found = np.unique(array)
        if found.size == 0:
            return cls()
        steps = np.diff(found)
        if found.size == 1 or (steps == steps[0]).all():
            return cls(int(found[0]), int(steps[0]) if found.size > 1 else 1, int(found.size))
        return cls(int(found[0]), 1, int(found.size), found)

    def listed(self) -> np.ndarray:
        return self.array if self.array is not None else self.start + self.step * np.arange(self.count)

    def plus(self, coefficient: int, other: Values) -> Values | None:
        """All sums of one of these and ``coefficient`` times one of the others; None if there are too many."""
        if coefficient == 0 or other.count == 0 or self.count == 0:
            return self
        if self.array is None and other.array is None:
            step, count = coefficient * other.step, other.count
            start = self.start + coefficient * other.start + (step * (count - 1) if step < 0 else 0)
            ours, theirs = (self.step, self.count), (abs(step), count)
            (small, few), (large, many) = sorted((ours, theirs)) if self.count > 1 else (theirs, (theirs[0], 1))
            if count == 1:
                return Values(start, self.step, self.count)
            if many == 1 or (large % small == 0 and large <= small * few):
                return Values(start, small, few + large // small * (many - 1))
        if self.count * other.count > LIMIT:
            return None
        return Values.of(np.add.outer(self.listed(), coefficient * other.listed()))

    def within(self, extent: int) -> Values:
        """Those from 0 to ``extent`` - 1."""
        if self.array is not None:
            return Values.of(self.array[(self.array >= 0) & (self.array < extent)])
        skipped = max(0, -(self.start // self.step)) if self.start < 0 else 0
        start = self.start + skipped * self.step
        count = max(0, min(self.count - skipped, -(-(extent - start) // self.step)))
        return Values(start, self.step, count)

    def in_lines(self, size: int, aligned: bool) -> Values:
        """The lines of so many numbers in which these are, a line beginning with 0; the greatest number of lines where
        one may begin anywhere, as these are not ``aligned``. More of them where there are too many to list."""
        if size == 1 or self.count == 0:
            return self
        if self.array is None and self.step <= size:
            span = self.step * (self.count - 1)
            first, last = self.start // size, (self.start + span) // size
            return Values(first, 1, last - first + 1 if aligned else -(-span // size) + 1)
        if self.array is None and (not aligned or self.step % size == 0 or self.count > LIMIT):
            return Values(self.start // size, max(1, self.step // size), self.count)  # each in a line of its own
        starts = [0] if aligned else range(size)
        return max((Values.of((self.listed() + start) // size) for start in starts), key=lambda found: found.count)

    def same(self, other: Values) -> bool:
        if self.array is None and other.array is None:
            return (self.start, self.count) == (other.start, other.count) and (
                self.count < 2 or self.step == other.step
            )
        return self.count == other.count and bool((self.listed() == other.listed()).all())

    def union(self, other: Values) -> Values:
        if self.same(other):
            return self
        if self.array is None and other.array is None and self.step == other.step == 1:
            first, second = sorted((self, other), key=lambda v: v.start)
            if second.start <= first.start + first.count:
                stop = max(first.start + first.count, second.start + second.count)
                return Values(first.start, 1, stop - first.start)
        return Values.of(np.concatenate([self.listed(), other.listed()]))

    def meets(self, other: Values) -> bool:
        if not self.count or not other.count:
            return False
        if self.array is None and other.array is None and self.step == other.step == 1:
            return self.start < other.start + other.count and other.start < self.start + self.count
        return bool(np.intersect1d(self.listed(), other.listed()).size)


def variables(node: ast.expr) -> set[str]:
    """The names in an expression, without those of functions."""
    return names_in(node) - INDEX_CALLS


def grouped(names: Iterable[str], together: Iterable[Iterable[str]]) -> list[list[str]]:
    """The names in groups: those named together are in one group."""
    groups = {name: [name] for name in names}
    for several in together:
        known = [name for name in several if name in groups]
        for name in known[1:]:
            first, second = groups[known[0]], groups[name]
            if first is not second:
                first += second
                for member in second:
                    groups[member] = first
    return list({id(group): group for group in groups.values()}.values())


def grid(boxes: Mapping[str, Values]) -> dict[str, np.ndarray] | None:
    """Each variable's values along a separate axis; None if the grid has too many points."""
    if prod(box.count for box in boxes.values()) > LIMIT:
        return None
    return {
        var: box.listed().reshape([-1 if other == place else 1 for other in range(len(boxes))])
        for place, (var, box) in enumerate(boxes.items())
    }


def satisfied(boxes: Mapping[str, Values], conditions: Sequence[ast.expr]) -> np.ndarray | None:
    """Where on the grid all conditions hold; None if it has too many points."""
    points = grid(boxes)
    if points is None:
        return None
    mask = np.ones([box.count for box in boxes.values()], bool)
    for condition in conditions:
        mask &= np.asarray(evaluate(condition, points), bool)  # a whole number is a condition, too
    return mask


def evaluate(node: ast.expr, points: Mapping[str, np.ndarray]) -> Any:
    """The values of a quasi-affine expression, or of a condition, at many points."""

    def values(node: ast.expr, parts: list[Any]) -> Any:
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name):
                return points[name]
            case ast.UnaryOp(op):
                return np.logical_not(parts[0]) if isinstance(op, ast.Not) else -parts[0]
            case ast.BinOp(_, op, _):
                return OPERATORS[type(op)].compute(*parts)
            case ast.Call(function):
                return reduce(np.minimum if unparse(function) == "min" else np.maximum, parts)
            case ast.BoolOp(op):
                return reduce(np.logical_and if isinstance(op, ast.And) else np.logical_or, parts)
        assert isinstance(node, ast.Compare)
        pairs = zip(node.ops, pairwise(parts), strict=True)
        return reduce(np.logical_and, [COMPARISONS[type(op)].compute(*sides) for op, sides in pairs])

    return fold(node, values)


def image(node: ast.expr, boxes: Mapping[str, Values]) -> Values | None:
    """All values of a quasi-affine expression over a box; variables that are not in it count as 0, and None means too
    many to say."""
    form = affine(node)
    if form is None:
        return None
    result: Values | None = Values(form.constant, 1, 1)
    terms = []
    for key, coefficient in form.terms.items():
        atom = form.atoms[key]
        if isinstance(atom, ast.Name):
            terms.append((coefficient, boxes.get(atom.id, Values(0, 1, 1))))
            continue
        own = {var: boxes.get(var, Values(0, 1, 1)) for var in sorted(variables(atom))}
        points = grid(own)
        if points is None:
            return None
        terms.append((coefficient, Values.of(np.asarray(evaluate(atom, points)))))
    for coefficient, values in sorted(terms, key=lambda term: abs(term[0]) * term[1].step):
        result = result.plus(coefficient, values) if result is not None else None
    return result
