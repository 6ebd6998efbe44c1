"""Several statements that add to neighbours become one sum."""

from __future__ import annotations

import pytest

from tests.schedule.rules.applied import by_rule
from tests.support import program

SCATTERED = """
for n in range(2):
    for x in range(20):
        g[n, x] += a[n, x]
        if x >= 1:
            g[n, x - 1] += a[n, x]
"""
ONE_LOOP = """
for x in range(20):
    g[0, x] += a[0, x]
    if x >= 1:
        g[0, x - 1] += a[0, x]
"""
TWO_ARRAYS = """
for n in range(2):
    for x in range(20):
        g[n, x] += a[n, x]
        h[n, x] += a[n, x]
"""


def test_statements_that_add_to_neighbours_are_one_sum() -> None:
    after, applied = by_rule("neighbours", program(SCATTERED, g=(2, 20), a=(2, 20)))
    assert applied[-1] == "fuse('forward', 'x', 'x_to', guard=True)"
    assert "if x < 19:\n                g[n, x] += a[n, x + 1]" in after, after


@pytest.mark.parametrize("text", [ONE_LOOP, TWO_ARRAYS], ids=["no loop around", "other arrays"])
def test_others_are_left(text: str) -> None:
    """Without a loop around them, what is cut would be nests of their own, which are not joined."""
    assert by_rule("neighbours", program(text, g=(2, 20), h=(2, 20), a=(2, 20)))[1] == []
