"""g++ 12 at -O3 unrolls a short inner loop and vectorises the one around it, although each of its iterations changes
what the next one has to: rows that two statements update are wrong, as in the gradient of a difference of rows.

swirl/build/compiler_flags.py turns the loop vectoriser off where an array that is stored to has several subscripts.
"""

from __future__ import annotations

import itertools

import pytest

from swirl.build.translation_unit import STORES_IN_ONE_PLACE
from swirl.codegen.emit import emit
from swirl.ir.nest import Program
from swirl.target.targets import TARGETS
from tests.support import assert_all_compile_to_same, program


def rows(height: int, width: int, body: str) -> Program:
    """Rows of two images, each with a number of its own."""
    text = f"""
for n in range(2):
    for h in range({height}):
        for x in range({width}):
            g[n, h, x] = 0.0
    a: float32 = s[n]
    for h in range(1, {height}):
        for x in range({width}):
            {body}
"""
    return program(text, g=(2, height, width), s=(2,), t=(2, height, width))


BODIES = {
    "added and taken away": "g[n, h, x] += a\n            g[n, h - 1, x] -= a",
    "by elements": "g[n, h, x] += t[n, h, x]\n            g[n, h - 1, x] -= t[n, h, x]",
    "assigned": "g[n, h, x] = t[n, h, x]\n            g[n, h - 1, x] = g[n, h - 1, x] - a",
    "carried": "g[n, h, x] = g[n, h - 1, x] + t[n, h, x]",
    "in loops of their own": "g[n, h, x] += a\n        for x in range(9):\n            g[n, h - 1, x] -= a",
}


@pytest.mark.parametrize("target", TARGETS)
def test_rows_that_two_statements_update(target: str) -> None:
    sizes = ((9, 9), (7, 37), (9, 21), (9, 10), (4, 16))
    programs = [rows(*size, body) for size, body in itertools.product(sizes, BODIES.values())]
    assert_all_compile_to_same(programs, TARGETS[target])


def test_what_keeps_the_vectoriser() -> None:
    same = program("for h in range(9):\n for x in range(5):\n  g[h, x] += t[h, x] * t[h, 0]", g=(9, 5), t=(9, 5))
    assert STORES_IN_ONE_PLACE in emit(same, TARGETS["portable"]).source
    assert STORES_IN_ONE_PLACE not in emit(rows(9, 5, BODIES["carried"]), TARGETS["portable"]).source
