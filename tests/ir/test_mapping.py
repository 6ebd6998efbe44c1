"""Symbolic integers and mappings: exact windows, and every refusal."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latte.model.index import Index, NotAffine, as_index, maximum, minimum, variable
from latte.model.mapping import check_reach, trace
from swirl.errors import MappingError

LIMIT = 20


def expressions() -> st.SearchStrategy[str]:
    """Quasi-affine expressions of y (0 to 6) and x (0 to 4), as text."""
    constants = st.integers(-5, 5).map(str)
    divisors = st.integers(1, 4).map(str)
    leaves = st.sampled_from(["y", "x"]) | constants

    def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.tuples(inner, inner).map(lambda p: f"({p[0]} + {p[1]})"),
            st.tuples(inner, inner).map(lambda p: f"({p[0]} - {p[1]})"),
            st.tuples(inner, constants).map(lambda p: f"({p[0]} * {p[1]})"),
            st.tuples(inner, divisors).map(lambda p: f"({p[0]} // {p[1]})"),
            st.tuples(inner, divisors).map(lambda p: f"({p[0]} % {p[1]})"),
            st.tuples(inner, inner).map(lambda p: f"min({p[0]}, {p[1]})"),
            st.tuples(inner, inner).map(lambda p: f"max({p[0]}, {p[1]})"),
        )

    return st.recursive(leaves, grow, max_leaves=8)


@settings(deadline=None)
@given(expressions())
def test_symbolic_arithmetic_equals_python(text: str) -> None:
    names = {"y": variable("y", 0, 6), "x": variable("x", 0, 4), "min": minimum, "max": maximum}
    index = as_index(eval(text, names))
    for y, x in itertools.product(range(7), range(5)):
        expected = eval(text, {"y": y, "x": x})
        assert eval(index.text, {"y": y, "x": x}) == expected
        assert index.low <= expected <= index.high


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("y * 2 + x - 1", "y * 2 + x - 1"),
        ("(y * 4 + x) // 4", "y + x // 4"),
        ("(y * 10 + x) // 5", "y * 2"),
        ("(y * 10 + x) % 5", "x"),
        ("max(0, y)", "y"),
        ("min(6, y - 1)", "y - 1"),
        ("max(0, y - 1)", "max(0, y - 1)"),
        ("min(7, y + 3) - max(0, y)", "min(7, y + 3) - y"),
        ("3 - y", "-y + 3"),
        ("y - y", "0"),
    ],
)
def test_simplification(text: str, printed: str) -> None:
    names = {"y": variable("y", 0, 6), "x": variable("x", 0, 4), "min": minimum, "max": maximum}
    assert str(as_index(eval(text, names))) == printed


def test_decidable_comparisons_are_decided() -> None:
    y = variable("y", 0, 6)
    assert y >= 0
    assert y < 7
    assert not y > 6
    assert y != -1
    with pytest.raises(NotAffine, match="branches on y"):
        assert y == 3


def windows(mapping, dims=("k", "y"), shape=(4, 7), rank=2):
    return [window.text for window in trace(mapping, dims, shape, rank)]


H, K, S, P = 13, 3, 2, 1


def clipped(k, y):
    return range(k, k + 1), range(max(0, y * S - P), min(H, y * S - P + K))


def test_globals_and_closures_are_constants_and_stay_untouched() -> None:
    assert windows(clipped) == ["range(k, k + 1)", "range(max(0, y * 2 - 1), min(13, y * 2 + 2))"]
    assert "range" not in globals()
    assert "max" not in globals()
    extent = 5

    def mapping(k, y):
        return range(extent), range(y, y + extent, 2)

    assert windows(mapping) == ["range(0, 5)", "range(y, y + 5, 2)"]
    assert [window.extent for window in trace(mapping, ("k", "y"), (4, 7), 2)] == [5, 3]


def test_lambda_single_index_and_default_argument() -> None:
    assert windows(lambda k, y, step=3: (k, range(y * step, y * step + 2))) == [
        "range(k, k + 1)",
        "range(y * 3, y * 3 + 2)",
    ]


@settings(deadline=None, max_examples=60)
@given(expressions(), expressions(), st.integers(1, 3))
def test_reach_is_exact(start: str, stop: str, step: int) -> None:
    mapping = eval(f"lambda y, x: range({start}, {stop}, {step})", {})
    (window,) = trace(mapping, ("y", "x"), (7, 5), 1)
    read = set()
    for y, x in itertools.product(range(7), range(5)):
        read |= set(eval(f"range({start}, {stop}, {step})", {"y": y, "x": x}))
    assert window.reach() == ((min(read), max(read)) if read else None)


REFUSED = {
    "two ranges": (lambda k, y: (range(k), range(y), range(3)), "returns 3 ranges, its source has 2"),
    "quadratic": (lambda k, y: (range(k * y), range(y)), r"not affine: it multiplies k by y"),
    "true division": (lambda k, y: (range(k), range(y / 2)), r"y / 2, which is not an integer; write //"),
    "branch": (lambda k, y: (range(k), range(y) if y > 2 else range(3)), r"branches on y"),
    "truth": (lambda k, y: (range(k), range(y or 3)), r"branches on y"),
    "list": (lambda k, y: (range(k), range([1, 2, 3][y])), r"needs the number that y stands for"),
    "float": (lambda k, y: (range(k), range(y * 0.5)), r"it uses 0.5, which is not an integer"),
    "negative step": (lambda k, y: (range(k), range(y, 0, -1)), r"step of a range must be a positive"),
    "symbolic step": (lambda k, y: (range(k), range(0, 9, y + 1)), r"step of a range must be a positive"),
    "division by an index": (lambda k, y: (range(k), range(9 // y)), r"it divides by y"),
    "no range": (lambda k, y: (range(k), "y"), r"returns 'y' for dimension 1"),
    "exception": (lambda k, y: (range(k), range(undefined)), r"NameError"),  # noqa: F821
    "arguments": (lambda y: (range(y), range(y)), r"must take 2 arguments"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_refusals_name_the_place(case: str) -> None:
    mapping, message = REFUSED[case]
    with pytest.raises(MappingError, match=message) as caught:
        trace(mapping, ("k", "y"), (4, 7), 2)
    assert re.fullmatch(rf".*test_mapping\.py:{mapping.__code__.co_firstlineno}", str(caught.value.location))
    assert caught.value.way_out


def test_a_refusal_names_the_line_inside_the_mapping() -> None:
    def mapping(k, y):
        rows = range(k)
        return rows, range(y * k)

    with pytest.raises(MappingError) as caught:
        trace(mapping, ("k", "y"), (4, 7), 2)
    assert str(caught.value.location).endswith(f":{mapping.__code__.co_firstlineno + 2}")


def test_no_plain_function() -> None:
    with pytest.raises(MappingError, match="plain function"):
        trace(np.add, ("k",), (4,), 1)


def test_leaving_the_source_names_range_and_extent() -> None:
    def mapping(k, y):
        return range(k, k + 1), range(y - 1, y + 2)

    found = trace(mapping, ("k", "y"), (4, 7), 2)
    with pytest.raises(MappingError, match=r"range\(y - 1, y \+ 2\) reaches from -1 to 7 in dimension 1") as caught:
        check_reach(found, (4, 7), ((0, 0), (0, 0)), mapping)
    assert "padding" in str(caught.value.way_out)
    check_reach(found, (4, 7), ((0, 0), (1, 1)), mapping)
    with pytest.raises(MappingError, match=r"extent 7, padding \(1, 0\)"):
        check_reach(found, (4, 7), ((0, 0), (1, 0)), mapping)


def test_an_index_is_no_number() -> None:
    y = variable("y", 0, 6)
    for use in (lambda: int(y), lambda: float(y), lambda: bool(y), lambda: y**2, lambda: y / 2):
        with pytest.raises(NotAffine):
            use()
    assert int(Index(constant=3)) == 3
