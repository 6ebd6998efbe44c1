"""factor: the nests it prints, exactly the same results, the same bits from its C++, and what it refuses."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from inspect import cleandoc

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from swirl.errors import CommandError, Refused
from swirl.ir.execute import execute
from swirl.ir.nest import Program, expr, make_nest
from swirl.ir.polynomial import polynomial
from swirl.target.targets import TARGETS, Target
from swirl.transforms import COMMANDS
from swirl.transforms.passes.hoist import hoist
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from tests.support import assert_compiles_to_same, assert_same_expanded, merged, program, targets_in_turn

EXTENTS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17)
factor: Callable[..., Program] = COMMANDS["factor"]


def gradient(e: int) -> Program:
    """The sums of a batch norm's gradient, in one loop and in a second one."""
    return program(
        f"""
for j in range(2):
    p[j] = 0.0
    for i in range({e}):
        t: float32 = g[j, i] * a[j] / (b[j] * b[j] + 1.0)
        p[j] -= t
        q[j] -= 0.5 * t * (x[j, i] - m[j])
    p[j] = p[j] / 7.0
    for k in range({e}):
        u: float32 = 2.0 * p[j] * (x[j, k] - m[j])
        y[j, k] = a[j] * g[j, k] / (b[j] * b[j] + 1.0) + u
        q[j] -= u
""",
        p=(2,),
        q=(2,),
        a=(2,),
        b=(2,),
        m=(2,),
        g=(2, e),
        x=(2, e),
        y=(2, e),
    )


def apart(e: int) -> Program:
    """A sum of two loops, literals that are not decimal numbers, and an update in between."""
    return program(
        f"""
for j in range(2):
    for i in range({e}):
        for k in range(3):
            s[j] += (x[j, i] + m[j]) / 3.0 * w[k] - 0.1
            y[j, i] += 0.3 * a[j] * x[j, i] + a[j]
    m[j] = 2.0 * m[j]
    for i in range({e}):
        for k in range(3):
            s[j] += x[j, i] * w[k] * m[j]
""",
        s=(2,),
        m=(2,),
        a=(2,),
        x=(2, e),
        y=(2, e),
        w=(3,),
    )


def shared(e: int) -> Program:
    """Sums that are equal although they look different, one under a condition."""
    return program(
        f"""
for j in range(2):
    for i in range({e}):
        t[j] += x[j, i] * w[i]
        s[j] += w[i] * (a[j] * x[j, i])
        if i > 1:
            r[j] -= 2.0 * x[j, i]
            z[j, i] = a[j] * (x[j, i] * a[j])
    for l in range({e}):
        v[j] += x[j, l] * w[l] / (b[j] * b[j] + 1.0)
""",
        s=(2,),
        t=(2,),
        r=(2,),
        v=(2,),
        a=(2,),
        b=(2,),
        x=(2, e),
        z=(2, e),
        w=(e,),
    )


PROGRAMS: dict[str, Callable[[int], Program]] = {"gradient": gradient, "apart": apart, "shared": shared}
LOOPS = {"gradient": "ik", "apart": "i", "shared": "il"}


def factored(name: str, extent: int, keep: bool) -> Program:
    after = PROGRAMS[name](extent)
    for loop in LOOPS[name]:
        after = factor(after, loop, keep_differences=keep)
    return after


