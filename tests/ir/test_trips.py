"""Quick upper bounds of what threads can share."""

from __future__ import annotations

import pytest

from swirl.analysis.trips import BARRIER, CALL, shared_work
from swirl.ir.buffers import Buffer
from swirl.ir.nest import parse_program
from tests.support import program

ROUNDS = 10_000
"""Of a parallel loop: enough to share."""


@pytest.mark.parametrize(
    ("body", "lanes", "each"),
    [
        ("y[0] = 1.0", 16, 1),  # a store
        ("y[i] = x[i] * 2.0 + x[i]", 16, 5),
        ("y[i] += x[i]", 16, 4),
        ("y[i] = exp(x[i])", 16, 2 + CALL),
        ("y[i] = max(x[i], 0.0)", 16, 3),
        ("for j in range(5):\n    y[j] = x[i]", 16, 5 * 3),
        ("for j in vector(16):\n    y[16 * i + j] = x[j]", 16, 2),
        ("for j in vector(16):\n    y[16 * i + j] = x[j]", 0, 16 * 3),
        ("for j in unrolled(3):\n    y[i] = 0.0", 16, 3 * 2),
        ("for j in range(32 * i, min(32 * i + 32, 50)):\n    y[j] = 0.0", 16, 32 * 2),
        ("if x[i] > 0.0:\n    y[i] = x[i]\nelse:\n    y[i] = -x[i]", 16, 2 + 3),
        ("for j in parallel(7):\n    y[j] = x[i]", 16, 7 * 3),
    ],
)
def test_instructions_of_a_parallel_loop(body: str, lanes: int, each: int) -> None:
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    text = f"for i in parallel({ROUNDS}):\n{indented}"
    shapes = {"x": (16 * ROUNDS,), "y": (16 * ROUNDS,)}
    assert shared_work(program(text, **shapes), lanes) == ROUNDS * (1 + each) - BARRIER


MUCH = f"    for i in parallel({ROUNDS}):\n        y[i] = x[i]\n"
WORTH = ROUNDS * 3 - BARRIER


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"for t in range(1):\n{MUCH}", WORTH),
        (f"for t in range(9):\n{MUCH}", 9 * WORTH),
        (f"for t in range(9):\n    y[t] = 0.0\n{MUCH}{MUCH}", 9 * 2 * WORTH),
        (f"for t in range(9):\n    if t > 3:\n{MUCH.replace('    ', '        ')}", 9 * WORTH),
        (f"for t in range({ROUNDS}):\n    y[t] = x[t]", 0),  # one thread has all of it
        # A barrier after each execution costs more than sharing saves.
        (f"for t in range({ROUNDS}):\n    for i in parallel(100):\n        y[i] = x[i]", 0),
        (f"for i in parallel({ROUNDS}):\n    y[i] = x[i]\nfor i in parallel(9):\n    y[i] = 0.0", WORTH),
    ],
)
def test_loops_around(text: str, expected: int) -> None:
    assert shared_work(program(text, x=(ROUNDS,), y=(ROUNDS,)), 16) == expected


@pytest.mark.parametrize(("bound", "trips"), [("count", None), ("min(count, 5)", 5)])
def test_bounds_that_are_not_known(bound: str, trips: int | None) -> None:
    nest = (
        f"for i in range(9):\n    for j in parallel({bound}):\n        for k in range(2000):\n            y[j] = x[k]"
    )
    found = shared_work(parse_program(nest, {"x": Buffer("x", (2000,)), "y": Buffer("y", (64,))}), 16)
    assert found == (None if trips is None else 9 * (trips * (1 + 2000 * 3) - BARRIER))
