"""The oracle in floating point: it finds planted errors, each of which rational arithmetic or a loose tolerance would
not show, and accepts results that another order of the same arithmetic gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, parse_program
from swirl.transforms import COMMANDS
from tests.fuzz.batch import executed_problem
from tests.fuzz.bounded import Number, Undecided, bounded, outside
from tests.fuzz.checks import random_pick
from tests.fuzz.commands import RECIPES, Command, CommandMaker
from tests.fuzz.features import FEATURES, features
from tests.fuzz.floats import STYLES, bits, data, executed, floating_problem, in_any_order, keeping_bits, touched
from tests.fuzz.programs import ProgramMaker
from tests.fuzz.shrink import regression_test, shrink
from tests.support import floating_difference, program

SEEDS = range(10)

Types = dict[str, str]


def typed(text: str, types: Types, **shapes: tuple[int, ...]) -> Program:
    """A program whose buffers have types."""
    buffers = {name: Buffer(f"net.{name}", shape, types.get(name, "float32")) for name, shape in shapes.items()}
    return parse_program(text, buffers)


MUTANTS: dict[str, tuple[str, str, str, Types]] = {
    "an iteration is dropped": (
        "for j in range(7):",
        "for j in range(6):",
        """
for i in range(5):
    for j in range(7):
        z[i] += x[i, j] * w[j]
""",
        {},
    ),
    "an element is taken twice": (
        "x[i, j + 1]",
        "x[i, j]",
        """
for i in range(5):
    for j in range(6):
        z[i] += x[i, j] - x[i, j + 1] * w[j]
""",
        {},
    ),
    "a guard is dropped": (
        "if i > 1:",
        "if i > 0:",
        """
for i in range(5):
    t: float32 = x[i, 0]
    z[i] = t
for i in range(5):
    t: float32 = w[i]
    if i > 1:
        z[i] += t
""",
        {},
    ),
    "a sum starts elsewhere": (
        "t: float32 = 0.0",
        "t: float32 = w[0]",
        """
for i in range(5):
    t: float32 = 0.0
    for j in range(7):
        t += x[i, j] / sqrt(w[j] * w[j] + 1.0)
    z[i] = t
""",
        {},
    ),
    "single precision": (
        "t: float64",
        "t: float32",
        """
for i in range(5):
    t: float64 = 0.0
    for j in range(7):
        t += x[i, j] * w[j]
    z[i] = t
