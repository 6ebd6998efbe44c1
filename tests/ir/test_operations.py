"""The table of operations, held to what the operations are; folds of expressions, and what of them is evaluated."""

from __future__ import annotations

import ast
import itertools
import math
import random

import numpy as np
import pytest

from swirl.analysis.isl_notation import condition_to_isl
from swirl.analysis.sets import least
from swirl.ir.nest import expr, names_in
from swirl.ir.operations import CALLS, COMPARISONS, FUNCTIONS, OPERATORS
from swirl.ir.printing import unparse
from swirl.ir.trees import certain_references, condition_of, fold, guarded
from swirl.ir.types import dtype_of

NUMBERS = range(-4, 5)


@pytest.mark.parametrize("kind", OPERATORS, ids=lambda kind: kind.__name__)
def test_an_operator_is_python_s(kind: type[ast.operator]) -> None:
    known = OPERATORS[kind]
    for a, b in itertools.product(NUMBERS, NUMBERS):
        if b or kind not in (ast.Div, ast.FloorDiv, ast.Mod):
            text = f"{a} {known.symbol} ({b})"
            assert known.compute(a, b) == eval(text), text
    parsed = ast.parse(f"a {known.symbol} b", mode="eval").body
    assert isinstance(parsed, ast.BinOp) and type(parsed.op) is kind
    assert dtype_of(ast.BinOp(ast.Constant(1), kind(), ast.Constant(2)), {}) == known.least


@pytest.mark.parametrize("kind", OPERATORS, ids=lambda kind: kind.__name__)
def test_an_interval_has_every_result(kind: type[ast.operator]) -> None:
    known, ends = OPERATORS[kind], [(low, high) for low in NUMBERS for high in NUMBERS if low <= high]
    pick = random.Random(3)
    for one, two in pick.sample([*itertools.product(ends, ends)], 400):
        low, high = known.interval(one, two)
        for a, b in itertools.product(range(one[0], one[1] + 1), range(two[0], two[1] + 1)):
            if b or kind not in (ast.Div, ast.FloorDiv, ast.Mod):
                assert low <= known.compute(a, b) <= high, (one, two, a, b)
    low, high = known.interval((0, math.inf), (3, 3))
    assert all(low <= known.compute(number, 3) <= high for number in (0, 1, 10**9))


@pytest.mark.parametrize("kind", COMPARISONS, ids=lambda kind: kind.__name__)
def test_turned_comparisons_say_the_same(kind: type[ast.cmpop]) -> None:
    known = COMPARISONS[kind]
    for a, b in itertools.product(NUMBERS, NUMBERS):
        holds = eval(f"{a} {known.symbol} {b}")
        assert known.compute(a, b) == holds
        assert COMPARISONS[known.mirrored].compute(b, a) == holds
        assert COMPARISONS[known.opposite].compute(a, b) != holds
    for low, high in ((low, high) for low in NUMBERS for high in NUMBERS if low <= high):
        found = {known.compute(difference, 0) for difference in range(low, high + 1)}
        assert known.decided(low, high) == (found.pop() if len(found) == 1 else None)
    point = least(f"{{ [i] : 0 <= i < 9 and {condition_to_isl(expr(f'i {known.symbol} 4'))} }}", 1)
    assert point == (min(i for i in range(9) if known.compute(i, 4)),)


SINGLE = [name for name, known in FUNCTIONS.items() if known.arguments == 1]


@pytest.mark.parametrize("name", SINGLE)
def test_a_function_and_its_derivative(name: str) -> None:
    known = FUNCTIONS[name]
    assert known.floating is not None and known.rational is not None and known.derivative is not None
    assert names_in(expr(known.derivative)) <= {"x", "r", *CALLS}
    calls = {other: each.floating for other, each in FUNCTIONS.items()}
    low, high = known.range
    for x in (0.15, 0.9, 1.4, 2.6):
        for argument in (x, -x) if not known.positive and name != "log1p" else (x,):
            value, step = known.floating(np.float64(argument)), 1e-6
            assert low <= value <= high
            difference = (
                known.floating(np.float64(argument + step)) - known.floating(np.float64(argument - step))
            ) / 2e-6
            slope = eval(known.derivative, {"__builtins__": {}, **calls, "x": np.float64(argument), "r": value})
            assert abs(slope - difference) <= 1e-7 * max(1, abs(slope)), (argument, slope, difference)
            assert known.numbers is not None and abs(known.numbers(argument) - value) <= 1e-15 * max(1, abs(value))
            assert known.rational(3) == known.rational(3)


def test_a_fold_leaves_out_subscripts_and_names_of_functions() -> None:
    def names(node: ast.expr, inside: list[list[str]]) -> list[str]:
        own = [unparse(node)] if isinstance(node, (ast.Name, ast.Subscript)) else []
        return [*own, *itertools.chain(*inside)]

    assert fold(expr("max(a, x[i + j]) * (b if x[k] > 0 else -c)"), names) == ["a", "x[i + j]", "x[k]", "b", "c"]
    (statement,) = ast.parse("y[i] += exp(a) - b").body
    assert fold(statement, names) == ["y[i]", "a", "b"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x[0] if c[0] else y[0]", {"c[0]": [], "x[0]": ["c[0]"], "y[0]": ["not c[0]"]}),
        ("a[0] and b[0] and c[0]", {"a[0]": [], "b[0]": ["a[0]"], "c[0]": ["a[0]", "b[0]"]}),
        ("a[0] or b[0]", {"a[0]": [], "b[0]": ["not a[0]"]}),
        (
            "a[0] < b[0] <= c[0] < d[0]",
            {"a[0]": [], "b[0]": [], "c[0]": ["a[0] < b[0]"], "d[0]": ["a[0] < b[0]", "b[0] <= c[0]"]},
        ),
        ("a[0] + b[0]", {"a[0]": [], "b[0]": []}),
    ],
)
def test_what_is_evaluated_when(text: str, expected: dict[str, list[str]]) -> None:
    tree = expr(text)
    assert {
        unparse(part): [unparse(condition_of(guard)) for guard in guards] for part, guards in guarded(tree)
    } == expected
    assert {unparse(found) for found in certain_references(tree)} == {
        part for part, when in expected.items() if not when
    }
