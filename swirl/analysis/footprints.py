"""The part of a buffer that a loop reads: in each dimension its start, in terms of the loops around, and its extent."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import islpy as isl

from swirl.analysis.accesses import Access
from swirl.analysis.sets import limited, set_of
from swirl.analysis.statements import Statement
from swirl.ir.affine import Affine, affine
from swirl.ir.buffers import Buffer
from swirl.ir.nest import names_in
from swirl.ir.spelling import text_in_ascii


@dataclass(frozen=True)
class Span:
    """Consecutive subscripts of one dimension: ``extent`` of them from ``start`` on."""

    start: Affine
    extent: int


def footprint(reads: Sequence[tuple[Statement, Access]], buffer: Buffer, outer: Sequence[str]) -> list[Span] | None:
    """The smallest box around the elements that accesses touch in one iteration of the loops ``outer``; None where no
    instance of them runs.

    The box starts where a subscript does as far as it moves with ``outer``: at ``y_outer * 4 - 1`` for
    ``x[y_outer * 4 + y_inner + ky - 1]``. It may reach beyond the buffer where a statement reads under a select.

    Raises:
        NotProved: the question took more work than is allowed.
    """
    rank = len(buffer.shape)
    if all(extremes(statement, "0") is None for statement, _ in reads):
        return None
    spans = []
    for dimension in range(rank):
        indices = [(s, access.indices[len(access.indices) - rank + dimension]) for s, access in reads]
        spans.append(_span(indices, *buffer.layout.readable(buffer.shape)[dimension], set(outer)))
    return spans


def _span(indices: Sequence[tuple[Statement, ast.expr]], low: int, high: int, outer: set[str]) -> Span:
    """The subscripts of one dimension; all from ``low`` up to ``high`` where one is not affine in the loops."""
    whole = Span(Affine(constant=low), high - low)
    found: list[Span] = []
    forms = [affine(index) for _, index in indices]
    starts = {"": Affine()} | {str(m): m for m in (_moving(form, outer) for form in forms if form is not None)}
    for start in starts.values():
        least: int | None = None
        most = 0
        for (statement, _), form in zip(indices, forms, strict=True):
            text = None if form is None else statement.subscript(form.add(start, -1).to_expr())
            if text is None:
                return whole
            ends = extremes(statement, text)
            if ends is not None:
                least, most = ends if least is None else (min(least, ends[0]), max(most, ends[1]))
        if least is not None:
            found.append(Span(start.add(Affine(constant=least)), most - least + 1))
    return min(found, key=lambda span: span.extent)


def _moving(form: Affine, outer: set[str]) -> Affine:
    """The terms of a subscript that only the loops ``outer`` move."""
    terms = {key: c for key, c in form.terms.items() if names_in(form.atoms[key]) - {"min", "max"} <= outer}
    return Affine(terms, 0, {key: form.atoms[key] for key in terms})


def extremes(statement: Statement, text: str, constraints: Sequence[str] = ()) -> tuple[int, int] | None:
    """Least and greatest value of an expression over the instances of a statement that satisfy ``constraints`` (both
    as :func:`swirl.analysis.statements.template` makes them); None where there are none.

    Raises:
        NotProved: the question took more work than is allowed.
    """
    names = ["value", *(f"{var}_" for var in statement.variables())]
    parts = [part.replace("@", "_") for part in (f"value = {text}", *statement.domain("@"), *constraints)]
    return _extremes(", ".join(names), " and ".join(parts))


@lru_cache(maxsize=4096)
def _extremes(names: str, condition: str) -> tuple[int, int] | None:
    with limited() as context:
        points = set_of(context, f"{{ [{names}] : {condition} }}")
        if points.is_empty():
            return None
        value = isl.Aff.read_from_str(context, text_in_ascii(f"{{ [{names}] -> [value] }}"))
        return points.min_val(value).to_python(), points.max_val(value).to_python()