""",
        {"x": "float64", "w": "float64", "z": "float64"},
    ),
}
"""Errors that must show although the order of sums is free: what is replaced, by what, the program, types."""

EXACT: dict[str, tuple[str, str, str, Types]] = {
    "operands of max are swapped": ("max(x[i], w[i])", "max(w[i], x[i])", "z[i] = max(x[i], w[i])", {}),
    "a test on NaN is deleted": ("0.0 if t != t else t", "t", "t: float32 = x[i]\nz[i] = 0.0 if t != t else t", {}),
    "t + 1 > t is decided": ("if t + 1.0 > t", "if True", "t: float32 = x[i]\nz[i] = 2.0 if t + 1.0 > t else 5.0", {}),
    "0 * x is 0": ("x[i] * 0.0", "0.0", "z[i] = x[i] * 0.0", {}),
    "x - x is 0": ("x[i] - x[i]", "0.0", "z[i] = x[i] - x[i]", {}),
    "x + 0 is x": ("x[i] + 0.0", "x[i]", "z[i] = x[i] + 0.0", {}),
    "a sum is regrouped": ("x[i] + w[i] + y[i]", "x[i] + (w[i] + y[i])", "z[i] = x[i] + w[i] + y[i]", {}),
    "a reciprocal": ("x[i] / w[i]", "x[i] * (1.0 / w[i])", "z[i] = x[i] / w[i]", {}),
    "a cast is dropped": (
        "float32(a[i] * 16777217.0)",
        "a[i] * 16777217.0",
        "a[i] = float32(a[i] * 16777217.0)",
        {"a": "float64"},
    ),
    "float32 in place of float64": (
        "float64(x[i]) * 3.1 - y[i]",
        "x[i] * 3.1 - y[i]",
        "z[i] = float64(x[i]) * 3.1 - y[i]",
        {},
    ),
    "int32 through float32": (
        "p[i] * 3 + 1",
        "int32(float32(p[i]) * 3.0 + 1.0)",
        "p[i] = p[i] * 3 + 1",
        {"p": "int32"},
    ),
    "int32 is compared as float32": (
        "p[i] > 16777216",
        "float32(p[i]) > 16777216.0",
        "z[i] = 1.0 if p[i] > 16777216 else 0.0",
        {"p": "int32"},
    ),
    "a value of `and` is 0 or 1": ("x[i] and w[i]", "float32(x[i] and w[i] != 0.0)", "z[i] = x[i] and w[i]", {}),
    "not a < b is b <= a": ("not x[i] < w[i]", "w[i] <= x[i]", "z[i] = 1.0 if not x[i] < w[i] else 0.0", {}),
}
"""Errors in one statement, which must show where every bit is compared."""

SHAPES = {"x": (5, 8), "w": (8,), "y": (5,), "z": (5,), "a": (5,), "p": (5,)}


def pair(old: str, new: str, text: str, types: Types) -> tuple[Program, Program]:
    """A program, and the same one with an error."""
    shapes = {name: shape for name, shape in SHAPES.items() if f"{name}[" in text}
    if "x[i]" in text:
        shapes["x"] = (5,)
    assert old in text
    return typed(text, types, **shapes), typed(text.replace(old, new), types, **shapes)


@pytest.mark.parametrize("name", MUTANTS)
def test_errors_show_where_the_order_is_free(name: str) -> None:
    right, wrong = pair(*MUTANTS[name])
    found = [in_any_order(right, wrong, seed, expands=False)[0] for seed in SEEDS]
    assert sum(problem is not None for problem in found) >= 4
    assert [in_any_order(right, right, seed, expands=False)[0] for seed in SEEDS] == [None] * len(SEEDS)


@pytest.mark.parametrize("name", EXACT)
def test_errors_show_where_every_bit_counts(name: str) -> None:
    old, new, body, types = EXACT[name]
    text = "for i in range(5):\n" + "\n".join(f"    {line}" for line in body.splitlines())
    right, wrong = pair(old, new, text, types)
    found = [floating_difference(right, wrong, seed, keeps_bits=True, expands=False) for seed in range(40)]
    assert any(found), "nothing was found"
    assert not any(floating_difference(right, right, seed, keeps_bits=True, expands=False) for seed in SEEDS)


def test_the_declaration_of_a_name_used_again() -> None:
    """A guard on the second local of one name is dropped: facts about the first do not apply to it."""
    text = """
for i in range(5):
    if i < 3:
        t: float32 = 0.0
        z[i] += t
    else:
        t: float32 = x[i, 0]
        if t > 0.0:
            z[i] += t
