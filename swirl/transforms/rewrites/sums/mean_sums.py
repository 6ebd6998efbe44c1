"""Means: a sum of expressions over loops, divided by the number of them."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

from swirl.errors import Refused
from swirl.ir.affine import simplify_body
from swirl.ir.names import stored_in
from swirl.ir.nest import Nest, Program, names_in, substitute, variable_of
from swirl.ir.paths import Path, loops
from swirl.ir.polynomial import polynomial
from swirl.ir.printing import unparse
from swirl.ir.trees import as_value, name_of, nodes
from swirl.transforms.rewrites.blocks import block_at, is_float
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.loops.strips import plain_loop
from swirl.transforms.rewrites.sites import Site, loop_at
from swirl.transforms.rewrites.sums.sum_loops import Sum, sum_of, zeroing

Storing = ast.Assign | ast.AnnAssign | ast.AugAssign


@dataclass(frozen=True)
class Mean:
    """A mean: loops that add up data, or data divided by their number, and what divides the sum.

    Args:
        sum: the loops.
        add: the statement in them.
        data: what is added, but for a division by the number of terms.
        divide: the statement of the same block that makes the mean of the sum; None where each term is divided.
        value: what that statement stores.
        later: the statements after it, in its block.
    """

    sum: Sum
    add: ast.AugAssign
    data: ast.expr
    divide: Storing | None
    value: ast.expr
    later: Sequence[ast.stmt]

    @property
    def target(self) -> ast.expr:
        """Where the mean is stored."""
        if self.divide is None:
            return as_value(self.sum.target)
        return as_value(self.divide.targets[0] if isinstance(self.divide, ast.Assign) else self.divide.target)

    @property
    def first(self) -> ast.expr:
        """The first of the data."""
        data = substitute(self.sum.moving.written_out(self.data), {head.var: head.start for head in self.sum.heads})
        (simple,) = simplify_body([ast.Expr(data)])
        assert isinstance(simple, ast.Expr)
        return simple.value

    @property
    def subtracted(self) -> bool:
        """Whether a later statement of the block subtracts the mean."""
        mean = unparse(self.target)
        return any(
            isinstance(n, ast.BinOp) and isinstance(n.op, ast.Sub) and unparse(n.right) == mean
            for statement in self.later
            for n in nodes(statement)
        )


def mean_of(program: Program, site: Site, note: str) -> Mean:
    """The mean whose sum begins with the loop at ``site``.

    Args:
        note: beside the loop in a refusal.

    Raises:
        Refused: the loop does not add up one expression from zero, with constant bounds; or the sum is used before it
            is divided by the number of terms; or the terms change before that; or nothing subtracts the mean.
    """
    nest = program.nests[site.nest]
    plain_loop(nest, site.path, loop_at(program, site), note)
    found = sum_of(program, nest, loop_at(program, site))
    last = _innermost(loop_at(program, site))
    if found is None or not isinstance(last.op, ast.Add) or names_in(_data(found, last)) & found.moving.locals:
        raise refuse(
            f"the loops of {_var(program, site)} do not add up one expression",
            nest,
            site.path,
            note,
            way_out="distribute makes loops of one sum each",
        )
    text = unparse(found.target)
    if not found.count:
        raise refuse(
            f"the bounds of {_var(program, site)} or of a loop inside are not constant, or empty", nest, site.path, note
        )
    if not all(is_float(program, nest, part) for part in (found.target, last.value)):
        raise refuse(f"{text} or what is added to it is not in floating point", nest, site.path, note)
    block, position = block_at(nest, site.path), site.path[-1][1]
    if zeroing(block[:position], found.target) is None:
        raise refuse(
            f"{text} is not known to start at 0",
            nest,
            site.path,
            note,
            way_out=f"{text} = 0.0 belongs before the loop, in the same block",
        )
    return _divided(nest, site.path, found, last, block[position + 1 :], note)


def centred_means(program: Program, nest: int) -> list[tuple[str, int]]:
    """The loops of a nest with which sums for means begin that are subtracted later: the loop's name, and its number
    among the loops of that name."""
    found: list[tuple[str, int]] = []
    seen: Counter[str] = Counter()
    for path, node in loops(program.nests[nest].body):
        var = variable_of(node)
        with suppress(Refused):
            if sum_of(program, program.nests[nest], node) is not None:
                mean_of(program, Site(nest, path), "")
                found.append((var, seen[var]))
        seen[var] += 1
    return found


def _divided(nest: Nest, path: Path, found: Sum, add: ast.AugAssign, after: Sequence[ast.stmt], note: str) -> Mean:
    name, text, share = name_of(found.target), unparse(found.target), Fraction(1, found.count or 1)
    read = names_in(_data(found, add)) - {head.var for head in found.heads}
    mean: Mean | None = None
    if found.count != 1 and found.scale == share:
        mean = Mean(found, add, found.data, None, as_value(found.target), after)
    for number, statement in enumerate(after if mean is None else ()):
        if name in names_in(statement):
            value = _stored(statement)
            if value is not None and polynomial(value).terms == {(text,): share}:
                mean = Mean(found, add, add.value, statement, value, after[number + 1 :])  # type: ignore[arg-type]
                if unparse(mean.target) != text and any(name in names_in(other) for other in mean.later):
                    mean = None
            break
        if changed := read & set(stored_in([statement], declared=True)):
            raise refuse(
                f"{', '.join(sorted(changed))} changes before {text} is divided by the number of terms",
                nest,
                path,
                note,
                witness=unparse(statement).splitlines()[0],
            )
    if mean is None:
        raise refuse(
            f"{text} is not only divided by {found.count}, the number of its terms, in this block",
            nest,
            path,
            note,
            way_out=f"{text} = {text} / {found.count}.0 belongs after the loop",
        )
    if not mean.subtracted:
        raise refuse(
            f"nothing later in this block subtracts {unparse(mean.target)}",
            nest,
            path,
            note,
            way_out="a mean that nothing is centred by has its digits",
        )
    return mean


def _stored(statement: ast.stmt) -> ast.expr | None:
    """What a statement stores to one place."""
    if isinstance(statement, ast.AugAssign):
        return ast.BinOp(as_value(statement.target), statement.op, statement.value)
    return statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None


def _data(found: Sum, add: ast.AugAssign) -> ast.expr:
    return found.moving.written_out(add.value)


def _innermost(node: ast.stmt) -> ast.AugAssign:
    """The last statement of the innermost of some loops."""
    while isinstance(node, ast.For):
        node = node.body[-1]
    return node  # type: ignore[return-value]


def _var(program: Program, site: Site) -> str:
    return variable_of(loop_at(program, site))
