"""locate: the nests it prints, the same results whatever the places are, what it refuses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from docs.commands import nests
from swirl.errors import CommandError, Refused
from swirl.ir.execute import execute, random_arrays
from swirl.ir.nest import Program
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from tests.support import assert_compiles_to_same, assert_same, difference

locate = COMMANDS["locate"]


def windows(body: str, rows: int = 7, taps: int = 3, columns: int = 2, bounds: str | None = None) -> Program:
    """Windows ``y`` of ``taps`` elements each; ``m`` and ``q`` are their places."""
    return nests(
        f"for y in range({rows}):\n"
        f"    for j in range({bounds or taps}):\n" + "\n".join(f"        {line}" for line in body.splitlines()),
        ["m", "q", "count"],
        dx=(rows + taps, columns),
        dy=(rows,),
        m=(rows,),
        q=(rows,),
        count=(1,),
    )


def placed(before: Program, seed: int = 0) -> Mapping[str, np.ndarray]:
    """Places of which most are inside of a window, some before it and some after."""
    given = random_arrays(before, seed, "rational")
    generator = np.random.default_rng(seed)
    return given | {
        name: generator.integers(-1, 5, before.buffers[name].shape).astype(object)
        for name in ("m", "q")
        if name in given
    }


def body_of(after: Program) -> str:
    return after.nests[0].body_text


SELECT = windows("dx[y + j, 0] += dy[y] if m[y] == j else 0.0")
PLANE = windows("for k in range(2):\n    dx[y + j, k] += dy[y] if m[y] == j and q[y] == k else 0.0")


def test_prints() -> None:
    assert body_of(locate(SELECT, "j")) == (
        "for y in range(7):\n    if 0 <= m[y] and m[y] < 3:\n        dx[y + m[y], 0] += dy[y]"
    )
    after = locate(PLANE, "j")
    assert body_of(after) == (
        "for y in range(7):\n"
        "    if 0 <= m[y] and m[y] < 3:\n"
        "        for k in range(2):\n"
        "            dx[y + m[y], k] += dy[y] if q[y] == k else 0.0"
    )
    assert body_of(locate(after, "k")) == (
        "for y in range(7):\n"
        "    if 0 <= m[y] and m[y] < 3:\n"
        "        if 0 <= q[y] and q[y] < 2:\n"
        "            dx[y + m[y], q[y]] += dy[y]"
    )


def test_no_condition_is_left_where_ranges_decide() -> None:
    before = windows("if y == j:\n    t: float32 = dy[j] * 2.0\n    dx[y + j, 0] = t", rows=3)
    after = assert_same(before, locate(before, "j"))
    assert body_of(after) == "for y in range(3):\n    t: float32 = dy[y] * 2.0\n    dx[y * 2, 0] = t"
    assert body_of(locate(windows("if y + 9 == j:\n    dx[y, 0] = 1.0"), "j")) == "pass"


def test_locals_of_a_name_beside_each_other() -> None:
    """The locals of a branch whose condition is decided become those of the block around it."""
    before = nests(
        """
        for y in range(3):
            for j in range(4):
                if y == j:
                    t: float32 = dy[j]
                    dx[y, 0] = t
            t: float32 = dy[y] * 2.0
            dx[y, 1] = t
        """,
        dx=(4, 2),
        dy=(4,),
    )
    after = assert_same(before, locate(before, "j"))
    assert "for j" not in after.nests[0].body_text


def test_where_a_window_begins_is_computed_only_where_it_is_clipped() -> None:
    """The part of a subscript that is of loops is simplified beside the part that is of data."""
    before = nests(
        """
        for y in range(7):
            for j in range(2):
                dx[max(0, y - 1) + j] += dy[y] if m[y] == j else 0.0
        """,
        ["m"],
        dx=(8,),
        dy=(7,),
        m=(7,),
    )
    after = assert_same(before, COMMANDS["split"](locate(before, "j"), "y", [1]), finite=True)
    assert "dx[y_1 - 1 + m[y_1]] += dy[y_1]" in after.nests[0].body_text


FORMS = {
    "select": "dx[y + j, 0] += dy[y] if m[y] == j else 0.0",
    "other way round": "dx[y + j, 0] -= dy[y] if j == m[y] else 0.0",
    "product": "dx[y + j, 0] *= dy[y] if m[y] == j else 1.0",
    "quotient": "dx[y + j, 0] /= 2.0 if m[y] == j else 1",
    "stored": "dx[y, 1] = dy[y] if m[y] == j else dx[y, 1]",
    "whole numbers": "count[0] += j * 2 + 1 if m[y] == j else 0",
    "one of several conditions": "dx[y + j, 0] += dy[y] if dy[y] > 0.0 and m[y] == j and q[y] < 2 else 0.0",
    "selects": "dx[y + j, 0] += (dy[y] if q[y] > 0 else 1.5) if m[y] == j else 0.0",
    "select in a select": "dx[y + j, 0] += (dy[y] if m[y] == j else 0.0) if q[y] > 0 else 0.0",
    "branch": "if m[y] == j and q[y] > j:\n    dx[y + j, 0] = dy[y]\n    dx[y + j, 1] -= dx[j, 0]",
    "branches": """
