"""Gradients that were wrong once."""

from __future__ import annotations

import pytest

from swirl.errors import DerivativeError
from tests.ir.test_autodiff_differences import Case, forward_computes_the_same, gradients_are_differences

ROWS = {"value": (2,), "inputs": (2, 5)}

CASES = {
    # Each loop had a winner of its own, and both got the gradient.
    "two loops for one maximum": Case(
        """
for n in range(2):
    m: float32 = -3e38
    for c in range(5):
        m = max(m, inputs[n,c])
    for c in range(5):
        m = max(m, 0.5*inputs[n,c]+0.9)
    value[n] = m
""",
        ROWS,
        "inputs",
    ),
    # The local was computed again from the last value of the recurrence, not from that of its iteration.
    "recurrence, its step in a local": Case(
        """
for n in range(2):
    m: float32 = 0.1
    for c in range(5):
        d: float32 = inputs[n,c] - m
        m = 0.9*m + 0.1*d*d
    value[n] = m
""",
        ROWS,
        "inputs",
    ),
    "recurrence and a sum of its steps": Case(
        """
for n in range(2):
    m: float32 = 0.1
    s: float32 = 0.0
    for c in range(5):
        d: float32 = inputs[n,c] - m
        s += d*d
        m = 0.9*m + 0.1*inputs[n,c]
    value[n] = s + m
""",
        ROWS,
        "inputs",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    forward_computes_the_same(CASES[name])
    gradients_are_differences(CASES[name])


def test_running_maximum() -> None:
    # The gradients of all its values went to the last winner.
    source = """
for n in range(2):
    m: float32 = inputs[n,0]
    for c in range(5):
        m = max(m, inputs[n,c])
        value[n,c] = m
"""
    with pytest.raises(DerivativeError, match="it needs a value of m that"):
        Case(source, {"value": (2, 5), "inputs": (2, 5)}, "inputs").derive()
