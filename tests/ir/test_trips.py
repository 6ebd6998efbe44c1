"""Quick upper bounds of what a program executes."""

from __future__ import annotations

import pytest

from swirl.ir.buffers import Buffer
from swirl.ir.nest import parse_program
from swirl.ir.trips import CALL, instructions
from tests.support import program


@pytest.mark.parametrize(
    ("text", "lanes", "expected"),
    [
        ("for i in range(7):\n    y[i] = 1.0", 16, 7 * 2),  # a store, and the loop's own
        ("for i in range(7):\n    y[i] = x[i] * 2.0 + x[i]", 16, 7 * 6),
        ("for i in range(7):\n    y[i] += x[i]", 16, 7 * 5),
        ("for i in range(7):\n    y[i] = exp(x[i])", 16, 7 * (3 + CALL)),
        ("for i in range(7):\n    y[i] = max(x[i], 0.0)", 16, 7 * 4),
        ("for i in range(3):\n    for j in range(5):\n        y[j] = x[i]", 16, 3 * (1 + 5 * 3)),
        ("for i in range(4):\n    for j in vector(16):\n        y[16 * i + j] = x[j]", 16, 4 * 3),
        ("for i in range(4):\n    for j in vector(16):\n        y[16 * i + j] = x[j]", 0, 4 * (1 + 16 * 3)),
        ("for i in range(4):\n    for j in unrolled(3):\n        y[i] = 0.0", 16, 4 * (1 + 3 * 2)),
        (
            "for i in range(0, 64, 32):\n    for j in range(i, min(i + 32, 50)):\n        y[j] = 0.0",
            16,
            2 * (1 + 32 * 2),
        ),
        (
            "for i in range(4):\n    if x[i] > 0.0:\n        y[i] = x[i]\n    else:\n        y[i] = x[i] + 1.0",
            16,
            4 * 6,
        ),
        ("for i in range(0):\n    y[i] = 0.0", 16, 2),  # at the most
        ("for i in range(8):\n    y[i] = x[i]\nfor i in parallel(8):\n    y[i] = x[i]", 16, 2 * 8 * 3),
    ],
)
def test_instructions(text: str, lanes: int, expected: int) -> None:
    assert instructions(program(text, x=(64,), y=(64,)), lanes) == expected


@pytest.mark.parametrize(("bound", "expected"), [("count", None), ("min(count, 5)", 4 * (1 + 5 * 2))])
def test_bounds_that_are_not_known(bound: str, expected: int | None) -> None:
    nest = f"for i in range(4):\n    for j in range({bound}):\n        y[j] = 0.0"
    assert instructions(parse_program(nest, {"y": Buffer("y", (64,))}), 16) == expected
