"""Lanes in another shape of the same row, a few elements apart, and of ragged rows: what is compiled computes what the
nests say."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from swirl.build.jit import build
from swirl.codegen.emit import emit, listing
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, parse_program
from swirl.ir.validate import validate
from swirl.target.machine import why_not
from swirl.target.targets import TARGETS
from swirl.transforms import COMMANDS
from tests.codegen.conftest import run_source
from tests.support import assert_all_compile_to_same, assert_compiles_to_same, program

IN_ROWS = {
    "read in another shape": (
        "for i in range(35):\n    y[i] = a[i // 7, i % 7]",
        {"y": (35,), "a": (5, 7)},
    ),
    "written in another shape": (
        "for i in range(35):\n    a[i // 7, i % 7] = y[i] * 2.0",
        {"y": (35,), "a": (5, 7)},
    ),
    "some only": (
        "for n in range(3):\n    for i in range(35):\n        if i + n < 33:\n"
        "            y[n, i] += a[(n * 35 + i) // 15, (n * 35 + i) % 15]",
        {"y": (3, 35), "a": (7, 15)},
    ),
    "another dimension's row": (
        "for i in range(19):\n    y[i, 0, 0] = x[i, 0] + 1.0",
        {"y": (19, 1, 1), "x": (19, 1)},
    ),
    "across short rows": (
        "for i in range(19):\n    y[i] = x[i, 1]",
        {"y": (19,), "x": (19, 3)},
    ),
    "stored across short rows": (
        "for i in range(19):\n    y[i, 2] = x[i, 1]",
        {"y": (19, 4), "x": (19, 2)},
    ),
}


def in_lanes(text: str, shapes: dict[str, tuple[int, ...]], width: int) -> Program:
    return COMMANDS["vectorize"].function(program(text, **shapes), "i", width, strided="gather")


@pytest.mark.parametrize("target", TARGETS)
def test_lanes_compute_the_same(target: str) -> None:
    width = TARGETS[target].simd_width or 8
    assert_all_compile_to_same([in_lanes(*each, width) for each in IN_ROWS.values()], TARGETS[target])


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_a_kernel_of_strided_loads_and_stores_alone(target: str) -> None:
    """It has no instruction by name, and needs the helpers of its target all the same."""
    strided = in_lanes("for i in range(48):\n    y[i * 2] = x[i * 3]", {"y": (96,), "x": (144,)}, 16)
    assert_compiles_to_same(strided, TARGETS[target])


@pytest.mark.parametrize("target", ["avx512", "avx2"])
@pytest.mark.parametrize("extent", [33, 40, 54])
def test_ragged_rows_stay_in_registers(extent: int, target: str) -> None:
    """The last of the vectors that are kept over the sum has fewer lanes."""
    text = f"for i in range({extent}):\n    y[i] = 0.0\n    for k in range(5):\n        y[i] += x[k, i] * w[k]"
    width = TARGETS[target].simd_width
    lanes = in_lanes(text, {"y": (extent,), "x": (5, extent), "w": (5,)}, width)
    copies = COMMANDS["unroll_and_jam"].function(lanes, "i", -(-extent // width))
    kept = COMMANDS["scalar_replace"].function(copies, "y")
    assert "y_t: float32[" in kept.text, kept.text
    assert_compiles_to_same(kept, TARGETS[target])


@pytest.mark.parametrize("extent", [48, 56])
@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_only_lanes_that_a_border_clips_have_masks(extent: int, target: str) -> None:
    """Of copies beside each other, the first one at the beginning of a row and the last one at its end: constants."""
    text = f"""
for i in range({extent}):
    for k in range(3):
        if i + k >= 1 and i + k < {extent + 1}:
            y[i] += x[i + k - 1] * w[k]
        else:
            z[i] += w[k]
"""
    width = TARGETS[target].simd_width
    shapes = {"y": (extent,), "z": (extent,), "x": (extent,), "w": (3,)}
    lanes = in_lanes(text, shapes, width)
    copies = COMMANDS["unroll_and_jam"].function(lanes, "i", -(-extent // width))
    written = COMMANDS["unroll"].function(copies, "k", 3, unroll_type=1)
    assert_compiles_to_same(written, TARGETS[target])
    masks = re.findall(r"const __m\w+ mask\w* = (.*);", listing(written, TARGETS[target]))
    assert len(masks) == 2 and not any("lane_numbers" in mask for mask in masks)


IN_TURNS = {
    "a row": ("for k in range({turns}):\n    for i in range(37):\n        y[i * {turns} + k] = x[i] * w[k]", True),
    "from a place on, with locals": (
        """
for n in range(3):
    for k in range({turns}):
        for i in range(16):
            t: float32 = x[i + n] * w[k]
            y[n * 50 + i * {turns} + k + 1] = t * t
