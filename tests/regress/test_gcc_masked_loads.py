"""g++ 12 at -O3 with AVX2 or AVX-512 compiles an element-wise select over rows of 5 wrongly.

Its loop vectoriser makes masked loads of ``inputs > 0 ? grad : 0``, five for four rows, and gives all of them
the mask of the first. swirl/build/compiler_flags.py turns off what makes the masked loads.
"""

from __future__ import annotations

import numpy as np
import pytest

from swirl.build.jit import build, load
from swirl.build.translation_unit import IF_CONVERTIBLE
from swirl.codegen.emit import emit
from swirl.ir.buffers import Buffer
from swirl.ir.nest import parse_program
from swirl.run.memory import allocate
from swirl.run.runner import Runner
from swirl.target.machine import why_not
from swirl.target.targets import Target
from tests.support import assert_compiles_to_same, program

SHAPE = (2, 3, 7, 5)
TEXT = """
for n in range(2):
    for c in range(3):
        for y in range(7):
            for x in range(5):
                grad_inputs[n, c, y, x] = grad[n, c, y, x] if inputs[n, c, y, x] > 0.0 else 0.0
"""


def test_select_over_short_rows(target: Target) -> None:
    names = ("grad_inputs", "grad", "inputs")
    source = emit(parse_program(TEXT, {buffer: Buffer(buffer, SHAPE) for buffer in names}), target)
    (built,) = build([source], target)
    if why_not(target):
        return  # the fixture says so
    arrays = allocate(dict.fromkeys(names, (SHAPE, np.float32)))
    generator = np.random.default_rng(0)
    for buffer in ("grad", "inputs"):
        arrays[buffer][...] = generator.normal(size=SHAPE)
    Runner(1).phase([(load(built), [arrays[buffer] for buffer in source.buffers])]).run()
    expected = np.where(arrays["inputs"] > 0, arrays["grad"], 0)
    np.testing.assert_array_equal(arrays["grad_inputs"], expected)


CONVERTIBLE = {
    "a maximum and where it stands": (
        """
for n in range(2):
    for c in range(3):
        for y in range(7):
            for x in range(5):
                best: float32 = a[n, c, y, 0]
                where: int32 = 0
                for k in range(5):
                    here: float32 = a[n, c, y, k] * b[n, c, y, x]
                    better: bool = here > best or here != here
                    where = k if better else where
                    best = here if better else best
                out[n, c, y, x] = best + where
""",
        True,
    ),
    "a clamped subscript": (
        """
for n in range(2):
    for c in range(3):
        for y in range(7):
            for x in range(5):
                t: float32 = a[n, c, y, min(x + 1, 4)]
                out[n, c, y, x] = t if t > b[n, c, y, x] else 0.0
""",
        True,
    ),
    "a guarded store": (
        """
for n in range(2):
    for c in range(3):
        for y in range(7):
            for x in range(5):
                if a[n, c, y, x] > 0.0:
                    out[n, c, y, x] = b[n, c, y, x]
""",
        False,
    ),
    "a guarded condition": (
        """
for n in range(2):
    for c in range(3):
        for y in range(7):
            for x in range(5):
                t: bool = x > 2 and a[n, c, y, x] > 0.0
                out[n, c, y, x] = 1.0 if t else 2.0
""",
        False,
    ),
}


@pytest.mark.parametrize("case", CONVERTIBLE)
def test_if_conversion_only_where_no_load_is_conditional(case: str, target: Target) -> None:
    text, convertible = CONVERTIBLE[case]
    before = program(text, **dict.fromkeys(("out", "a", "b"), SHAPE))
    noted = emit(before, target).source.startswith(IF_CONVERTIBLE)
    assert noted == (convertible and bool(target.isa_flags))
    assert_compiles_to_same(before, target)
