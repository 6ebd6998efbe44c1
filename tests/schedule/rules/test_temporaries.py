"""Temporaries become locals."""

from __future__ import annotations

import pytest

from swirl.ir.buffers import Buffer
from tests.schedule.rules.applied import by_rule
from tests.support import program

NEAR = "for x in range(20):\n t[x] = exp(a[x])\n y[x] = t[x] * t[x]"
ELSEWHERE = "for x in range(20):\n t[x] = exp(a[x])\nfor x in range(20):\n y[x] = t[x] * t[19 - x]"
OF_A_PRODUCT = """
for n in range(3):
    for k in range(4):
        for i in range(5):
            t[n, k] += w[k, i] * a[n, i]
        y[n, k] = tanh(t[n, k])
"""


ROW = dict.fromkeys("tay", (20,))
MATRICES = {"t": (3, 4), "w": (4, 5), "a": (3, 5), "y": (3, 4)}


@pytest.mark.parametrize(
    ("text", "shapes", "contracted"), [(NEAR, ROW, True), (ELSEWHERE, ROW, False), (OF_A_PRODUCT, MATRICES, False)]
)
def test_temporaries_that_are_read_where_they_are_made(
    text: str, shapes: dict[str, tuple[int, ...]], contracted: bool
) -> None:
    before = program(text, **shapes).with_buffers(t=Buffer("net.t", shapes["t"], role="temporary"))
    assert by_rule("temporaries", before, nest=None)[1] == (["contract('forward', 't')"] if contracted else [])


def test_one_that_would_keep_a_product_where_it_is_stays_an_array() -> None:
    """Its loops could not be cut between the local and where it is read."""
    before = program(
        """
for n in range(3):
    for k in range(20):
        t[n, k] = exp(a[n, k])
        for i in range(9):
            y[n, k] += w[k, i] * a[n, i]
        z[n, k] = t[n, k] * y[n, k]
""",
        t=(3, 20),
        a=(3, 20),
        w=(20, 9),
        y=(3, 20),
        z=(3, 20),
    ).with_buffers(t=Buffer("net.t", (3, 20), role="temporary"))
    assert by_rule("temporaries", before, nest=None)[1] == []