"""
    right, wrong = pair("        if t > 0.0:\n            z", "        if True:\n            z", text, {})
    assert any(in_any_order(right, wrong, seed, expands=False)[0] for seed in SEEDS)


def test_nothing_is_claimed_where_a_command_has_assumed_finite_factors() -> None:
    """0 · Σ 1/√x is NaN for a negative x; ``factor`` leaves the product out. What is finite must still be right."""
    text = "for i in range(5):\n    z[i] += 0.0 / sqrt(x[i]) + y[i]"
    right = typed(text, {}, x=(5,), y=(5,), z=(5,))
    left_out = typed(text.replace("0.0 / sqrt(x[i]) + ", ""), {}, x=(5,), y=(5,), z=(5,))
    wrong = typed(text.replace("0.0", "0.5"), {}, x=(5,), y=(5,), z=(5,))
    assert not any(in_any_order(right, left_out, seed, expands=True)[0] for seed in SEEDS)
    assert any(in_any_order(right, left_out, seed)[0] for seed in SEEDS)
    assert any(in_any_order(right, wrong, seed, expands=True)[0] for seed in SEEDS)


ORDERS: dict[str, Callable[[np.ndarray], float]] = {
    "backwards": lambda x: _sum(x[::-1]),
    "pairwise": lambda x: float(_pairwise(list(x))),
    "by size": lambda x: _sum(x[np.argsort(np.abs(x))]),
    "greatest first": lambda x: _sum(x[np.argsort(-np.abs(x))]),
}


def _sum(terms: Sequence[np.float32] | np.ndarray) -> float:
    total = np.float32(0)
    for term in terms:
        total = np.float32(total + term)
    return float(total)


def _pairwise(terms: list[np.float32]) -> np.float32:
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return np.float32(_pairwise(terms[:half]) + _pairwise(terms[half:]))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("style", STYLES)
def test_any_order_of_a_sum_is_within_the_bound(order: str, style: str) -> None:
    summing = program("for i in range(37):\n    z[0] += x[i]", x=(37,), z=(1,))
    known = 0
    for seed in range(20):
        x = data({"x": Buffer("x", (37,))}, seed, style)["x"]
        expected = bounded(summing, {"x": x, "z": np.zeros(1, np.float32)})["z"]
        with np.errstate(all="ignore"):
            got = np.array([ORDERS[order](x)], np.float32)
        assert outside(got, expected, 2.0) is None
        number: Number = expected[0]
        known += not number.unknown
        if style == "whole":
            assert number.error == 0  # exact in every order
        if style == "plain":
            assert 0 < number.error < 1e-4
    assert known > 15 or style in ("huge", "special", "few special")


@pytest.mark.parametrize(
    ("factors", "known"),
    [
        ((2.0, 3.0, 0.5, 4.0), True),
        ((0.0, 3.0, 1e20, 1e10), True),
        ((0.0, 1e30, 1e30), False),
        ((1e30, 1e-30, 1e30), False),
        ((1e-30, 1e-30, 1e30, 1e30), False),
        ((np.inf, 0.0, 2.0), True),
        ((1e-40, 2.0), True),
        ((np.inf, 1e-30, 1e-30), False),
        ((np.inf, 1e30, 1e-30), True),
    ],
)
def test_a_product_that_some_order_takes_out_of_range_is_unknown(factors: tuple[float, ...], known: bool) -> None:
    """0 · 10³⁰ · 10³⁰ is 0, or 0 · ∞."""
    product = program("for i in range(N):\n    z[0] *= x[i]".replace("N", str(len(factors))), x=(len(factors),), z=(1,))
    found = bounded(product, {"x": np.array(factors, np.float32), "z": np.ones(1, np.float32)})["z"][0]
    assert found.unknown != known


@pytest.mark.parametrize(
    ("terms", "known"),
    [
        ((-np.inf, 3e38, 3e38), False),
        ((3e38, 3e38, -np.inf), False),
        ((np.inf, 1.0, 3e38), True),
        ((np.inf, np.inf, 1.0), True),
        ((np.inf, -np.inf, 3e38), True),
        ((np.nan, 3e38, 3e38), True),
    ],
)
def test_an_infinity_beside_terms_that_overflow_by_themselves_is_unknown(terms: tuple[float, ...], known: bool) -> None:
    """-∞ + (3 · 10³⁸ + 3 · 10³⁸) is NaN."""
    summing = program("for i in range(3):\n    z[0] += x[i]", x=(3,), z=(1,))
    found = bounded(summing, {"x": np.array(terms, np.float32), "z": np.zeros(1, np.float32)})["z"][0]
    assert found.unknown != known


@pytest.mark.parametrize("call", ["int32(t)", "floor(t)"])
def test_a_bound_beyond_the_greatest_number(call: str) -> None:
    """The sum is near the greatest double: its bound reaches infinity."""
    text = "for i in range(3):\n    z[0] += x[i]\nfor k in range(1):\n    t: float64 = z[0]\n    y[0] = CALL"
    summing = program(text.replace("CALL", call), x=(3,), y=(1,), z=(1,))
    doubles = {name: Buffer(f"net.{name}", summing.buffers[name].shape, "float64") for name in ("x", "z")}
    summing = summing.with_buffers(**doubles, y=Buffer("net.y", (1,), "int32" if call[0] == "i" else "float64"))
    x = np.array([1.7e308, 7e306, 1e290])
    found = bounded(summing, {"x": x, "z": np.zeros(1), "y": np.zeros(1)})["y"][0]
    assert found == -(2**31) if call[0] == "i" else found.unknown


def test_data_that_leave_a_condition_open() -> None:
    together = program(
        """
