"""Lanes, copies and partial sums of what adds to one element of an array, beside other uses of that array."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from swirl.ir.nest import Program
from swirl.target.targets import TARGETS, Target
from swirl.transforms import COMMANDS
from tests.support import assert_all_compile_to_same, assert_same, program

EXTENTS = (1, 7, 8, 9, 16, 37)


def zeroed_beside(e: int) -> Program:
    """The element is zeroed by another subscript, and another element of the array is added to in the same loop."""
    return program(
        f"""
for n in range(3):
    for i in range(2):
        s[n, i] = 0.0
    for c in range({e}):
        s[n, 0] += x[n, c]
        s[n, 1] += x[n, c] * x[n, c]
""",
        s=(3, 2),
        x=(3, e),
    )


def of_a_local(e: int) -> Program:
    """An element of a local array, which a loop around names."""
    return program(
        f"""
for n in range(3):
    z: float32[4] = empty(4)
    for t in range(4):
        z[t] = 0.5 * x[n, 0]
        for c in range({e}):
            z[t] += x[n, c] * y[t, c]
    for t in range(4):
        s[n, t] = z[t] * z[0]
""",
        s=(3, 4),
        x=(3, e),
        y=(4, e),
    )


def read_beside(e: int) -> Program:
    """The element is read between, and another one is one place further: at the last iteration they are the same."""
    return program(
        f"""
for n in range(3):
    s[n] = y[n]
    for c in range({e}):
        s[n] += x[n, c] * y[n]
    y[n] = s[n] + s[n + 1]
""",
        s=(4,),
        x=(3, e),
        y=(3,),
    )


PROGRAMS: dict[str, Callable[[int], Program]] = {
    "zeroed beside": zeroed_beside,
    "of a local": of_a_local,
    "read beside": read_beside,
}
WAYS: dict[str, Callable[[Program], Program]] = {
    "lanes": lambda p: COMMANDS["vectorize"](p, "c", 8),
    "copies": lambda p: COMMANDS["unroll"](p, "c", 3),
    "copies of lanes": lambda p: COMMANDS["unroll"](COMMANDS["vectorize"](p, "c", 8), "c", 2),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_computes_the_same(name: str, way: str) -> None:
    for extent in EXTENTS:
        before = PROGRAMS[name](extent)
        after = assert_same(before, WAYS[way](before))
        if extent > 16 and way != "copies":
            assert "_lanes[c_lane]" in after.text or "_lanes_parts[" in after.text


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_compiles_to_the_same_bits(target: Target) -> None:
    assert_all_compile_to_same([way(make(37)) for make in PROGRAMS.values() for way in WAYS.values()], target)