if q[y] > 0:
    if m[y] == j:
        dx[y, 0] = 1.0
else:
    dx[y, 1] += 2.0 if m[y] == j else 0.0
""",
    "local": "t: float32 = dy[y] * float32(j)\nt += 1.0\nif m[y] == j:\n    dx[y + j, 0] += t",
    "loop inside": "for k in range(2):\n    dx[y + k + j, k] += dy[y] if m[y] == j else 0.0",
    "local array": "a: float32[3] = empty(3)\na[j] = 1.0\nif m[y] == j:\n    dx[y + j, 0] += a[j]",
    "local that is zero elsewhere": "g: float32 = dy[y] if m[y] == j else 0.0\ndx[y + j, 0] += g\ndx[y, 1] -= g",
    "products with a local": """
g: float32 = dy[y] if m[y] == j and q[y] > 0 else 0.0
h: float32 = 2.0 * -g / 4.0
for k in range(2):
    p: float32 = h * (dx[j, 1] - dy[y]) + g
    dx[y + j, 0] -= p
""",
    "sums in a local": """
g: float32 = dy[y] if m[y] == j else 0.0
h: float32 = 0.0
a: float32[2] = empty(2)
for k in range(2):
    h += g * dy[y]
    h *= 2.0
    a[k] = h - g
dx[y + j, 0] += a[1]
""",
    "a choice of locals": """
