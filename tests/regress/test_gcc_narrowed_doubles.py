"""g++ 12 at -O3 computes ``(double) (float) x`` without the rounding to single precision, where two neighbours have it:
its straight-line vectoriser neither packs nor unpacks them.

swirl/build/compiler_flags.py turns that vectoriser off for kernels that convert both ways.
"""

from __future__ import annotations

import pytest

from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, parse_program
from swirl.target.targets import TARGETS
from tests.support import assert_compiles_to_same

TEXTS = {
    "elements of a column": """
for i in range(0, 3, 2):
    for j in range(1, 4):
        for k in range(2):
            z[j, i, 0] += x[i + 1, i] - x[i + 1, i] * w[i]
""",
    "elements of a row": """
for j in range(2):
    for k in range(2):
        y[0, j] += w[j]
""",
    "two statements": """
for i in range(3):
    x[i, 0] = float64(float32(x[i, 0] + w[0])) + 1.0
    x[i, 1] = float64(float32(x[i, 1] + w[1])) + 1.0
""",
    "through locals": """
for i in range(3):
    s: float32 = x[i, 0] + w[0]
    t: float32 = x[i, 1] + w[1]
    x[i, 0] = s + w[0]
    x[i, 1] = t + w[1]
""",
}


def mixed(text: str) -> Program:
    shapes = {"y": (4, 4), "z": (4, 3, 1), "x": (4, 3), "w": (6,)}
    types = {"y": "float32", "z": "float32"}
    buffers = {name: Buffer(f"net.{name}", shape, types.get(name, "float64")) for name, shape in shapes.items()}
    return parse_program(text, buffers)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_rounding_between_two_conversions(text: str) -> None:
    for seed in range(4):
        assert_compiles_to_same(mixed(text), TARGETS["portable"], seed)
