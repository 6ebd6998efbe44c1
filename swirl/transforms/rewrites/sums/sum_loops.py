"""Loops that add up one expression, for ``moments`` and ``shift_mean``."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from swirl.ir.names import stored_in, whole_scope
from swirl.ir.nest import Loop, Nest, Program, loop_of, names_in, substitute
from swirl.ir.polynomial import Polynomial, number, polynomial
from swirl.ir.printing import unparse
from swirl.ir.trees import name_of
from swirl.ir.types import dtype_of
from swirl.transforms.rewrites.values.loop_variance import Moving


@dataclass(frozen=True)
class Sum:
    """A perfect nest of loops that adds up one expression: ``target += scale * data``, which is ``target += whole``."""

    heads: tuple[Loop, ...]
    moving: Moving
    target: ast.expr
    data: ast.expr
    scale: Fraction
    whole: Polynomial
    dtype: str

    @property
    def count(self) -> int | None:
        """The iterations, where all bounds are constant."""
        return prod(head.extent or 0 for head in self.heads) if all(h.extent is not None for h in self.heads) else None

    def renamed(self, heads: Sequence[Loop]) -> ast.expr:
        """The data with the loop variables of another sum."""
        pairs = zip(self.heads, heads, strict=True)
        return substitute(self.data, {old.var: ast.Name(new.var, ast.Load()) for old, new in pairs})


def sum_of(program: Program, nest: Nest, node: ast.stmt) -> Sum | None:
    """The sum that a loop is; None where it is something else."""
    heads: list[Loop] = []
    outer = node
    while isinstance(node, ast.For):
        heads.append(loop_of(node))
        if heads[-1].kind != "range":
            return None
        if len(node.body) == 1 and isinstance(node.body[0], ast.For):
            node = node.body[0]
            continue
        break
    if not isinstance(node, ast.For) or not isinstance(outer, ast.For):
        return None
    *locals_, last = node.body
    add = isinstance(last, ast.AugAssign) and isinstance(last.op, (ast.Add, ast.Sub))
    if not add or not all(isinstance(statement, ast.AnnAssign) for statement in locals_):
        return None
    assert isinstance(last, ast.AugAssign)
    moving = Moving(outer)
    if any(unparse(s.target) not in moving.definitions for s in locals_ if isinstance(s, ast.AnnAssign)):
        return None
    if names_in(last.target) & {head.var for head in heads} or names_in(last.value) & moving.stored - moving.locals:
        return None
    data, scale = moving.written_out(last.value), Fraction(1)
    whole = polynomial(data)
    if isinstance(last.op, ast.Sub):
        data, whole = ast.UnaryOp(ast.USub(), data), -whole
    if len(whole.terms) == 1:  # a leading number belongs to the sum, not to the data
        ((monomial, scale),) = whole.terms.items()
        data = Polynomial({monomial: Fraction(1)}, whole.atoms).to_expr()
    dtype = dtype_of(last.target, whole_scope(nest, program.buffers))
    return Sum(tuple(heads), moving, last.target, data, scale, whole, dtype)


def zeroing(before: Sequence[ast.stmt], target: ast.expr) -> ast.Assign | ast.AnnAssign | None:
    """The last statement that stores to ``target``, or to an array that it is in, where that sets it to zero.

    Args:
        before: the statements of a block before a loop that adds to it.
    """
    for statement in reversed(before):
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            place = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            if unparse(place) == unparse(target):
                return statement if polynomial(statement.value) == number(0) else None
        if name_of(target) in stored_in([statement], declared=True):
            return None
    return None
