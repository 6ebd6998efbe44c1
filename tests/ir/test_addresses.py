"""Addresses of elements: subscripts with quotients and remainders are one number again."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest

from swirl.ir.addresses import element_address
from swirl.ir.affine import simplify
from swirl.ir.nest import expr
from swirl.ir.printing import unparse

RANGES = {"a": (0, 2), "b": (0, 4), "c": (0, 7)}
SHAPE = tuple(high + 1 for _, high in RANGES.values())


def subscripts_of(number: str, shape: tuple[int, ...]) -> list[str]:
    """The subscripts in ``shape`` of the element that has this number in row-major order."""
    sizes = [prod(shape[dim + 1 :]) for dim in range(len(shape))]
    return [f"({number}) // {size} % {extent}" for size, extent in zip(sizes, shape, strict=True)]


@pytest.mark.parametrize(
    "shape", [(120,), (5, 24), (8, 15), (15, 8), (4, 5, 6), (2, 3, 4, 5), (10, 3, 4), (1, 120, 1)], ids=str
)
def test_another_shape_is_the_same_row(shape: tuple[int, ...]) -> None:
    """Whatever of the quotients is simplified."""
    number = f"a * {prod(SHAPE[1:])} + b * {SHAPE[2]} + c"
    for indices in (
        map(expr, subscripts_of(number, shape)),
        (simplify(expr(t), RANGES) for t in subscripts_of(number, shape)),
    ):
        address = element_address(shape, list(indices), RANGES)
        assert address is not None
        assert (address.terms, address.constant) == ({"a": prod(SHAPE[1:]), "b": SHAPE[2], "c": 1}, 0)


def test_random_subscripts_have_the_address_that_numpy_gives() -> None:
    generator = np.random.default_rng(0)
    for _ in range(200):
        shape = tuple(int(extent) for extent in generator.integers(1, 6, 3))
        step, first, size = (int(number) for number in generator.integers(1, 9, 3))
        texts = [f"({step} * a + b + {first}) // {size} % {shape[0]}", f"(c + {first}) % {shape[1]}"]
        texts.append(f"({step} * a + b + {first}) % {size} % {shape[2]}")
        address = element_address(shape, [expr(text) for text in texts], RANGES)
        assert address is not None
        for point in product(*(range(extent) for extent in SHAPE)):
            values = dict(zip(RANGES, point, strict=True))
            index = tuple(eval(text, {}, values) for text in texts)
            found = eval(unparse(address.to_expr()), {}, values)
            assert found == np.ravel_multi_index(index, shape), (texts, shape, values)


def test_what_is_not_quasi_affine_has_no_address() -> None:
    assert element_address((4, 4), [expr("a"), expr("t[b]")], RANGES) is None
