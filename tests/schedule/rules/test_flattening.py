"""Loops over contiguous memory become one."""

from __future__ import annotations

import pytest

from latte import MemoryDataLayer, Net, ReshapeLayer
from tests.schedule.rules.applied import applied_of, by_rule
from tests.support import program


@pytest.mark.parametrize("shape", [(4, 6, 10), (20, 3, 4), (6, 40)])
def test_another_shape_of_the_same_elements_is_read_in_rows(shape: tuple[int, ...]) -> None:
    net = Net(2, seed=1)
    net.force_backward = True
    layer = ReshapeLayer(net, MemoryDataLayer(net, (3, 8, 10)), shape)
    for commands in applied_of(net, layer, "avx2").values():
        assert any("vectorize" in text for text in commands) and not any("gather" in text for text in commands)


@pytest.mark.parametrize(("row", "flat"), [(9, True), (10, False)])
def test_loops_over_contiguous_memory_become_one(row: int, flat: bool) -> None:
    text = "for y in range(7):\n for x in range(9):\n  b[y, x] = 2.0 * a[y, x]"
    after, applied = by_rule("flatten", program(text, b=(7, 9), a=(7, row)), nest=None)
    assert applied == (["flatten('forward', ['y', 'x'])"] if flat else [])
    assert ("for yx in range(63)" in after) == flat
