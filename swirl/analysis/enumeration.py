"""Counting integer points: how many iterations there are, and how many values an affine expression takes.

Domains of nests are boxes whose variables meet in few constraints (a tap clipped at a border: ``y`` and ``ky``). So
they are cut into groups of variables that meet; a single variable is counted in closed form, a group is enumerated with
NumPy. A group of more than :data:`LIMIT` points is bounded from above by its box, and marked as inexact.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from swirl.ir.affine import affine, loop_range
from swirl.ir.names import INDEX_CALLS, on_loops
from swirl.ir.nest import Loop, constant
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


Constraint = tuple[frozenset[str], ast.expr]
"""A condition on loop variables, and these variables."""


@dataclass(frozen=True)
class Domain:
    """The iterations of the loops around a statement.

    Args:
        loops: outer before inner.
        conditions: around the statement; those on data are ignored.
    """

    loops: tuple[Loop, ...]
    conditions: tuple[ast.expr, ...] = ()

    @cached_property
    def on_data(self) -> bool:
        """Whether a condition depends on more than loop variables."""
        names = {loop.var for loop in self.loops}
        return any(not on_loops(condition, names) for condition in self.conditions)

    @cached_property
    def boxes(self) -> Mapping[str, Values] | None:
        """Every value that each variable may take, whatever the others are; None where a bound is unknown."""
        ranges: dict[str, tuple[int, int]] = {}
        result = {}
        for loop in self.loops:
            found = loop_range(loop, ranges)
            if loop.var not in found:
                return None
            low, high = ranges[loop.var] = found[loop.var]
            start, step = constant(loop.start), abs(loop.step)
            if loop.extent is not None:
                first = start if loop.step > 0 else (start or 0) - step * (loop.extent - 1)
                result[loop.var] = Values(first or 0, step, loop.extent)
            elif start is not None and loop.step > 0:
                result[loop.var] = Values(start, step, max(0, -(-(high + 1 - start) // step)))
            else:
                result[loop.var] = Values(low, 1, high - low + 1)
        return result

    def constraints(self, around: Domain | None = None) -> list[Constraint]:
        """The conditions that make the domain smaller than a box, each with its variables; without those of a domain
        around."""
        outer_loops, outer_conditions = (0, 0) if around is None else (len(around.loops), len(around.conditions))
        found = [c for condition in self._conditions[outer_conditions:] for c in condition]
        return found + [c for bounds in self._bounds[outer_loops:] for c in bounds]

    @cached_property
    def _conditions(self) -> list[list[Constraint]]:
        names = {loop.var for loop in self.loops}
        return [[(frozenset(variables(c)), c)] if on_loops(c, names) else [] for c in self.conditions]

    @cached_property
    def _bounds(self) -> list[list[Constraint]]:
        """For each loop, what its bounds and its step say beyond a box."""
        result = []
        for loop in self.loops:
            found: list[ast.expr] = []
            if loop.extent is None:
                var = ast.Name(loop.var, ast.Load())
                low, high = (loop.start, loop.stop) if loop.step > 0 else (loop.stop, loop.start)
                first, last = (ast.LtE(), ast.Lt()) if loop.step > 0 else (ast.Lt(), ast.LtE())
                found.append(ast.Compare(low, [first, last], [var, high]))
                if abs(loop.step) != 1:
                    gap = ast.BinOp(ast.BinOp(var, ast.Sub(), loop.start), ast.Mod(), ast.Constant(abs(loop.step)))
                    found.append(ast.Compare(gap, [ast.Eq()], [ast.Constant(0)]))
            result.append([(frozenset(variables(condition)), condition) for condition in found])
        return result

    @cached_property
    def count(self) -> tuple[int, bool]:
        """Number of iterations, and whether it is exact (else it is at most that)."""
        boxes = self.boxes
        if boxes is None:
            return 0, False
        constraints = self.constraints()
        total, exact = 1, not self.on_data
        for group in grouped(boxes, [names for names, _ in constraints]):
            inside = [condition for names, condition in constraints if names & set(group)]
            if not inside:
                total *= prod(boxes[var].count for var in group)
                continue
            mask = satisfied({var: boxes[var] for var in group}, inside)
            if mask is None:
                total, exact = total * prod(boxes[var].count for var in group), False
            else:
                total *= int(np.count_nonzero(mask))
        for names, condition in constraints:
            if not names and not evaluate(condition, {}):  # decided: 3 < 2
                return 0, exact
        return total, exact


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
