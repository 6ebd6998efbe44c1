"""What the automatic pass keeps in registers over loops."""

from __future__ import annotations

import pytest

from swirl.target.targets import TARGETS, Target
from swirl.transforms import COMMANDS
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from tests.support import assert_compiles_to_same, assert_same, merged, program


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_sums_of_a_ragged_end_stay_in_registers_too(target: str) -> None:
    """The loops of the end have the names of the others, and other bounds: its sums were loaded and stored for every
    term."""
    before = program(
        """
for k in range(3):
    for n in range(38):
        for i in range(5):
            y[n, k] += w[k, i] * x[i, n]
""",
        y=(38, 3),
        w=(3, 5),
        x=(5, 38),
    )
    lanes = COMMANDS["vectorize"](before, "n", TARGETS[target].simd_width, strided="gather")
    after = scalar_replace(tidy(COMMANDS["unroll_and_jam"](lanes, "n", 2)))
    assert_same(before, after)
    assert_compiles_to_same(after, TARGETS[target])
    sums = [line for line in after.text.splitlines() if "+=" in line]
    assert len(sums) == 2 and all("y_t" in line for line in sums), after.text


@pytest.mark.parametrize("total", ["y[k] += x[n, k, i]", "y[k] = max(y[k], x[n, k, i])"])
def test_pieces_of_a_loop_add_to_the_same_partial_sums(target: Target, total: str) -> None:
    """Each had its own: three times as many registers as a tile of sums is made for."""
    width = target.simd_width
    body = f"if i + n >= 2 and i + n < {4 * width + 1}:\n    {total}"
    before = program(
        f"for k in range(2):\n for n in range(5):\n  for i in range({4 * width}):\n   {body}",
        x=(5, 2, 4 * width),
        y=(2,),
    )
    after = copies = COMMANDS["split"](before, "i", [width, 3 * width])
    for piece in ("i", "i_1", "i_2"):
        after = COMMANDS["vectorize"](after, piece, width)
        copies = COMMANDS["unroll"](copies, piece, 2)
    assert assert_same(before, after).text.count(f"= empty({width})") == 1, after.text
    assert assert_same(before, copies).text.count("= empty(2)") == 1, copies.text
    assert_compiles_to_same(merged([after, copies]), target)


@pytest.mark.parametrize(("second", "loaded"), [("b[i, v] = 0.0", False), ("b[i, v] += 1.0", True)])
def test_what_lanes_set_first_is_not_loaded(second: str, loaded: bool) -> None:
    """Also if another statement comes before it in their loop."""
    before = program(
        f"""
for i in range(3):
    for v in vector(8):
        a[i, v] = 1.0
        {second}
    for k in range(5):
        for v in vector(8):
            a[i, v] = a[i, v] * x[k, v]
            b[i, v] += x[k, v]
""",
        a=(3, 8),
        b=(3, 8),
        x=(5, 8),
    )
    after = scalar_replace(before)
    assert_same(before, after)
    assert "a_t[v] = a[i, v]" not in after.text
    assert ("b_t[v] = b[i, v]" in after.text) == loaded, after.text


@pytest.mark.parametrize(
    ("between", "after_them", "arrays"),
    [
        ("z[n] = 1.0", "", 1),
        ("z[n] = s_lanes[0]", "", 2),
        ("s_lanes[0] *= 2.0", "", 2),
        ("z[n] = s", "", 2),
        ("", "z[0] = s_lanes[1]", 2),
        ("", "s += s_lanes[0]", 2),
        ("", "if s > 1.0:\n        z[1] = s_lanes[0]", 2),
    ],
)
def test_partial_sums_that_something_else_uses_are_not_shared(between: str, after_them: str, arrays: int) -> None:
    before = program(
        f"""
for k in range(3):
    s: float32 = 0.0
    s_lanes: float32[4] = empty(4)
    for i_lane in vector(4):
        s_lanes[i_lane] = 0.0
    for n in range(2):
        for i in range(0, 8, 4):
            for i_lane in vector(4):
                s_lanes[i_lane] += x[n, k, i + i_lane]
        {between}
        for j in range(8):
            s += x[n, k, j]
    for i_lane in vector(2):
        s_lanes[i_lane] += s_lanes[i_lane + 2]
    for i_lane in vector(1):
        s_lanes[i_lane] += s_lanes[i_lane + 1]
    s += s_lanes[0]
    {after_them}
    y[k] = s
""",
        x=(2, 3, 8),
        y=(3,),
        z=(2,),
    )
    after = assert_same(before, COMMANDS["vectorize"](before, "j", 4))
    assert after.text.count("= empty(4)") == arrays, after.text
