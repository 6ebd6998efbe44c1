"""Rows that are turned in registers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from latte import MemoryDataLayer, Net, PermuteLayer
from swirl.codegen.emit import listing
from swirl.target.targets import TARGETS
from tests.schedule.rules.applied import scheduled
from tests.support import assert_same


@pytest.mark.parametrize("target", ["avx512", "avx2"])
@pytest.mark.parametrize(
    ("shape", "order"), [((24, 5, 40), (2, 1, 0)), ((33, 5, 50), (1, 2, 0)), ((64, 6, 20), (1, 2, 0))]
)
def test_rows_that_become_columns_are_turned_in_registers(
    shape: tuple[int, ...], order: tuple[int, ...], target: str
) -> None:
    """Both ways, whatever the cache has room for."""
    net = Net(2, seed=1)
    net.force_backward = True
    layer = PermuteLayer(net, MemoryDataLayer(net, shape), order)
    for l2 in (2**10, 2**21):
        for _, before, after, _ in scheduled(net, layer, replace(TARGETS[target], l2_bytes=l2)):
            assert_same(before, after, seeds=(0,))
            assert "load_turned<" in listing(after, TARGETS[target]), after
