"""Locals that are macros of C++'s headers: the compiler saw a number where a variable is declared."""

from __future__ import annotations

import numpy as np
import pytest

from swirl.codegen.emit import emit
from swirl.ir.buffers import Buffer
from swirl.ir.nest import parse_program
from swirl.target import TARGETS, why_not
from tests.codegen.conftest import run_source

NAMES = [
    "M_PI",
    "M_LN2f",
    "M_E",
    "HUGE_VAL",
    "HUGE_VALF",
    "RAND_MAX",
    "FP_NAN",
    "EXIT_FAILURE",
    "NULL",
    "NAN",
    "INT32_MAX",
]
OTHERS = ["math_errhandling", "linux", "_MM_HINT_T0", "_CMP_EQ_OQ"]


@pytest.mark.parametrize("target", TARGETS)
def test_locals_with_such_names(target: str) -> None:
    if reason := why_not(TARGETS[target]):
        pytest.skip(reason)
    lines = ["for i in range(5):"]
    for name in [*NAMES, *OTHERS]:
        lines += [f"    {name}: float32 = 0.5", f"    {name} = tanh(x[i]) * {name}", f"    y[i] += {name}"]
    program = parse_program("\n".join(lines) + "\n", {n: Buffer(f"net.{n}", (5,)) for n in "xy"})
    arrays = {"x": np.linspace(-1, 1, 5, dtype=np.float32), "y": np.zeros(5, np.float32)}
    got = run_source(emit(program, TARGETS[target]), arrays, TARGETS[target])
    expected = np.tanh(arrays["x"]) * 0.5 * len([*NAMES, *OTHERS])
    np.testing.assert_allclose(got["y"], expected, rtol=1e-5)
