"""Parallel loops inside sequential ones, and windows that are clipped at borders, under several commands at once."""

from __future__ import annotations

import pytest

from swirl.ir.nest import Program
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from tests.support import assert_compiles_to_same, assert_same, program

ROWS = program(
    """
for i in range(6):
    s[0] += x[i, 0]
    t: float32 = s[0] * 2.0
    for j in range(40):
        y[i, j] = x[i, j] * t
    z[i] = t
""",
    s=(1,),
    x=(6, 40),
    y=(6, 40),
    z=(6,),
)
WINDOW = program(
    """
for i in range(1, 9):
    for j in range(max(0, 3 - i), min(5, 11 - i)):
        for k in range(2, 5):
            y[i, j] += x[i + j, k]
""",
    y=(9, 5),
    x=(13, 5),
)


def after(before: Program, *commands: tuple[str, tuple[object, ...], dict[str, object]]) -> Program:
    for name, arguments, options in commands:
        before = COMMANDS[name](before, *arguments, **options)
    return before


@pytest.mark.parametrize(
    ("before", "commands"),
    [
        (ROWS, [("parallelize", ("j",), {})]),
        (ROWS, [("vectorize", ("j", 8), {}), ("scalar_replace", (), {})]),
        (WINDOW, [("parallelize", ("j",), {})]),
        (WINDOW, [("unroll", ("k", 2), {}), ("parallelize", ("i",), {})]),
        (
            WINDOW,
            [
                ("tile_loop", ("i", 3), {}),
                ("tile_loop", ("i_inner", 2), {"tail": "mask"}),
                ("unroll_and_jam", ("k", 3), {}),
            ],
        ),
    ],
)
def test_computes_the_same_on_two_threads(before: Program, commands: list, target: Target) -> None:
    assert_compiles_to_same(assert_same(before, after(before, *commands)), target)
