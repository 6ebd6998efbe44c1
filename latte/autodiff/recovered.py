"""Forward values that are divided in place later: backward multiplies the quotient by the divisor."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import numpy as np

from latte.autodiff.adjoint_terms import is_call, same
from latte.autodiff.uses import Use, use_of
from latte.autodiff.values import Values, stores
from swirl.analysis.coverage import touched_again
from swirl.analysis.dependences import touched_once
from swirl.analysis.statements import Statement
from swirl.ir.buffers import DTYPES
from swirl.ir.nest import expr, names_in, substitute
from swirl.ir.trees import as_value, name_of


def divided_later(values: Values, statement: ast.stmt, target: ast.expr) -> ast.expr | None:
    """The value that ``e[…] = exp(…)`` has computed, or a local that is stored there: ``e[…] * d[…]``, where ``e[…] =
    e[…] / d[…]`` alone changes it later, each element once, as in a softmax. Its derivative is the value itself, so
    that what the exponential is of need not be kept, nor the exponential computed again. None where it is not so.

    A divisor that overflowed counts as the greatest number: the quotient is zero, and so is the gradient. What the
    division has rounded to zero, or to fewer digits, has gradients as small.
    """
    stored = _stored(values, statement, target)
    if stored is None:
        return None
    site, target = stored
    written = use_of(target, "write", site)
    later = [w for w in values.writes if w.name == written.name and w.site is not site and written.meets_later(w)]
    if len(later) != 1 or not touched_once(site, written.access, site.loops):
        return None
    (again,) = later
    divisor = _divisor(again)
    if divisor is None or again.meets_later(written) or not values.stays(divisor, again.site):
        return None
    names = [index.id for index in again.indices if isinstance(index, ast.Name)]
    if len(set(names)) != len(again.indices):
        return None
    subscript_of = dict(zip(names, written.indices, strict=True))
    local = isinstance(divisor, ast.Name) or name_of(divisor) in values.declared
    if local and not _of_this_iteration(values, name_of(divisor), site, subscript_of):
        return None
    if not touched_again(site, written.access, again.site, again.access):
        return None
    there = values.value(divisor, again.site)  # a local: computed again, or kept
    if not set(again.site.variables()) & names_in(there) <= set(names):
        return None
    greatest = float(np.finfo(DTYPES[values.dtype(written.name)]).max)
    parts = {"e": as_value(target), "d": substitute(there, subscript_of), "m": ast.Constant(greatest)}
    return expr("e * min(d, m)", **parts)


def _stored(values: Values, statement: ast.stmt, target: ast.expr) -> tuple[Statement, ast.expr] | None:
    """The statement that stores an exponential in an array, and the element."""
    if (
        not isinstance(statement, (ast.Assign, ast.AnnAssign))
        or not statement.value
        or not _exponential(statement.value)
    ):
        return None
    site = values.sites[id(statement)]
    if not isinstance(target, ast.Name):
        return None if name_of(target) in values.declared else (site, target)
    if not values.stays(target, site):
        return None
    found = stores(target.id, values.block_at(site.path))
    return next(
        ((values.sites[id(s)], element) for s, element in found if name_of(element) not in values.declared), None
    )


def _of_this_iteration(values: Values, local: str, site: Statement, subscript_of: Mapping[str, ast.expr]) -> bool:
    """Whether what a statement in ``local``'s block divides by it was stored by ``site`` in the same iteration.

    Args:
        subscript_of: loop of the division → the subscript at ``site`` of what it moves.
    """
    home = values.declared.get(local)
    if home is None:
        return False  # a loop's variable
    inside = site.path[: len(home.path) - 1] == home.path[:-1]
    return inside and all(
        var in subscript_of and same(subscript_of[var], ast.Name(var, ast.Load())) for var in home.variables()
    )


def _exponential(node: ast.expr) -> bool:
    """Whether a value is an exponential, maybe where a condition holds."""
    return is_call(node, "exp") or isinstance(node, ast.IfExp) and any(map(_exponential, (node.body, node.orelse)))


def _divisor(use: Use) -> ast.Name | ast.Subscript | None:
    """What a statement divides the element by that it writes, under no condition; None where it does something else."""
    node = use.site.node
    if use.site.guards or not isinstance(node, ast.Assign) or not isinstance(node.value, ast.BinOp):
        return None
    divides, divisor = isinstance(node.value.op, ast.Div) and same(node.value.left, node.targets[0]), node.value.right
    return divisor if divides and isinstance(divisor, (ast.Name, ast.Subscript)) else None
