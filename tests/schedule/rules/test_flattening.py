"""Loops over contiguous memory become one."""

from __future__ import annotations

import pytest

from latte import MemoryDataLayer, Net, ReshapeLayer
from tests.schedule.rules.applied import applied_of


@pytest.mark.parametrize("shape", [(4, 6, 10), (20, 3, 4), (6, 40)])
def test_another_shape_of_the_same_elements_is_read_in_rows(shape: tuple[int, ...]) -> None:
    net = Net(2, seed=1)
    net.force_backward = True
    layer = ReshapeLayer(net, MemoryDataLayer(net, (3, 8, 10)), shape)
    for commands in applied_of(net, layer, "avx2").values():
        assert any("vectorize" in text for text in commands) and not any("gather" in text for text in commands)
