"""g++ 12 takes sums of whole numbers in neighbouring places, which are added up afterwards, for one sum: from -O2 on
its loop vectoriser leaves elements out and adds others twice.

swirl/build/compiler_flags.py turns that vectoriser off for kernels that calculate with int32 data.
"""

from __future__ import annotations

import pytest

from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, parse_program
from swirl.target.targets import TARGETS
from swirl.transforms import COMMANDS
from tests.support import assert_all_compile_to_same, assert_compiles_to_same, assert_same


def sums(columns: int, rows: int, operation: str) -> Program:
    text = f"for j in range({columns}):\n for i in range({rows}):\n  p[0] {operation} n[i, j]"
    shapes = {"p": (1,), "n": (rows, columns)}
    return parse_program(text, {name: Buffer(f"net.{name}", shape, "int32") for name, shape in shapes.items()})


@pytest.mark.parametrize("target", TARGETS)
def test_partial_sums_in_lanes(target: str) -> None:
    programs = []
    for columns, rows, lanes in ((4, 2, 2), (12, 1, 2), (6, 7, 2), (8, 3, 4), (12, 7, 2)):
        for operation in ("+=", "-="):
            before = sums(columns, rows, operation)
            programs.append(assert_same(before, COMMANDS["vectorize"](before, "j", lanes)))
    assert_all_compile_to_same(programs, TARGETS[target])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("command", ["unroll", "unroll_and_jam"])
def test_sums_side_by_side(command: str, target: str) -> None:
    assert_compiles_to_same(COMMANDS[command](sums(8, 3, "+="), "j", 2), TARGETS[target])


@pytest.mark.parametrize("target", TARGETS)
def test_sums_that_are_written_out(target: str) -> None:
    text = """
for j in range(0, 8, 2):
    for i in range(3):
        p[0] += n[i, j]
        p[1] += n[i, j + 1]
p[2] = p[0] + p[1]
"""
    shapes = {"p": (3,), "n": (3, 8)}
    buffers = {name: Buffer(f"net.{name}", shape, "int32") for name, shape in shapes.items()}
    assert_compiles_to_same(parse_program(text, buffers), TARGETS[target])
