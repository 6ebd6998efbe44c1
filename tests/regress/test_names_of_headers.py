"""Locals that are macros of C++'s headers, where the compiler saw a number, or that have names of helper functions."""

from __future__ import annotations

import numpy as np
import pytest

from swirl.codegen.emit import emit
from swirl.ir.buffers import Buffer
from swirl.ir.nest import parse_program
from swirl.ir.operations import FUNCTIONS
from swirl.target.machine import why_not
from swirl.target.targets import TARGETS
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


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "helper"), [(n, f.helper) for n, f in FUNCTIONS.items() if f.helper])
def test_locals_and_buffers_with_names_of_helpers(name: str, helper: str, target: str) -> None:
    if reason := why_not(TARGETS[target]):
        pytest.skip(reason)
    one = f"for i in vector(16):\n    {helper}: float32 = {name}(x[i])\n    y[i] = {helper} * 0.5\n"
    other = f"for i in vector(16):\n    {helper}[i] = {name}(x[i])\n"
    expected = FUNCTIONS[name].floating(np.float64(0.5))
    for text, result, factor in ((one, "y", 0.5), (other, helper, 1)):
        program = parse_program(text, {n: Buffer(f"net.{n}", (16,)) for n in ("x", result)})
        arrays = {n: np.full(16, 0.5, np.float32) for n in program.buffers}
        got = run_source(emit(program, TARGETS[target]), arrays, TARGETS[target])
        np.testing.assert_allclose(got[result], np.full(16, factor * expected), rtol=1e-6)
