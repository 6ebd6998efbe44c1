"""g++ 12 at -O3 with AVX2 or AVX-512 compiles an element-wise select over rows of 5 wrongly.

Its loop vectoriser makes masked loads of ``inputs > 0 ? grad : 0``, five for four rows, and gives all of them
the mask of the first. swirl/jit.py turns off what makes the masked loads.
"""

from __future__ import annotations

import numpy as np
import pytest

from swirl.codegen.emit import emit
from swirl.ir.buffers import Buffer
from swirl.ir.nest import parse_program
from swirl.jit import Unit, build, load
from swirl.memory import allocate
from swirl.runner import Runner
from swirl.target import TARGETS, get_target, why_not

SHAPE = (2, 3, 7, 5)
TEXT = """
for n in range(2):
    for c in range(3):
        for y in range(7):
            for x in range(5):
                grad_inputs[n, c, y, x] = grad[n, c, y, x] if inputs[n, c, y, x] > 0.0 else 0.0
"""


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_select_over_short_rows(name: str) -> None:
    target = get_target(name)
    if reason := why_not(target):
        pytest.skip(f"{name}: {reason}")
    names = ("grad_inputs", "grad", "inputs")
    source = emit(parse_program(TEXT, {buffer: Buffer(buffer, SHAPE) for buffer in names}), target)
    (built,) = build([Unit(source.name, source.source)], target)
    arrays = allocate(dict.fromkeys(names, (SHAPE, np.float32)))
    generator = np.random.default_rng(0)
    for buffer in ("grad", "inputs"):
        arrays[buffer][...] = generator.normal(size=SHAPE)
    Runner(1).phase([(load(built), [arrays[buffer] for buffer in source.buffers])]).run()
    expected = np.where(arrays["inputs"] > 0, arrays["grad"], 0)
    np.testing.assert_array_equal(arrays["grad_inputs"], expected)
