"""Loops that set what the next one adds to are joined with it."""

from __future__ import annotations

import pytest

from tests.schedule.rules.applied import by_rule
from tests.support import program


@pytest.mark.parametrize(("extent", "joined"), [(20, True), (19, False)])
def test_a_sum_begins_where_it_is_made(extent: int, joined: bool) -> None:
    before = program(
        f"""
for k in range({extent}):
    y[k] = 0.0
for k in range(20):
    for i in range(9):
        y[k] += w[k, i] * a[i]
""",
        y=(20,),
        w=(20, 9),
        a=(9,),
    )
    after, applied = by_rule("join", before, nest=None)
    assert applied == (["fuse('forward', 'k', 'k', nest=0)"] if joined else [])
    assert after.count("for k in") == 2 - joined


def test_a_loop_that_sets_what_another_sum_does_not_add_to_is_left() -> None:
    before = program("for k in range(20):\n z[k] = 0.0\nfor k in range(20):\n y[k] += a[k]", y=(20,), a=(20,), z=(20,))
    assert by_rule("join", before, nest=None)[1] == []


def test_loops_that_set_run_as_the_sum_does() -> None:
    """In its order."""
    before = program(
        """
for i in range(6):
    for k in range(20):
        y[i, k] = 0.0
for k in range(20):
    for i in range(6):
        for j in range(5):
            y[i, k] += a[k, j] * b[j, i]
""",
        y=(6, 20),
        a=(20, 5),
        b=(5, 6),
    )
    assert "reorder('forward', ['k', 'i'], nest=0)" in by_rule("join", before, nest=None)[1]
