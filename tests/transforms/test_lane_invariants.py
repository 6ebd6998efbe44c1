"""What a loop does not change is computed before it for each of its lanes, where that is costly, and only there."""

from __future__ import annotations

import pytest

from swirl.ir.nest import Program
from swirl.target.targets import Target
from swirl.transforms.passes.hoist import hoist
from tests.support import assert_all_compile_to_same, assert_same, program

LANES = """
def nest(y, x, s, t):
    for n in range(3):
        for c in range(5):
            for u in unrolled(2):
                for i in vector(8):
                    {}
"""
SHAPES = {"y": (3, 5, 16), "x": (3, 5, 16), "s": (3, 16), "t": (5, 16)}
PLACE = "u * 8 + i"

HOISTED = {
    "a safe divisor": "y[n, c, P] = x[n, c, P] / sqrt(s[n, P] * s[n, P] + 1e-05)",
    "a call": "y[n, c, P] = x[n, c, P] * exp(s[n, P])",
    "a quotient of its own": "y[n, c, P] = x[n, c, P] + s[n, P] / (2.0 + s[n, P])",
    "of a local": """
        d: float32 = s[n, P] * s[n, P]
        e: float32 = 1.0 / sqrt(d + 1e-05)
        y[n, c, P] = x[n, c, P] * e * d
    """,
    "twice, once computed": "y[n, c, P] = x[n, c, P] * exp(s[n, P]) + exp(s[n, P])",
    "one copy for all lanes' copies": "y[n, c, P] = x[n, c, P] * exp(s[n, i])",
    "beside what changes": "y[n, c, P] = x[n, c, P] * exp(s[n, P]) * exp(t[c, P])",
}
LEFT = {
    "it changes with the loop": "y[n, c, P] = x[n, c, P] * exp(t[c, P])",
    "cheap": "y[n, c, P] = x[n, c, P] * (s[n, P] + 1.0)",
    "the loop stores to it": """
        y[n, c, P] = x[n, c, P] * exp(s[n, P])
        s[n, P] = y[n, c, P]
    """,
    "a local that changes": """
        d: float32 = s[n, P]
        d += x[n, c, P]
        y[n, c, P] = exp(d)
    """,
    "a local that a condition changes": """
        d: float32 = s[n, P]
        if x[n, c, P] > 0.0:
            d = x[n, c, P]
        y[n, c, P] = exp(d)
    """,
    "in a condition": "y[n, c, P] = x[n, c, P] / s[n, P] if s[n, P] > 0.0 else 0.0",
    "a divisor whose reciprocal may overflow": "y[n, c, P] = x[n, c, P] / s[n, P]",
}


def of(body: str) -> Program:
    lines = [line.strip() for line in body.strip().splitlines()]
    indent, text = "\n" + 20 * " ", []
    for number, line in enumerate(lines):  # a line after a colon belongs to it
        text.append(4 * " " * (number > 0 and lines[number - 1].endswith(":")) + line)
    return program(LANES.format(indent.join(text).replace("P", PLACE)), **SHAPES)


@pytest.mark.parametrize("body", HOISTED.values(), ids=HOISTED)
def test_computed_once_for_each_lane(body: str) -> None:
    before = of(body)
    after = assert_same(before, hoist(before), keeps_bits="/ sqrt" not in body or "1.0 / sqrt" in body)
    loop = after.nests[0].text.index("for c in")
    costly = [word for word in ("exp(s", "sqrt(", "/ ") if word in body]
    assert all(word not in after.nests[0].text[loop:] for word in costly)
    assert all(word in after.nests[0].text[:loop] for word in costly)
    assert after.nests[0].text.count("empty(") == 1


@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT)
def test_left_where_it_is(body: str) -> None:
    before = of(body)
    after = assert_same(before, hoist(before))
    assert "empty(" not in after.nests[0].text


def test_few_iterations_and_few_registers() -> None:
    short = LANES.replace("range(5)", "range(3)")
    text = short.format("y[n, c, u * 8 + i] = x[n, c, u * 8 + i] * exp(s[n, u * 8 + i])")
    assert "empty(" not in hoist(program(text, **SHAPES)).nests[0].text
    many = " + ".join(f"exp({factor}.5 * s[n, u * 8 + i])" for factor in range(7))
    before = of(f"y[n, c, P] = x[n, c, P] * ({many})")
    after = assert_same(before, hoist(before))
    assert after.nests[0].text.count("empty(2, 8)") == 4  # of two registers each


TWO_WIDTHS = """
def nest(y, x, s):
    for c in range(5):
        for i in vector(4):
            y[c, i] = x[c, i] * exp(s[i])
        for i in vector(8):
            x[c, i] = y[c, i] * exp(s[i])
"""


def test_loops_of_one_name_and_several_widths() -> None:
    before = program(TWO_WIDTHS, y=(5, 8), x=(5, 8), s=(8,))
    after = assert_same(before, hoist(before))
    assert "empty(4)" in after.nests[0].text and "empty(8)" in after.nests[0].text


OF_A_SUM = """
def nest(y, x):
    for n in range(5):
        total: float32 = 0.0
        for c in range(16):
            total += exp(x[n, c])
        for i in vector(16):
            y[n, i] = x[n, i] / total
"""


def test_a_divisor_that_the_loop_declares() -> None:
    before = program(OF_A_SUM, y=(5, 16), x=(5, 16))
    after = assert_same(before, hoist(before))
    assert "[16] = empty" not in after.nests[0].text


def test_compiles_to_the_same(target: Target) -> None:
    exact = [body for body in (*HOISTED.values(), *LEFT.values()) if "exp" not in body]
    assert_all_compile_to_same([hoist(of(body)) for body in exact], target)
