"""Exponentials that are divided in place later: backward multiplies the quotient by the divisor, where that is the
value that forward computed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ir.test_autodiff_differences import Case, gradients_are_differences, run

SHAPES = {"inputs": (3, 4), "e": (3, 4), "total": (3,), "value": (3, 4)}
SUM = """
for n in range(3):
    total[n] = 0.0
for n in range(3):
    for c in range(4):
        e[n, c] = exp(inputs[n, c])
        total[n] += e[n, c]
"""
SHARE = """
for n in range(3):
    for c in range(4):
        value[n, c] = e[n, c] * inputs[n, c]
"""
DIVIDE = """
for n in range(3):
    for c in range(4):
        e[n, c] = e[n, c] / total[n]
"""
LOCAL = """
for n in range(3):
    total_here: float32 = 0.0
    for c in range(4):
        e[n, c] = exp(inputs[n, c])
        total_here += e[n, c]
    for c in range({until}):
        e[n, c] = e[n, c] / total_here
    for c in range(4):
        value[n, c] = e[n, c] * inputs[n, c]
"""
ZERO = "for n in range(3):\n    for c in range(4):\n        value[n, c] = 0.0"
CHANGED = SUM + DIVIDE + "for n in range(3):\n    total[n] = total[n] * 2.0\n" + SHARE
OTHER_NAMES = "for i in range(3):\n    for k in range(4):\n        e[i, k] = e[i, k] / total[i]\n"
RECOVERED = {
    "a field": SUM + DIVIDE + SHARE,
    "other names of loops": SUM + OTHER_NAMES + SHARE,
    "a local": LOCAL.format(until=4),
    "a local that is stored": LOCAL.format(until=4).replace(
        "e[n, c] = exp(inputs[n, c])\n        total_here += e[n, c]",
        "part: float32 = exp(inputs[n, c])\n        e[n, c] = part\n        total_here += part",
    ),
    "a triangle": ZERO + LOCAL.format(until=4).replace("range(4)", "range(n + 2)"),
    "by a parameter": SUM.replace("        total[n] += e[n, c]\n", "") + DIVIDE.replace("total[n]", "w[n]") + SHARE,
}
OTHER = {
    "some elements": SUM + DIVIDE.replace("range(4)", "range(1, 4)") + SHARE,
    "some, by a local": LOCAL.format(until=3),
    "under a condition": SUM + DIVIDE.replace("        e[", "        if inputs[n, c] > 0.0:\n            e[") + SHARE,
    "twice": SUM + DIVIDE + DIVIDE + SHARE,
    "with another statement": SUM + DIVIDE + "for n in range(3):\n    e[n, 0] = e[n, 0] * 2.0\n" + SHARE,
    "by what an iteration changes": SUM
    + DIVIDE.replace("/ total[n]\n", "/ total[n]\n        total[n] = total[n] * 1.25\n")
    + SHARE,
    "by an expression": SUM + DIVIDE.replace("total[n]", "(total[n] + 1.0)") + SHARE,
    "by a loop's variable": SUM + DIVIDE.replace("total[n]", "n").replace("range(3)", "range(1, 3)") + SHARE,
    "not in place": SUM + DIVIDE.replace("e[n, c] / ", "inputs[n, c] / ") + SHARE,
}


def case_of(source: str) -> Case:
    own = {name: shape for name, shape in SHAPES.items() if f"{name}[" in source}
    shapes: dict[str, tuple[int, ...]] = {**own, **({"w": (3,)} if "w[n]" in source else {})}
    return Case(source.strip(), shapes, "inputs", params="w" if "w" in shapes else "", positive="w inputs")


@pytest.mark.parametrize("name", [*RECOVERED, *OTHER])
def test_gradients_are_differences(name: str) -> None:
    gradients_are_differences(case_of({**RECOVERED, **OTHER}[name]))


def test_a_divisor_that_changes_later_is_kept() -> None:
    gradients_are_differences(case_of(CHANGED))
    derived = case_of(CHANGED).derive()
    assert derived.backward is not None and "total_before[n]" in derived.backward.text, derived.backward


@pytest.mark.parametrize("name", RECOVERED)
def test_the_exponential_is_not_computed_again(name: str) -> None:
    derived = case_of(RECOVERED[name]).derive()
    assert derived.backward is not None and "exp(" not in derived.backward.text, derived.backward
    assert not any("before" in buffer for buffer in derived.forward.buffers), derived.forward


@pytest.mark.parametrize("name", OTHER)
def test_other_divisions_are_not_taken_back(name: str) -> None:
    derived = case_of(OTHER[name]).derive()
    assert derived.backward is not None and "min(" not in derived.backward.text, derived.backward


@pytest.mark.parametrize("name", ["a field", "a local"])
def test_a_sum_that_overflows_has_no_gradient(name: str) -> None:
    """The quotients are zero: so is what they change by."""
    case = case_of(RECOVERED[name])
    derived = case.derive()
    with np.errstate(over="ignore"):
        after = run(derived.forward, {"inputs": np.full((3, 4), 709.0)})
    assert not after["value"].any()
    assert derived.backward is not None
    got = run(derived.backward, {**after, "grad": np.ones((3, 4)), "accumulate": np.zeros(1, np.int32)})
    np.testing.assert_array_equal(got["grad_inputs"], 0.0)


def test_a_quotient_of_an_exponential_is_its_own_derivative() -> None:
    source = "for n in range(3):\n    for c in range(4):\n        value[n, c] = exp(inputs[n, c]) / w[n]"
    case = case_of(source)
    gradients_are_differences(case)
    derived = case.derive()
    assert derived.backward is not None and "exp(" not in derived.backward.text, derived.backward
    assert derived.update is not None and "exp(" not in derived.update.text, derived.update