@pytest.mark.parametrize("keep", [False, True], ids=["split", "differences kept"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_prints(name: str, keep: bool, snapshot: SnapshotAssertion) -> None:
    assert snapshot == factored(name, 7, keep).text


@pytest.mark.parametrize("keep", [False, True], ids=["split", "differences kept"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_computes_exactly_the_same(name: str, keep: bool) -> None:
    for extent in EXTENTS:
        before, after = PROGRAMS[name](extent), factored(name, extent, keep)
        assert_same_expanded(before, after)
        assert_same_expanded(before, hoist(scalar_replace(tidy(after))))


IN_TURN = targets_in_turn()


@pytest.mark.parametrize(
    ("name", "target"),
    [(name, t) for name in PROGRAMS for t in (sorted(TARGETS) if name == "gradient" else [next(IN_TURN)])],
    indirect=["target"],
)
def test_compiles_to_the_same_bits(name: str, target: Target) -> None:
    """On every target where there are lanes: otherwise all targets get the same C++."""
    made = []
    for extent in (1, 7, 8, 9, 17):
        for keep in (False, True):
            after = factored(name, extent, keep)
            made += [after, COMMANDS["vectorize"](after, LOOPS[name][0], 8)] if name == "gradient" else [after]
    assert_compiles_to_same(merged([hoist(scalar_replace(tidy(p))) for p in made]), target)


def test_a_sum_is_made_by_the_earlier_loop() -> None:
    """Then the later one has nothing left, and is removed."""
    text = factored("shared", 5, False).text
    assert text.count("for ") == 2 and "for l" not in text


def test_a_sum_of_changed_data_stays_where_it_is() -> None:
    before = program(
        """
for i in range(4):
    s[0] += m[0] * x[i]
x[2] = 1.0
for i in range(4):
    s[0] += m[0] * x[i]
""",
        s=(1,),
        m=(1,),
        x=(4,),
    )
    one = Program("one", (make_nest("one", [s for n in before.nests for s in n.body], before.buffers),), before.buffers)
    assert assert_same_expanded(one, factor(one, "i")).text.count("for i") == 2


def test_updates_right_behind_become_one() -> None:
    before = program(
        """
for i in range(4):
    y[i] = a[0] * x[i]
    y[i] += x[i]
    y[i] -= x[i] * x[i]
    z[i] += x[i]
    z[i] += a[0] * x[i]
""",
        a=(1,),
        x=(4,),
        y=(4,),
        z=(4,),
    )
    text = assert_same_expanded(before, factor(before, "i")).text
    assert text.count("y[i]") == text.count("z[i]") == 1


@pytest.mark.parametrize("between", ["x[i]", "float32(n[i])", "3"])
@pytest.mark.parametrize("array", ["y", "n"])
def test_stores_that_round_stay_apart(array: str, between: str) -> None:
    """An integer's value is rounded at each store."""
    before = program(
        f"""
for i in range(4):
    s[0] += a[0] * x[i]
    {array}[i] = 0.5 * x[i]
    {array}[i] += {between}
    {array}[i] += {array}[i - 1 + 1] if x[i] > 0.0 else 1.0
    y[i] = 1.0
    y[i] += m[i]
""",
        s=(1,),
        a=(1,),
        x=(4,),
        y=(4,),
        n=(4,),
        m=(4,),
    )
    integers = {name: replace(before.buffers[name], dtype="int32") for name in ("n", "m")}
    before = before.with_buffers(**integers)
    after = factor(before, "i")
    numbers = np.random.default_rng(0)
    given: dict[str, np.ndarray] = {name: numbers.normal(size=b.shape) * 3 for name, b in before.buffers.items()}
    given = {name: array.astype(before.buffers[name].dtype) for name, array in given.items()}
    found = []
    for each in (before, after):
        found.append({name: array.copy() for name, array in given.items()})
        execute(each, found[-1])
    for name in ("n", "y", "m"):
        np.testing.assert_array_equal(found[0][name], found[1][name])
    assert "x_sum" in after.text  # what does not round is factored


def test_sums_over_blocks_that_may_not_run() -> None:
    """Elements that the condition protects are not read outside."""
    before = program(
        """
for j in range(3):
    for i in range(max(0, 1 - j), 4):
        if j > 0:
            s[j] += m[j - 1] * x[i]
            y[j, i] = m[j - 1] * (m[j - 1] * x[i])
        r[j] += 2.0 * (x[i] * x[i])
""",
        s=(3,),
        r=(3,),
        m=(2,),
        x=(4,),
        y=(3, 4),
    )
    text = assert_same_expanded(before, factor(before, "i")).text
    assert "s[j] += m[j - 1] * x[i]" in text and "r[j] += 2.0 * x_sum" in text


ROWS = {"s": (3,), "x": (3, 4), "y": (3, 4), "a": (3,)}
REFUSALS: dict[str, tuple[Program, str]] = {
    "nothing": (
        program("for j in range(3):\n for i in range(4):\n  s[j] += x[j, i] * y[j, i]", **ROWS),
        """
        no factor and no summand stays the same
            for j in range(3):
                for i in range(4):    ← asked to be factored
                    s[j] += x[j, i] * y[j, i]
          s[j] += x[j, i] * y[j, i]""",
    ),
    "division": (
        program("for j in range(3):\n for i in range(4):\n  s[j] += 1.0 / (x[j, i] - a[j])", **ROWS),
        """
        no factor stays the same: x[j, i] - a[j] moves with i, and divides
            for j in range(3):
                for i in range(4):    ← asked to be factored
                    s[j] += 1.0 / (x[j, i] - a[j])
          s[j] += 1.0 / (x[j, i] - a[j])
          divide by something that does not move""",
    ),
    "condition": (
        program("for j in range(3):\n for i in range(4):\n  if j > 0:\n   s[j] += a[j - 1] * x[j, i]", **ROWS),
        """
        the sum may be empty, and what would be computed outside may not exist then
            for j in range(3):
                for i in range(4):    ← asked to be factored
                    if j > 0:
                        s[j] += a[j - 1] * x[j, i]
          s[j] += a[j - 1] * x[j, i]""",
    ),
    "no sum": (
        program("for j in range(3):\n for i in range(4):\n  y[j, i] = x[j, i] * a[j]", **ROWS),
        """
        no sum runs over i, and no assignment gets shorter
            for j in range(3):
                for i in range(4):    ← asked to be factored
                    y[j, i] = x[j, i] * a[j]
          name the loop that the sum runs over""",
    ),
    "lanes": (
        program(
            "for j in range(3):\n for i in range(4):\n  for v in vector(4):\n   y[j, v] += a[j] * x[i, v]",
            a=(3,),
            x=(4, 4),
            y=(3, 4),
        ),
        """
        i holds the vector loop v
            for j in range(3):
                for i in range(4):    ← asked to be factored
                    for v in vector(4):
                        y[j, v] += a[j] * x[i, v]
          give this command before the one that made it so""",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    before, text = REFUSALS[name]
    with pytest.raises(Refused) as caught:
        factor(before, "i")
    assert str(caught.value) == cleandoc(text).replace("\n", "\n")


def test_an_unknown_loop() -> None:
    with pytest.raises(CommandError, match="no loop named 'q'"):
        factor(gradient(3), "q")


# --- polynomials ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("(a + b) * (a - b)", "a * a - b * b"),
        ("(x - m) / 3.0 + m / 3.0", "x / 3"),
        ("0.1 * x + 0.2 * x", "0.3 * x"),
        ("-(a - b) * f(x)", "f(x) * b - f(x) * a"),
        ("a / (b + c)", "1.0 / (b + c) * a"),
    ],
)
def test_equal_polynomials(one: str, other: str) -> None:
    assert polynomial(expr(one)) == polynomial(expr(other))


@pytest.mark.parametrize(
    ("one", "other"), [("a * b", "a + b"), ("a / b", "b / a"), ("x / 3.0", "0.3333333 * x"), ("a / a", "1.0")]
)
def test_different_polynomials(one: str, other: str) -> None:
    assert polynomial(expr(one)) != polynomial(expr(other))


@pytest.mark.parametrize("text", ["-2.0 * a * b", "x / 3.0 - 1.0", "a * b / c / 7.0 + d", "-x / y", "0.0"])
def test_polynomials_as_expressions(text: str) -> None:

    assert ast.unparse(polynomial(expr(text)).to_expr()) == text
