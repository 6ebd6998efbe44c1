"""Questions about sets of integers given as text, which isl answers with limited work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import islpy as isl

from swirl.errors import ValidationError
from swirl.ir.spelling import text_in_ascii

MAX_OPERATIONS = 20_000_000
"""isl's work on one question, about a second; beyond it the answer is "not proved"."""


class NotProved(Exception):
    """A question about dependences took more work than is allowed."""


@contextmanager
def limited(asked: str | None = None) -> Iterator[isl.Context]:
    """A context for one question, whose work is limited.

    Args:
        asked: what an error quotes if isl does not accept it; None if that counts as not proved.

    Raises:
        NotProved: the question takes too much work.
        ValidationError: isl does not take it.
    """
    context = isl.Context()
    context.set_max_operations(MAX_OPERATIONS)
    try:
        yield context
    except isl.Error as error:
        if asked is None or "max" in str(error).lower():
            raise NotProved from error
        raise ValidationError(f"isl does not take {asked}: {error}") from error


def set_of(context: isl.Context, text: str) -> isl.Set:
    """The set that a text describes."""
    return isl.Set.read_from_str(context, text_in_ascii(text))


@lru_cache(maxsize=4096)
def least(formula: str, count: int) -> tuple[int, ...] | None:
    """The least point of a set given as text with ``count`` dimensions, or None where it is empty."""
    return least_point(lambda context: set_of(context, formula), count, formula)


def least_point(question: Callable[[isl.Context], isl.Set], count: int, asked: str) -> tuple[int, ...] | None:
    """The least point of a set with ``count`` dimensions, or None where it is empty.

    Args:
        question: makes the set, in a context whose work is limited.
        count: its dimensions.
        asked: what an error quotes if isl does not accept it.

    Raises:
        NotProved: the question takes too much work.
        ValidationError: isl does not take it.
    """
    with limited(asked) as context:
        points = question(context)
        if points.is_empty():
            return None
        try:
            point = points.lexmin().sample_point()
        except isl.Error:  # some sets with // and % are too much for isl's lexmin
            point = points.sample_point()
        if point.is_void():  # and it finds no least point of some that are not empty; any point is a witness
            point = points.sample_point()
    return tuple(point.get_coordinate_val(isl.dim_type.set, i).to_python() for i in range(count))


@lru_cache(maxsize=4096)
def is_empty(formula: str) -> bool:
    """Whether a set given as text is empty. Backward and update ask the same questions."""
    with limited(formula) as context:
        return bool(set_of(context, formula).is_empty())
