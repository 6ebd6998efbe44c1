"""Lanes in another shape of the same row, a few elements apart, and of ragged rows: what is compiled computes what the
nests say."""

from __future__ import annotations

import re

import pytest

from swirl.codegen.emit import listing
from swirl.ir.nest import Program
from swirl.target import TARGETS
from swirl.transforms import COMMANDS
from tests.support import assert_compiles_to_same, program

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
@pytest.mark.parametrize("kind", IN_ROWS)
def test_lanes_compute_the_same(kind: str, target: str) -> None:
    text, shapes = IN_ROWS[kind]
    assert_compiles_to_same(in_lanes(text, shapes, TARGETS[target].simd_width or 8), TARGETS[target])


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
