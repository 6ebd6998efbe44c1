"""Sums some of whose terms borders leave out."""

from __future__ import annotations

import pytest

from tests.schedule.rules.applied import by_rule
from tests.support import program


@pytest.mark.parametrize(("guard", "clipped"), [("0 <= x + j - 1 and x + j - 1 < 7", True), ("", False)])
def test_short_loops_over_terms_go_inside(guard: str, clipped: bool) -> None:
    body = f"if {guard}:\n   y[x] += w[j] * a[x + j - 1]" if guard else "y[x] += w[j] * a[x + j]"
    before = program(f"for j in range(3):\n for x in range(7):\n  {body}", y=(7,), w=(3,), a=(9,))
    assert by_rule("sum_inside", before)[1] == (["reorder('forward', ['x', 'j'])"] if clipped else [])


@pytest.mark.parametrize(("guard", "clipped"), [("0 <= x + j - 1 and x + j - 1 < 20", True), ("", False)])
def test_sums_that_borders_clip_are_in_locals(guard: str, clipped: bool) -> None:
    body = f"if {guard}:\n   y[x] += w[j] * a[x + j - 1]" if guard else "y[x] += w[j] * a[x + j]"
    before = program(f"for x in range(20):\n for j in range(3):\n  {body}", y=(20,), w=(3,), a=(22,))
    assert by_rule("keep_sums", before)[1] == (["scalar_replace('forward', 'y')"] if clipped else [])
