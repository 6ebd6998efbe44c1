"""Means: a sum of expressions over loops, divided by the number of them."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction

from swirl.errors import Refused
from swirl.ir.affine import simplify_body
from swirl.ir.names import stored_in, whole_scope
from swirl.ir.nest import Nest, Program, names_in, substitute, variable_of
from swirl.ir.paths import Path, loops
from swirl.ir.polynomial import polynomial
from swirl.ir.printing import unparse
from swirl.ir.trees import as_value, name_of, nodes
from swirl.transforms.rewrites.blocks import block_at, floating
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
        divide: the statement of the same block that makes the mean of the sum; None where each term is divided, or
            where the mean is written as a quotient wherever it is used.
        value: what that statement stores, or the quotient.
        later: the statements after it, in its block.
        used: whether the sum is used for something else than the mean.
    """

    sum: Sum
    add: ast.AugAssign
    data: ast.expr
    divide: Storing | None
    value: ast.expr
    later: Sequence[ast.stmt]
    used: bool

    @property
    def target(self) -> ast.expr:
        """Where the mean is stored, or what it is written as."""
        if self.divide is None:
            return self.value
        return as_value(self.divide.targets[0] if isinstance(self.divide, ast.Assign) else self.divide.target)

    @property
    def negated(self) -> bool:
        """Whether the data are subtracted from zero: it is minus the mean, and what is centred has it added."""
        return isinstance(self.add.op, ast.Sub)

    @property
    def written_out(self) -> bool:
        """Whether the mean is a quotient wherever it is used."""
        return self.divide is None and unparse(self.value) != unparse(self.sum.target)

    def is_mean(self, node: ast.AST) -> bool:
        """Whether an expression is the mean."""
        if self.written_out:
            return _is_quotient(node, unparse(self.sum.target), self.sum.count or 1)
        return isinstance(node, ast.expr) and unparse(node) == unparse(self.target)

    @property
    def first(self) -> ast.expr:
        """The first of the data."""
        data = substitute(self.sum.moving.written_out(self.data), {head.var: head.start for head in self.sum.heads})
        (simple,) = simplify_body([ast.Expr(data)])
        assert isinstance(simple, ast.Expr)
        return simple.value

    @property
    def subtracted(self) -> bool:
        """Whether a later statement of the block subtracts the mean, or adds one that is negated."""
        return any(
            isinstance(n, ast.BinOp)
            and isinstance(n.op, ast.Add if self.negated else ast.Sub)
            and (self.is_mean(n.right) or (self.negated and self.is_mean(n.left)))
            for statement in self.later
            for n in nodes(statement)
        )


def mean_of(program: Program, site: Site, note: str) -> Mean:
    """The mean whose sum begins with the loop at ``site``.

    Args:
        note: beside the loop in a refusal.

    Raises:
        Refused: the loop does not add up one expression from zero, with constant bounds; or the sum is not divided by
            the number of terms where it is used first; or the terms change before that; or nothing subtracts the mean.
    """
    nest = program.nests[site.nest]
    plain_loop(nest, site.path, loop_at(program, site), note)
    found = sum_of(program, nest, loop_at(program, site))
    last = _innermost(loop_at(program, site))
    if found is None or names_in(_data(found, last)) & found.moving.locals:
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
    scope = whole_scope(nest, program.buffers)
    if not all(floating(part, scope) for part in (found.target, last.value)):
        raise refuse(f"{text} or what is added to it is not in floating point", nest, site.path, note)
    block, position = block_at(nest, site.path), site.path[-1][1]
    zero = zeroing(block[:position], found.target)
    if zero is None:
        raise refuse(
            f"{text} is not known to start at 0",
            nest,
            site.path,
            note,
            way_out=f"{text} = 0.0 belongs before the loop, in the same block",
        )
    outlives = not isinstance(zero, ast.AnnAssign)  # a buffer, or declared in a block around
    return _divided(nest, site.path, found, last, block[position + 1 :], outlives, note)


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


def _divided(
    nest: Nest, path: Path, found: Sum, add: ast.AugAssign, after: Sequence[ast.stmt], outlives: bool, note: str
) -> Mean:
    name, text, count = name_of(found.target), unparse(found.target), found.count or 1
    read = names_in(_data(found, add)) - {head.var for head in found.heads}
    mean: Mean | None = None
    if count != 1 and _is_share(found.scale, count):
        mean = Mean(found, add, found.data, None, as_value(found.target), after, False)
    for number, statement in enumerate(after if mean is None else ()):
        if name in names_in(statement):
            value, later = _stored(statement), after[number + 1 :]
            if value is not None and _is_quotient(value, text, count):
                mean = Mean(found, add, add.value, statement, value, later, False)  # type: ignore[arg-type]
                if unparse(mean.target) != text:
                    mean = replace(mean, used=outlives or any(name in names_in(s) for s in later))
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
        mean = _written_out(found, add, after, outlives)
    if mean is None:
        raise refuse(
            f"{text} is not divided by {found.count}, the number of its terms, in this block",
            nest,
            path,
            note,
            way_out=f"{text} = {text} / {found.count}.0 belongs after the loop",
        )
    if not mean.subtracted:
        raise refuse(
            f"nothing later in this block {'adds' if mean.negated else 'subtracts'} {unparse(mean.target)}",
            nest,
            path,
            note,
            way_out="a mean that nothing is centred by has its digits",
        )
    return mean


def _written_out(found: Sum, add: ast.AugAssign, after: Sequence[ast.stmt], outlives: bool) -> Mean | None:
    """The mean that is a quotient in later statements, none of which changes the sum; None where there is none."""
    name, text, count = name_of(found.target), unparse(found.target), found.count or 1
    if name in stored_in(after, declared=True):
        return None
    quotients = [n for statement in after for n in nodes(statement) if _is_quotient(n, text, count)]
    if not quotients:
        return None
    uses = sum(isinstance(n, ast.Name) and n.id == name for statement in after for n in nodes(statement))
    quotient = quotients[0]
    assert isinstance(quotient, ast.expr)
    return Mean(found, add, add.value, None, quotient, after, outlives or uses > len(quotients))


def _is_quotient(node: ast.AST, text: str, count: int) -> bool:
    """Whether an expression divides ``text`` by ``count``, or multiplies it by the rounded reciprocal."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Div, ast.Mult)):
        return False
    terms = polynomial(node).terms
    return set(terms) == {(text,)} and _is_share(terms[(text,)], count)


def _is_share(scale: Fraction, count: int) -> bool:
    """Whether it is ``1 / count``, up to the rounding of a float32: a literal has been rounded."""
    return abs(scale * count - 1) <= Fraction(1, 2**24)


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
