"""Random bodies: their derived gradients are the differences (a short run of ``make fuzz DERIVATIVES=1``)."""

from __future__ import annotations

import ast
from collections import Counter
from fractions import Fraction

import pytest

from latte.autodiff.adjoint_terms import Term
from latte.autodiff.partials import Partials
from tests.fuzz.derivative_cases import Writer
from tests.fuzz.derivative_checks import case_of, problem, run_derivatives
from tests.fuzz.derivative_shrink import shrunk

CASES, AT_ONCE = 80, 10


@pytest.mark.parametrize("first", range(0, CASES, AT_ONCE))
def test_random_bodies(first: int) -> None:
    found = run_derivatives(first, AT_ONCE)
    assert not found["wrong"], found["wrong"][0]["test"]
    counts = Counter(found["counts"])
    # A generator of kinks, infinite values or refused bodies would find nothing.
    assert counts["compared"] >= AT_ONCE / 2
    assert counts["directions skipped"] <= counts["directions"] / 4


def test_bodies_of_one_seed_are_equal() -> None:
    assert Writer(5, layer=False).program() == Writer(5, layer=False).program()
    assert case_of(7)[1] and case_of(9)[2]


def test_a_wrong_derivative_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Partials.walk

    def wrong(self: Partials, node: ast.expr, term: Term, result: ast.expr | None = None) -> None:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "tanh":
            term = term.scaled(Fraction(2))
        right(self, node, term, result)

    source = """
for n in range(3):
    s[n] = 0.5 * w[0]
    for i in range(4):
        t: float64 = tanh(inputs[n, i] * w[i])
        if t > 0.0:
            s[n] += t
        value[n, i] = t * inputs[n, 3 - i]
"""
    monkeypatch.setattr(Partials, "walk", wrong)
    assert problem(source, 1, False, False).wrong is not None
    small = shrunk(source, lambda text: problem(text, 1, False, False).wrong)
    assert "tanh" in small
    assert len(small.splitlines()) <= 5
    monkeypatch.undo()
    assert problem(small, 1, False, False).wrong is None
