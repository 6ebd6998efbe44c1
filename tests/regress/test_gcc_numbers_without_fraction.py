"""g++ 12 with -fno-trapping-math makes ``(float) (int) x`` a rounding towards zero, where the processor has one: that
is -0.0 for -0.5, but a whole number has no sign of zero.

swirl/build/compiler_flags.py leaves that flag out for kernels that drop fractions.
"""

from __future__ import annotations

import numpy as np
import pytest

from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, parse_program
from swirl.transforms import COMMANDS
from tests.codegen.conftest import Checks

TEXTS = {
    "a local": "for i in range(8):\n v: int32 = x[i]\n y[i] = v",
    "a local that is set again": "for i in range(8):\n v: int32 = n[i]\n v = x[i]\n y[i] = v",
    "an expression": "for i in range(8):\n y[i] = float32(int32(x[i]))",
    "scaled": "for i in range(8):\n y[i] = float32(int32(x[i] * 0.5)) * -1.0",
    "under a condition": "for i in range(8):\n if x[i] < 1.0:\n  y[i] = float32(int32(x[i]))",
    "of doubles": "for i in range(8):\n z[i] = float64(int32(z[i]))",
}
VALUES = [-0.5, -0.0, 0.0, 0.5, -1.5, 2.5, -0.99, 1e-40]


def fractions(text: str) -> Program:
    types = {"n": "int32", "z": "float64"}
    return parse_program(text, {name: Buffer(f"net.{name}", (8,), types.get(name, "float32")) for name in "xyzn"})


@pytest.mark.parametrize("lanes", [None, 4, 8])
def test_a_whole_number_has_no_negative_zero(lanes: int | None, checks: Checks) -> None:
    given = {name: np.array(VALUES, "float64" if name == "z" else "float32") for name in "xyz"}
    given["n"] = np.arange(8, dtype="int32")
    for label, text in TEXTS.items():
        if lanes is not None and "z[" in text and checks.target.name != "portable":
            continue  # float64 has no vector loops there
        program = fractions(text)
        if lanes is not None:
            program = COMMANDS["vectorize"](program, "i", lanes)
        checks.add_program(label, program, given)
    checks.run()