""",
        True,
    ),
    "rows of several lengths": (
        "for n in range(20):\n    for k in range({turns}):\n        for i in range(n):\n"
        "            y[n * {turns} + i * {turns} + k] = x[i] * w[k]",
        True,
    ),
    "whole numbers": ("for k in range({turns}):\n    for i in range(21):\n        m[i * {turns} + k] = i * k", True),
    "backwards": ("for k in range({turns}):\n    for i in range(37):\n        y[i * {turns} - k + 4] = x[i]", False),
    "some of the lanes": (
        "for k in range({turns}):\n    for i in range(37):\n        if x[i] > 0.0:\n"
        "            y[i * {turns} + k] = w[k]",
        False,
    ),
    "in a row that each copy chooses": (
        "for k in range({turns}):\n    j: int32 = d[k] % 4\n    for i in range(16):\n"
        "        q[j, i * {turns} + k] = x[i]",
        False,
    ),
    "in a row that each copy changes": (
        "for k in range({turns}):\n    d[0] = k\n    for i in range(16):\n        q[d[0], i * {turns} + k] = x[i]",
        False,
    ),
    "of what is there": (
        "for k in range({turns}):\n    for i in range(37):\n        y[i * {turns} + k] = y[i * {turns} + k] * w[k]",
        False,
    ),
}


def in_turns(text: str, turns: int, width: int) -> Program:
    shapes = {"y": (200,), "x": (37,), "w": (4,), "q": (4, 80), "m": (200,), "d": (4,)}
    types = {"m": "int32", "d": "int32"}
    buffers = {name: Buffer(f"net.{name}", shape, types.get(name, "float32")) for name, shape in shapes.items()}
    before = validate(parse_program(text.format(turns=turns), buffers))
    lanes = COMMANDS["vectorize"].function(before, "i", width, strided="gather")
    if "d[" in text:
        return COMMANDS["unroll"].function(lanes, "k", turns, unroll_type=1)
    return COMMANDS["unroll_and_jam"].function(lanes, "k", turns)


@pytest.mark.parametrize("target", ["avx512", "avx2"])
@pytest.mark.parametrize("turns", [2, 3, 4])
def test_copies_that_write_a_row_in_turns_store_whole_registers(turns: int, target: str) -> None:
    programs = {kind: in_turns(text, turns, TARGETS[target].simd_width) for kind, (text, _) in IN_TURNS.items()}
    assert_all_compile_to_same(list(programs.values()), TARGETS[target])
    for kind, copies in programs.items():
        assert ("interleaved<" in listing(copies, TARGETS[target])) is IN_TURNS[kind][1], kind


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("exponent", [2, 3, 4, 5, 2.5])
def test_small_powers_are_products(exponent: float, target: str) -> None:
    """Of libmvec's `pow`, instance normalisation with squares of differences took 22 times as long."""
    text = f"for i in range(19):\n    y[i] = pow(x[i], {exponent})\n    v[i] = pow(w[0], {exponent})"
    lanes = in_lanes(text, {"y": (19,), "v": (19,), "x": (19,), "w": (1,)}, TARGETS[target].simd_width)
    source = emit(lanes, TARGETS[target], contract=False)
    assert ("power<" in listing(lanes, TARGETS[target])) is (exponent in (2, 3, 4))
    build([source], TARGETS[target], contract=False)
    if why_not(TARGETS[target]):
        return
    numbers = np.array([0.0, -0.0, np.inf, np.nan, 1e-30, 3e38, *np.linspace(0.1, 9.0, 13)], np.float32)
    given = {"y": np.zeros(19, np.float32), "v": np.zeros(19, np.float32), "x": numbers, "w": numbers[-1:].copy()}
    got = run_source(source, given, TARGETS[target])
    with np.errstate(over="ignore", under="ignore"):
        np.testing.assert_array_max_ulp(got["y"], np.power(numbers, np.float32(exponent)), 4)
    np.testing.assert_array_max_ulp(got["v"], np.full(19, numbers[-1] ** np.float32(exponent)), 4)


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_a_copy_that_reads_what_another_stores_sees_it(target: str) -> None:
    text = "for k in range(2):\n    for i in range(16):\n        y[i * 2 + k] = x[i] + y[50 - k]"
    lanes = in_lanes(text, {"y": (60,), "x": (16,)}, TARGETS[target].simd_width)
    assert_compiles_to_same(COMMANDS["unroll_and_jam"].function(lanes, "k", 2), TARGETS[target])


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_the_rest_of_a_row_is_stored_without_a_mask(dtype: str) -> None:
    """Of AVX2, whose stores with a mask take some processors ten times as long; the element after it stays."""
    target, rests = TARGETS["avx2"], range(1, 8)
    text = "\n".join(f"for i in range({8 + rest}):\n    y{rest}[i] = x[i] + x[i + 1]" for rest in rests)
    before = program(text, x=(20,), **{f"y{rest}": (20,) for rest in rests})
    before = before.with_buffers(**{name: replace(buffer, dtype=dtype) for name, buffer in before.buffers.items()})
    lanes = COMMANDS["unroll_and_jam"].function(COMMANDS["vectorize"].function(before, "i", 8), "i", 2)
    assert_compiles_to_same(lanes, target)
    assert all(f"store_first<{rest}>" in listing(lanes, target) for rest in rests)
    assert "maskstore" not in listing(lanes, target)
