"""What surrounds statements: the loops and conditions of a block. Its iterations as ranges, as constraints for isl, and
counted."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from swirl.analysis.accesses import condition_template, template
from swirl.analysis.enumeration import Values, evaluate, grouped, satisfied, variables
from swirl.errors import ValidationError
from swirl.ir.affine import loop_range
from swirl.ir.names import INDEX_CALLS, on_loops
from swirl.ir.nest import Loop, constant
from swirl.ir.printing import unparse
from swirl.ir.trees import Guard, condition_of, names_in

Constraint = tuple[frozenset[str], ast.expr]
"""A condition on loop variables, and these variables."""


@dataclass(frozen=True)
class Domain:
    """The iterations of a block. All statements of a block share one: what it finds out, it keeps.

    Args:
        loops: around, outer before inner.
        guards: conditions around, outer before inner, each with whether it holds.
    """

    loops: tuple[Loop, ...] = ()
    guards: tuple[Guard, ...] = ()

    @cached_property
    def variables(self) -> frozenset[str]:
        """Those of the loops."""
        return frozenset(loop.var for loop in self.loops)

    @cached_property
    def guard_texts(self) -> tuple[str, ...]:
        """The conditions, as text."""
        return tuple(unparse(condition_of(guard)) for guard in self.guards)

    @cached_property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Least and greatest value of each loop variable, where known."""
        result: dict[str, tuple[int, int]] = {}
        for loop in self.loops:
            result |= loop_range(loop, result)
        return result

    @cached_property
    def grids(self) -> dict[str, tuple[int, int]]:
        """Where each loop variable starts, modulo its step, and the step; a step of 1 where the start is not
        constant."""
        result = {}
        for loop in self.loops:
            start = constant(loop.start)
            result[loop.var] = (0, 1) if start is None else (start % abs(loop.step), abs(loop.step))
        return result

    # --- for isl
    def subscript(self, node: ast.expr) -> str | None:
        """A subscript of a statement, for isl; None where it is not affine in the loops."""
        return template(node) if names_in(node) <= self.known else None

    def condition(self, node: ast.expr) -> str | None:
        """A condition of a statement, for isl; None where it depends on data, in an array or in a local."""
        return condition_template(node) if names_in(node) <= self.known else None

    def for_isl(self, suffix: str) -> list[str]:
        """Constraints on the iterations, every variable renamed with ``suffix``.

        Raises:
            ValidationError: the bounds of a loop are not quasi-affine.
        """
        return [constraint.replace("@", suffix) for constraint in self._for_isl]

    @cached_property
    def _for_isl(self) -> list[str]:
        constraints = []
        for loop in self.loops:
            start, stop = template(loop.start), template(loop.stop)
            if start is None or stop is None:
                raise ValidationError(f"the bounds of loop {loop.var} are not quasi-affine")
            var = loop.var + "@"
            constraints.append(f"{start} <= {var} < {stop}" if loop.step > 0 else f"{stop} < {var} <= {start}")
            if abs(loop.step) != 1:
                constraints.append(f"({var} - ({start})) mod {abs(loop.step)} = 0")
        return constraints + [known for known in self._guards_for_isl if known is not None]

    @cached_property
    def _guards_for_isl(self) -> list[str | None]:
        return [self.condition(condition_of(guard)) for guard in self.guards]

    @property
    def exact(self) -> bool:
        """Whether :meth:`for_isl` is all the iterations that run, and no others."""
        return None not in self._guards_for_isl

    @cached_property
    def known(self) -> frozenset[str]:
        """The names that isl accepts in a subscript or a condition."""
        return self.variables | INDEX_CALLS

    # --- counted
    @cached_property
    def on_data(self) -> bool:
        """Whether a condition depends on more than loop variables."""
        return any(not on_loops(test, self.variables) for test, _ in self.guards)

    @cached_property
    def boxes(self) -> Mapping[str, Values] | None:
        """Every value that each variable may take, whatever the others are; None where a bound is unknown."""
        result = {}
        for loop in self.loops:
            if loop.var not in self.ranges:
                return None
            low, high = self.ranges[loop.var]
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
        loops, guards = (0, 0) if around is None else (len(around.loops), len(around.guards))
        found = [constraint for conditions in self._conditions[guards:] for constraint in conditions]
        return found + [constraint for bounds in self._bounds[loops:] for constraint in bounds]

    @cached_property
    def _conditions(self) -> list[list[Constraint]]:
        conditions = map(condition_of, self.guards)
        return [[(frozenset(variables(c)), c)] if on_loops(c, self.variables) else [] for c in conditions]

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
        """Number of iterations, and whether it is exact (else it is at most that). Conditions on data are ignored; 0
        where a bound is unknown."""
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

    def count_of(self, loops: Sequence[Loop]) -> int:
        """Iterations of some of the loops; of all of them, where the bounds of these depend on the others."""
        some = Domain(tuple(loops), self.guards)
        return (some if some.boxes is not None else self).count[0]
