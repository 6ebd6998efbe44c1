"""Loops over results go outside of rows along the terms."""

from __future__ import annotations

import pytest

from tests.schedule.rules.applied import by_rule
from tests.support import program


@pytest.mark.parametrize(("read", "shape", "outside"), [("c, x", (20, 40), True), ("x, c", (40, 20), False)])
def test_results_go_outside_of_rows_along_the_terms(read: str, shape: tuple[int, ...], outside: bool) -> None:
    before = program(
        f"""
for x in range(40):
    r: float32 = 1.0 / q[x]
    for c in range(20):
        g[c] += a[{read}] * r
""",
        q=(40,),
        g=(20,),
        a=shape,
    )
    _, applied = by_rule("rows", before)
    expected = ["store_local('forward', ['r'])", "distribute('forward', 'x')", "reorder('forward', ['c', 'x'], nest=1)"]
    assert applied == (expected if outside else [])
