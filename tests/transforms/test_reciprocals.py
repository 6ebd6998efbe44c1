"""Statements of a block that divide by the same multiply by one reciprocal, where none of its digits are lost."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest

from latte import MemoryDataLayer, Net, SoftmaxLayer
from swirl.ir.execute import execute
from swirl.ir.nest import Program
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from swirl.transforms.passes.hoist import hoist
from tests.support import assert_all_compile_to_same, assert_same, program

SHARED = {
    "two statements": """
        s: float32 = 1.0 + exp(x[i])
        y[i] = a[i] / s
        z[i] = b[i] / s
    """,
    "one statement, an expression": "y[i] = a[i] / (exp(x[i]) + 0.5) - 1.0 / (exp(x[i]) + 0.5)",
    "twice in one quotient": "y[i] = a[i] / sqrt(x[i]) / sqrt(x[i])",
    "in a condition, too": """
        y[i] = a[i] / (1.0 + exp(x[i]))
        z[i] = b[i] / (1.0 + exp(x[i])) if b[i] > 0.0 else a[i]
    """,
    "a divisor in a divisor": """
        y[i] = a[i] / (1.0 + exp(b[i] / (1.0 + exp(x[i]))))
        z[i] = b[i] / (1.0 + exp(b[i] / (1.0 + exp(x[i])))) - a[i] / (1.0 + exp(x[i]))
    """,
    "a statement between that stores what it does not read": """
        y[i] = a[i] / (2.0 + exp(x[i]))
        z[i] = 3.0
        z[i] += b[i] / (2.0 + exp(x[i]))
    """,
}
"""Blocks that divide by one reciprocal; each in a loop over ``i``."""

APART = {
    "once": "y[i] = a[i] / (1.0 + exp(x[i]))",
    "a divisor that may be zero": """
        y[i] = a[i] / x[i]
        z[i] = b[i] / x[i]
    """,
    "a sum that may be tiny": """
        y[i] = a[i] / (1e-39 + exp(x[i]))
        z[i] = b[i] / (1e-39 + exp(x[i]))
    """,
    "the divisor changes": """
        y[i] = a[i] / (1.0 + exp(x[i]))
        x[i] = b[i]
        z[i] = b[i] / (1.0 + exp(x[i]))
    """,
    "in conditions alone": """
        y[i] = a[i] / (1.0 + exp(x[i])) if a[i] > 0.0 else 0.0
        z[i] = b[i] / (1.0 + exp(x[i])) if b[i] > 0.0 else 0.0
    """,
    "blocks apart": """
        if i < 3:
            y[i] = a[i] / (1.0 + exp(x[i]))
        else:
            z[i] = b[i] / (1.0 + exp(x[i]))
    """,
    "a local that is set again": """
        s: float32 = exp(x[i])
        if i > 2:
            s = a[i]
        y[i] = a[i] / (1.0 + s)
        z[i] = b[i] / (1.0 + s)
    """,
}
"""Blocks that keep their quotients."""


def _in_a_loop(block: str, extent: int = 5) -> Program:
    text = f"for i in range({extent}):\n" + textwrap.indent(textwrap.dedent(block).strip("\n"), "    ")
    return program(text, **dict.fromkeys("abxyz", (extent,)))


@pytest.mark.parametrize("name", SHARED)
def test_a_block_divides_once(name: str) -> None:
    before = _in_a_loop(SHARED[name])
    after = assert_same(before, hoist(before), keeps_bits=False)
    quotients = after.text.count("/")
    assert quotients == (2 if name == "a divisor in a divisor" else 1), after.text


def test_reciprocals_are_compiled_as_they_are_executed(target: Target) -> None:
    """Bit for bit, so of roots: exponentials are the target's."""
    roots = [block.replace("exp", "sqrt") for block in SHARED.values()]
    assert_all_compile_to_same([hoist(_in_a_loop(block, 17)) for block in roots], target)


@pytest.mark.parametrize("name", APART)
def test_quotients_that_stay(name: str) -> None:
    before = _in_a_loop(APART[name])
    after = assert_same(before, hoist(before))
    assert after.text.count("/") == before.text.count("/"), after.text


SHARES = """
    for i in range(4):
        s: float32 = 0.0
        for j in range(17):
            s += x[i, j] * x[i, j]
        for j in range(17):
            y[i, j] = x[i, j] * x[i, j] / s
"""


def test_a_division_that_may_become_a_multiplication_says_so(target: Target) -> None:
    before = program(textwrap.dedent(SHARES).strip(), x=(4, 17), y=(4, 17))
    assert "/ s" in hoist(before).text
    after = assert_same(before, COMMANDS["hoist"](before, reciprocal=True), keeps_bits=False)
    assert "inverse: float32 = 1.0 / s" in after.text and "x[i, j] * x[i, j] * inverse" in after.text
    assert_all_compile_to_same([after], target)


def test_infinities_and_zeros_are_those_of_the_quotient() -> None:
    before = program("for i in range(4):\n for j in range(6):\n  y[i, j] = x[i, j] / w[i]", x=(4, 6), y=(4, 6), w=(4,))
    after = COMMANDS["hoist"](before, reciprocal=True)
    x = np.tile(np.array([0.0, -0.0, 1.5, -np.inf, np.nan, 3e38], np.float32), (4, 1))
    w = np.array([0.0, -0.0, np.inf, 2.0], np.float32)
    found = []
    for made in (before, after):
        arrays = {"x": x.copy(), "w": w.copy(), "y": np.zeros((4, 6), np.float32)}
        with np.errstate(all="ignore"):
            execute(made, arrays)
        found.append(arrays["y"])
    assert np.array_equal(*found, equal_nan=True)


def test_explain_says_what_a_multiplication_assumes(tmp_path: Path) -> None:
    recipe = tmp_path / "own.py"
    recipe.write_text('def forward(s, target):\n    s.hoist("forward", reciprocal=True)\n')
    net = Net(2, seed=1)
    layer = SoftmaxLayer(net, MemoryDataLayer(net, (6,)))
    net.use_recipe(layer, recipe)
    net.compile()
    assert "assumes that no reciprocal of what is divided by overflows or loses digits" in str(net.explain(layer))
