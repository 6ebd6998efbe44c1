"""Long rows, which threads share."""

from __future__ import annotations

import pytest

from tests.schedule.rules.applied import chosen_by_rule
from tests.support import program


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            None,
            [
                "tile_loop('forward', 'x', 1256)",
                "parallelize('forward', 'x_outer')",
                "vectorize('forward', 'x_inner', 8)",
            ],
        ),
        (
            3,
            [
                "tile_loop('forward', 'x', 2048)",
                "parallelize('forward', ['n', 'x_outer'])",
                "vectorize('forward', 'x_inner', 8)",
            ],
        ),
        (16, []),  # enough for the threads
    ],
)
def test_threads_share_pieces_of_long_rows(rows: int | None, expected: list[str]) -> None:
    if rows is None:
        before = program("for x in range(20000):\n y[x] = max(a[x], 0.0)", y=(20000,), a=(20000,))
    else:
        text = f"for n in range({rows}):\n for x in range(20000):\n  y[n, x] = max(a[n, x], 0.0)"
        before = program(text, y=(rows, 20000), a=(rows, 20000))
    assert chosen_by_rule("row", before) == expected


def test_sums_are_no_rows() -> None:
    assert chosen_by_rule("row", program("for x in range(20000):\n s[0] += a[x]", s=(1,), a=(20000,))) == []
