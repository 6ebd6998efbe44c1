"""What a getter returned stays as it was when the net goes on: it was once the storage itself."""

from __future__ import annotations

import numpy as np

from latte import FullyConnectedLayer, MemoryDataLayer, Net
from swirl.ir.buffers import Layout


def test_a_value_read_before_stays() -> None:
    net = Net(1, seed=0)
    data = MemoryDataLayer(net, (2,))
    layer = FullyConnectedLayer(net, data, 2)
    net.compile(threads=1)
    data.set_value(np.ones((1, 2)))
    net.forward()
    before = layer.get_value()
    kept = before.copy()
    data.set_value(np.zeros((1, 2)))
    net.forward()
    np.testing.assert_array_equal(before, kept)


def test_unpacking_makes_a_new_array() -> None:
    for layout in (Layout(), Layout(((0, 4),))):
        physical = layout.pack(np.ones((5, 3), np.float32))
        logical = layout.unpack(physical, (5, 3))
        assert not np.shares_memory(physical, logical)
