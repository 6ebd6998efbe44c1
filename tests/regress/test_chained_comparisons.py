"""``0 < i <= x[i - 1]`` reads ``x[i - 1]`` only where ``0 < i``, as Python does: it was loaded in each iteration."""

from __future__ import annotations

import numpy as np
import pytest

from swirl.ir.buffers import Buffer
from swirl.ir.execute import execute
from swirl.ir.nest import parse_program
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy

CHOICES = {
    "in a row": "0 < i <= x[i - 1]",
    "and": "0 < i and i <= x[i - 1]",
    "or": "not (0 >= i or i > x[i - 1])",
}


@pytest.mark.parametrize("test", CHOICES.values(), ids=CHOICES)
def test_what_a_comparison_leaves_out_is_not_read(test: str) -> None:
    text = f"for i in range(8):\n    y[i] = 1.0 if {test} else 0.0\n    z[i] = 2.0 if {test} else 3.0\n"
    buffers = {"x": Buffer("s.x", (8,), "int32"), "y": Buffer("s.y", (8,)), "z": Buffer("s.z", (8,))}
    before = parse_program(text, buffers)
    after = scalar_replace(tidy(before))
    given = {"x": np.int32([9, 1, 0, 3, 9, 9, 9, 9]), "y": np.zeros(8, np.float32), "z": np.zeros(8, np.float32)}
    found = [{name: array.copy() for name, array in given.items()} for _ in range(2)]
    for program, arrays in zip((before, after), found, strict=True):
        execute(program, arrays, checking=True)
    for name in ("y", "z"):
        assert np.array_equal(found[0][name], found[1][name])