for k in range(1):
    t: float32 = 0.0
    for i in range(9):
        t += x[i]
    z[0] = 1.0 if t > 0.0 else 2.0
""",
        x=(9,),
        z=(1,),
    )
    x = np.array([0.1, 0.2, 0.3, -0.6, 0, 0, 0, 0, 0], np.float32)
    with pytest.raises(Undecided):
        bounded(together, {"x": x, "z": np.zeros(1, np.float32)})
    assert bounded(together, {"x": x + 1, "z": np.zeros(1, np.float32)})["z"][0].value == 1.0


def test_which_commands_keep_bits() -> None:
    summing = program("for i in range(4):\n    for j in range(6):\n        z[i] += x[i, j]", x=(4, 6), z=(4,))
    states = [("", summing)]
    for name, arguments in (("split", ("j", [2])), ("interchange", (["i", "j"],)), ("tile_loop", ("i", 2))):
        states.append((name, COMMANDS[name](states[-1][1], *arguments)))
    runs = [(first[0], last[0]) for first, last in keeping_bits(states)]
    assert runs == [("", "split"), ("interchange", "tile_loop")]
    mapping = program("for i in range(4):\n    for j in range(6):\n        y[i, j] = x[i, j]", x=(4, 6), y=(4, 6))
    turned = COMMANDS["interchange"](mapping, ["i", "j"])
    assert len(keeping_bits([("", mapping), ("interchange", turned)])) == 1
    dividing = program("for i in range(4):\n    y[i] = x[i] / sqrt(w[0])", x=(4,), y=(4,), w=(1,))
    assert len(keeping_bits([("", dividing), ("hoist", COMMANDS["hoist"](dividing))])) == 2


def test_padding_and_shapes_of_their_own() -> None:
    """Commands that change layouts and shapes of buffers are compared, too."""
    before = program("for i in range(3):\n    for j in range(4):\n        y[i, j] = x[i, j] * 2.0", x=(3, 4), y=(3, 4))
    after = COMMANDS["flatten"](before, ["i", "j"])
    assert floating_problem([("", before), ("flatten", after)]) == (None, "every bit")
    given = data(touched(before), 1, "special")
    got, expected = executed(after, given), executed(before, given)
    assert bits(got, expected, before) is None
    got["y"][2, 1] = np.nextafter(expected["y"][2, 1], np.float32(9)) if np.isfinite(expected["y"][2, 1]) else 0
    assert (bits(got, expected, before) or "").startswith("y[2, 1] is ")


def test_every_feature_is_drawn() -> None:
    counts = dict.fromkeys(FEATURES, 0)
    for seed in range(400):
        pick = random_pick(seed)
        for feature in features(ProgramMaker(pick).program(CommandMaker.shape(pick(RECIPES)))):
            counts[feature] += 1
    assert not [feature for feature, count in counts.items() if count < 4], counts


def _times_zero(nests: Program, loop_var: str) -> Program:
    """A wrong command: over rationals, it does not show."""
    return parse_program(nests.text.replace("x[i] * 0.0", "0.0"), nests.buffers)


def test_what_only_floating_point_shows_becomes_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "split", _times_zero)
    before = program(
        """
for i in range(8):
    if w[i] > 0.0:
        z[i] = w[i] + 1.0
    z[i] += x[i] * 0.0
""",
        x=(8,),
        w=(8,),
        z=(8,),
    )
    commands: list[Command] = [("tidy", (), {}), ("split", ("i",), {})]
    fails = partial(executed_problem, seed=2)
    assert (fails(before, commands) or "").startswith("floats: between the start and split, z[")
    smaller, fewer = shrink(before, commands, fails)
    assert fewer == commands[1:]
    assert smaller.text.count("\n") == 2  # the function, the loop, one statement
    text = regression_test(smaller, fewer, fails(smaller, fewer) or "", "zero", 2)
    assert "assert_same(before, after, keeps_bits=True, seeds=[2])" in text
    scope: dict[str, Any] = {}
    exec("from tests.support import assert_same, program\nfrom swirl.transforms import COMMANDS\n" + text, scope)
    with pytest.raises(pytest.fail.Exception, match="became"):
        scope["test_zero"]()
