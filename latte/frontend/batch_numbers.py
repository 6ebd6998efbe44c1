"""Numbers of a body that depend on how many items a batch has: ``inputs.shape[0]``, and what is computed from it.

They are numbers, of a whole batch, that know their formula. Where such a number is a value, it becomes a run-time
scalar of the program; where it is the end of a loop over all items, the loop is one over items
(:mod:`swirl.analysis.items`). Any other use fixes the number of items: the layer is compiled for each.
"""

from __future__ import annotations

import math
from typing import Any
from zlib import crc32

from swirl.ir.buffers import Buffer
from swirl.ir.item_numbers import FORMULA, ITEMS


class BatchInteger(int):
    """A whole number with its formula."""

    formula: str


class BatchFloat(float):
    """Another number with its formula."""

    formula: str


def batch_number(value: int | float, formula: str) -> int | float:
    """A number that depends on the number of items; a plain one where it cannot be written down (infinity)."""
    if not math.isfinite(value):
        return value
    made = BatchInteger(value) if isinstance(value, int) else BatchFloat(value)
    made.formula = formula
    return made


def number_of_items(items: int) -> int | float:
    """The number of items itself."""
    return batch_number(items, FORMULA)


def with_batch(shape: tuple[int, ...], buffer: Buffer) -> tuple[int | float, ...]:
    """The shape of an array; its first extent is the number of items, where it has elements for each of them."""
    return (number_of_items(shape[0]), *shape[1:]) if buffer.items and shape[0] == buffer.items else shape


def depends_on_batch(value: Any) -> bool:
    """Whether a number depends on how many items there are."""
    return isinstance(value, (BatchInteger, BatchFloat))


def plain(value: Any) -> Any:
    """The number without its formula."""
    if isinstance(value, BatchInteger):
        return int(value)
    return float(value) if isinstance(value, BatchFloat) else value


def formula_of(value: Any) -> str:
    """The formula of a number."""
    if isinstance(value, (BatchInteger, BatchFloat)):
        return value.formula
    return f"({value!r})" if value < 0 else repr(value)


def scalar_of(value: Any) -> Buffer:
    """The run-time scalar that holds such a number."""
    formula = formula_of(value)
    if formula == FORMULA:
        return ITEMS
    dtype = "int32" if isinstance(value, int) else "float32"
    name = f"net.of_items_{crc32(formula.encode()):08x}"  # the formula itself may have points in it
    return Buffer(name, (1,), dtype, "scalar", formula=formula)
