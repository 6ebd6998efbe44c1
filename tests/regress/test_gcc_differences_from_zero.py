"""g++ 12 makes ``0.0f - x`` a negation where it sees that ``x`` cannot be -0.0 (converted integers, absolute values),
as it may for ``x + 0.0f``: 0.0 - 0.0 is then -0.0.

swirl/codegen/scalar.py calls a function where one side is a literal zero.
"""

from __future__ import annotations

import numpy as np
import pytest

from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, parse_program
from swirl.transforms import COMMANDS
from tests.codegen.conftest import Checks

EXPRESSIONS = [
    "0.0 - j",
    "0 - abs(x[j])",
    "-abs(x[j]) + 0.0",
    "0.0 + -abs(x[j])",
    "0.0 - n[j]",
    "-float32(n[j]) + 0.0",
    "0.0 - max(abs(x[j]), 0.0)",
    "j * (0.0 - abs(x[j]))",
    "0.0 - float32(x[j] > 1.0)",
    "-0.0 - x[j]",
    "x[j] - 0.0",
    "(0.0 - j) + (x[j] + 0.0)",
]
VALUES = [0.0, -0.0, 0.5, -0.5, np.nan, np.inf, -np.inf, 1e-40]


def differences(expression: str, dtype: str) -> Program:
    types = {"n": "int32", "y": dtype, "x": dtype}
    buffers = {name: Buffer(f"net.{name}", (8,), kind) for name, kind in types.items()}
    text = f"for j in range(8):\n y[j] = {expression.replace('float32', dtype)}"
    return parse_program(text, buffers)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("how", ["scalar", "vectorize", "unroll"])
def test_zero_minus_zero_is_positive(how: str, dtype: str, checks: Checks) -> None:
    if how == "vectorize" and dtype == "float64" and checks.target.name != "portable":
        pytest.skip("float64 has no vector loops there")
    given = {name: np.array(VALUES, dtype) for name in "xy"} | {"n": np.array([0, 1, -1, 0, 5, 0, 0, 2], "int32")}
    for expression in EXPRESSIONS:
        program = differences(expression, dtype)
        checks.add_program(expression, COMMANDS[how](program, "j", 8) if how != "scalar" else program, given)
    checks.run()
