"""The bounds of loops in another order, by projection: a triangle has one whichever loop is outermost."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace

import islpy as isl

from swirl.analysis.isl_notation import to_isl
from swirl.analysis.sets import limited, set_of
from swirl.ir.affine import Ranges, simplify
from swirl.ir.nest import Loop, expr, substitute
from swirl.ir.printing import unparse

MOST_BOUNDS = 4
"""The most arguments of a ``min`` or ``max`` in a bound that is made here."""


def projected(chain: Sequence[Loop], order: Sequence[str], around: Sequence[Loop], ranges: Ranges) -> list[Loop] | None:
    """Perfectly nested loops in another order, over exactly the same points; None if bounds in the grammar cannot
    describe it.

    rewrite:
        for i in range(5):                      for j in range(5):
            for j in range(i + 1):      →           for i in range(j, 5):

    Args:
        chain: the loops as they are, outermost first.
        order: their variables in the new order.
        around: the loops around them; of those with other steps than 1, only the bounds count.
        ranges: of the variables of ``around``.

    Raises:
        NotProved: the projection takes too much work.
    """
    if any(loop.step != 1 or loop.kind not in ("range", "parallel") for loop in chain):
        return None
    outer = [loop.var for loop in around]
    names = [loop.var for loop in chain]
    with limited() as context:
        # Variables are numbered: isl has words of its own.
        numbered = {var: f"v{number}" for number, var in enumerate([*outer, *names])}
        whole = _set(context, numbered, [*outer, *order], [*around, *chain])
        if whole is None:
            return None
        by_name = {loop.var: loop for loop in chain}
        if whole.is_empty():
            return [replace(by_name[var], start=expr(0), stop=expr(0)) for var in order]
        back = {number: var for var, number in numbered.items()}
        found: list[Loop] = []
        for position, var in enumerate(order):
            fixed = len(outer) + position
            outside = _set(context, numbered, [*outer, *order[:position]], [*around, *found])
            assert outside is not None
            outside = outside.move_dims(isl.dim_type.param, 0, isl.dim_type.set, 0, fixed).params()
            part = whole.project_out(isl.dim_type.set, fixed + 1, len(order) - position - 1)
            part = part.move_dims(isl.dim_type.param, 0, isl.dim_type.set, 0, fixed)
            ends = _ends(part.coalesce(), outside, back)
            if ends is None:
                return None
            start, stop = (simplify(end, ranges) for end in ends)
            found.append(replace(by_name[var], start=start, stop=stop))
        again = _set(context, numbered, [*outer, *order], [*around, *found])
        return found if again is not None and again.is_equal(whole) else None


def _set(
    context: isl.Context, numbered: Mapping[str, str], dims: Sequence[str], loops: Sequence[Loop]
) -> isl.Set | None:
    """The values that the variables ``dims`` of loops take; None where a bound is not quasi-affine."""
    mapping: dict[str, ast.expr] = {var: ast.Name(number, ast.Load()) for var, number in numbered.items()}
    parts = []
    for loop in loops:
        ends = [to_isl(substitute(bound, mapping)) for bound in (loop.start, loop.stop)]
        if None in ends:
            return None
        var = numbered[loop.var]
        low, high = (ends[0], ends[1]) if loop.step > 0 else (f"{ends[1]} + 1", f"{ends[0]} + 1")
        parts.append(f"{low} <= {var} < {high}")
    text = f"{{ [{', '.join(numbered[var] for var in dims)}] : {' and '.join(parts or ['1 = 1'])} }}"
    return set_of(context, text)


def _ends(part: isl.Set, outside: isl.Set, back: Mapping[str, str]) -> tuple[ast.expr, ast.expr] | None:
    """Where the one variable of a set starts and stops, as the greatest of its lower bounds and the least
    of its upper ones; None if these are too many, or not whole. The caller checks whether they are exact.

    Args:
        part: of one variable, given parameters.
        outside: the parameters' values.
    """
    lower: dict[str, ast.expr] = {}
    upper: dict[str, ast.expr] = {}
    known = part.gist_params(outside).coalesce()  # often one convex set, where the whole is several
    if known.n_basic_set() > 1:
        known = isl.Set.from_basic_set(part.convex_hull()).gist_params(outside)
    (needed,) = known.get_basic_sets()
    for bound in needed.remove_redundancies().get_constraints():
        if not bound.involves_dims(isl.dim_type.set, 0, 1):
            continue  # of the parameters alone
        ends = [(lower, 0)] if bound.is_equality() or bound.is_lower_bound(isl.dim_type.set, 0) else []
        ends += [(upper, 1)] if bound.is_equality() or bound.is_upper_bound(isl.dim_type.set, 0) else []
        for found, more in ends:
            value = bound.get_bound(isl.dim_type.set, 0)
            made = _expression(value.floor() if more else value.ceil(), back)
            if made is None:
                return None
            found[unparse(made)] = simplify(expr("made + more", made=made, more=more))
    if not 1 <= len(lower) <= MOST_BOUNDS or not 1 <= len(upper) <= MOST_BOUNDS:
        return None
    return _extremum("max", list(lower.values())), _extremum("min", list(upper.values()))


def _extremum(name: str, values: list[ast.expr]) -> ast.expr:
    return values[0] if len(values) == 1 else ast.Call(ast.Name(name, ast.Load()), values, [])


def _expression(value: isl.Aff, back: Mapping[str, str]) -> ast.expr | None:
    """isl's affine expression of parameters, with divisions rounded down; None where it is a fraction."""
    if value.get_denominator_val().to_python() != 1:
        return None
    result = expr(value.get_constant_val().to_python())
    terms: list[tuple[int, ast.expr]] = []
    for position in range(value.dim(isl.dim_type.param)):
        factor = value.get_coefficient_val(isl.dim_type.param, position).to_python()
        name = value.get_dim_name(isl.dim_type.param, position)
        assert name is not None
        terms.append((factor, ast.Name(back[name], ast.Load())))
    for position in range(value.dim(isl.dim_type.div)):
        factor = value.get_coefficient_val(isl.dim_type.div, position).to_python()
        if factor:
            quotient = value.get_div(position)
            divisor = quotient.get_denominator_val().to_python()
            whole = _expression(quotient.scale_val(isl.Val.int_from_si(value.get_ctx(), divisor)), back)
            if whole is None:
                return None
            terms.append((factor, expr("whole // divisor", whole=whole, divisor=divisor)))
    for factor, term in terms:
        if factor:
            result = expr("sum + factor * term", sum=result, factor=expr(factor), term=term)
    return result