g: float32 = dy[y] if m[y] == j else 0.0
dx[y + j, 0] += (g if q[y] > 0 else 0.0) + (3.0 if m[y] == j else 0.0)
""",
    "fetched ahead": "prefetch(dx, (y + j + 4, 0), 1)\ndx[y + j, 0] += dy[y] if m[y] == j else 0.0",
    "triangle": "for k in range(j + 1):\n    dx[k, 0] += dy[y] if y // 2 == j else 0.0",
    "arithmetic": "dx[y + j, 0] += dy[y] if (m[y] + q[y]) % 3 == j else 0.0",
}


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
@pytest.mark.parametrize(("rows", "taps"), [(7, 3), (1, 1), (5, 3), (17, 2)])
def test_forms(form: str, rows: int, taps: int) -> None:
    before = windows(form, rows, taps)
    after = assert_same(before, locate(before, "j"), finite=True)
    assert "for j" not in after.nests[0].body_text
    for seed in range(3):
        assert difference(before, after, given=placed(before, seed)) is None


@pytest.mark.parametrize("bounds", ["max(0, 2 - y), min(3, y + 1)", "1, 3", "2, 2", "-1, 2"])
def test_bounds(bounds: str) -> None:
    before = windows("dx[y + j + 1, 0] += dy[y] if m[y] == j else 0.0", bounds=bounds)
    after = locate(before, "j")
    for seed in range(3):
        assert difference(before, after, given=placed(before, seed)) is None
    assert_same(before, after, finite=True)


def test_negative_zero_stays() -> None:
    """What the documentation says: nothing is added where the place is another one."""
    before = windows("dx[y + j, 0] += dy[y] if m[y] == j else 0.0", rows=1)
    arrays = {"dx": np.full((4, 2), -0.0, "f4"), "dy": np.ones(1, "f4"), "m": np.ones(1, "i4")}
    added, left = ({name: array.copy() for name, array in arrays.items()} for _ in range(2))
    execute(before, added)
    execute(locate(before, "j"), left)
    assert np.signbit(left["dx"][:3, 0]).tolist() == [True, False, True]
    assert not np.signbit(added["dx"][:3, 0]).any()
    assert (added["dx"] == left["dx"]).all()


def test_other_iterations_do_not_divide_by_zero() -> None:
    """What the documentation says: no 0 / 0 and no 0 * INFINITY of iterations that are left out."""
    body = "g: float32 = dy[y] if m[y] == j else 0.0\ndx[y + j, 0] += g / dx[y + j, 1]"
    arrays = {"dx": np.ones((4, 2), "f4"), "dy": np.ones(1, "f4"), "m": np.ones(1, "i4")}
    arrays["dx"][0, 1] = 0.0
    divided, left = ({name: array.copy() for name, array in arrays.items()} for _ in range(2))
    with np.errstate(invalid="ignore"):
        execute(windows(body, rows=1), divided)
        execute(locate(windows(body, rows=1), "j"), left)
    assert np.isnan(divided["dx"][0, 0]) and left["dx"][0, 0] == 1.0
    assert (divided["dx"][1:, 0] == left["dx"][1:, 0]).all()


@pytest.mark.parametrize("name", ["select", "branch", "loop inside", "local", "arithmetic"])
def test_compiles_to_the_same_bits(name: str, target: Target) -> None:
    assert_compiles_to_same(locate(windows(FORMS[name], rows=17), "j"), target)


def test_with_other_commands(target: Target) -> None:
    """Windows of each channel in turn: channels are threads and lanes, windows are not."""
    before = nests(
        """
        for n in range(3):
            for y in range(9):
                for c in range(20):
                    for j in range(3):
                        dx[n, y + j, c] += dy[n, y, c] if m[n, y, c] == j else 0.0
        """,
        ["m"],
        dx=(3, 11, 20),
        dy=(3, 9, 20),
        m=(3, 9, 20),
    )
    after = COMMANDS["parallelize"](locate(before, "j"), "n")
    with pytest.raises(Refused, match="two iterations would update"):
        COMMANDS["parallelize"](locate(before, "j"), "y")
    assert_same(before, after, finite=True)
    assert_compiles_to_same(after, target)
    lanes = COMMANDS["vectorize"](after, "c", 8, strided="gather")
    assert_same(before, lanes, finite=True)
    assert_compiles_to_same(lanes, target)


REFUSED = {
    "no condition": ("dx[y + j, 0] = 1.0", "nothing says in which one of its iterations j does something"),
    "another comparison": ("if m[y] <= j:\n    dx[y + j, 0] = 1.0", "nothing says"),
    "a fraction": ("dx[y + j, 0] += 1.0 if dy[y] == j else 0.0", "nothing says"),
    "either": ("if m[y] == j or q[y] == j:\n    dx[y + j, 0] = 1.0", "nothing says"),
    "the loop's own": ("dx[y + j, 0] += 1.0 if m[j] == j else 0.0", r"m\[j\] changes in the loop, with j"),
    "set inside": ("if m[y] == j:\n    m[y] = q[y]", r"m\[y\] changes in the loop, with m"),
    "local": ("t: int32 = m[y] + j\nif t == j:\n    dx[y, 0] = 1.0", "t changes in the loop, with t"),
    "other value": ("dx[y + j, 0] += dy[y] if m[y] == j else 0.5", r"not only the iteration j = m\[y\]"),
    "product with 0": ("dx[y + j, 0] *= dy[y] if m[y] == j else 0.0", "not only the iteration"),
    "other element": ("dx[y, 1] = dy[y] if m[y] == j else dx[y, 0]", "not only the iteration"),
    "other branch": ("if m[y] == j:\n    dx[y, 0] = 1.0\nelse:\n    dx[y, 1] = 2.0", "not only the iteration"),
    "two places": ("dx[y, 0] += 1.0 if m[y] == j else 0.0\ndx[y, 1] += 1.0 if q[y] == j else 0.0", "not only"),
    "not there": ("dx[y + j, 0] += 1.0 if m[y + j] == j else 0.0", r"m\[y \+ j\] changes in the loop"),
    "a place of a place": ("dx[y + j, 0] += dy[y] if m[q[y]] == j else 0.0", r"m\[q\[y\]\] is read whether"),
    "local that is not zero": (
        "g: float32 = dy[y] if m[y] == j else 0.0\nh: float32 = g + 1.0\ndx[y + j, 0] += h * 2.0",
        "not only the iteration",
    ),
    "local divided by itself": (
        "g: float32 = dy[y] if m[y] == j else 0.0\ndx[y + j, 0] += g / g",
        "not only the iteration",
    ),
    "local that divides itself": (
        "g: float32 = dy[y] if m[y] == j else 0.0\ng /= g\ndx[y + j, 0] += g",
        "not only the iteration",
    ),
    "local that is set later": (
        "g: float32 = dy[y] if m[y] == j else 0.0\nif q[y] > 0:\n    g = 1.0\ndx[y + j, 0] += g",
        "not only the iteration",
    ),
    "local that is stored": (
        "g: float32 = dy[y] if m[y] == j else 0.0\ndx[y + j, 0] = g",
        "not only the iteration",
    ),
    "local from outside": (
        "dy[y] += 1.0 if m[y] == j else 0.0\ndx[y + j, 0] += dy[y]",
        "not only the iteration",
    ),
    "bounds": (
        "for k in range(j + 1):\n    dx[k, 0] += dy[y] if m[y] == j else 0.0",
        "the bounds of loop k would not be quasi-affine in loop variables",
    ),
    "bounds of a function": (
        "for k in range(j + 1):\n    dx[k, 0] += dy[y] if abs(m[y]) == j else 0.0",
        "the bounds of loop k would not be quasi-affine",
    ),
    "bounds of a square": (
        "for k in range(j + 1):\n    dx[k, 0] += dy[y] if y * y == j else 0.0",
        "the bounds of loop k would not be quasi-affine",
    ),
    "may not be there": (
        "if y > 0 and m[y - 1] == j:\n    dx[y, 0] = 1.0",
        r"m\[y - 1\] is read whether .* may not exist",
    ),
}


@pytest.mark.parametrize(("body", "message"), REFUSED.values(), ids=list(REFUSED))
def test_refused(body: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        locate(windows(body), "j")


def test_the_statement_with_other_effects_is_shown() -> None:
    with pytest.raises(Refused) as caught:
        locate(windows("dx[y + j, 0] += dy[y] if m[y] == j else 0.0\ndx[y, 1] = 2.0"), "j")
    assert "            dx[y, 1] = 2.0    ← in every iteration of j" in str(caught.value)


def test_way_out() -> None:
    before = nests(
        "for j in range(3):\n    for y in range(4):\n        dx[y + j] += dy[y] if m[y] == j else 0.0",
        ["m"],
        dx=(6,),
        dy=(4,),
        m=(4,),
    )
    with pytest.raises(Refused) as caught:
        locate(before, "j")
    assert caught.value.way_out == "interchange(['j', 'y']), then locate('j')"


def test_other_loops() -> None:
    with pytest.raises(CommandError, match="no loop named 'z'"):
        locate(SELECT, "z")
    with pytest.raises(Refused, match="j_unrolled is a unrolled loop"):
        locate(COMMANDS["unroll"](SELECT, "j", 3, unroll_type=1), "j_unrolled")
    with pytest.raises(Refused, match="j is a loop of step 2"):
        locate(windows("dx[y + j, 0] += dy[y] if m[y] == j else 0.0", bounds="0, 3, 2"), "j")
