"""``source.set_padding`` asks for storage, as in the original: the values of the library's layers stay the same.

Layers that had a mapping without a padding of their own read from the first zero on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from latte import ConcatLayer, FullyConnectedLayer, MaxPoolingLayer, MemoryDataLayer, Net, ReshapeLayer, SplitLayer

LAYERS: dict[str, Callable[[Net, Any], Any]] = {
    "fully connected": lambda net, source: FullyConnectedLayer(net, source, 3),
    "pooling": lambda net, source: MaxPoolingLayer(net, source, 2, 1, ceil_mode=False, clamp=False),
    "split": lambda net, source: SplitLayer(net, source, [1, 1])[1],
    "reshape": lambda net, source: ReshapeLayer(net, source, (3, 6)),
    "concat": lambda net, source: ConcatLayer(net, [source, source]),
}


@pytest.mark.parametrize("name", LAYERS)
def test_values_are_the_same(name: str) -> None:
    values = []
    for padded in (False, True):
        net = Net(2, seed=0)
        data = MemoryDataLayer(net, (2, 3, 3))
        if padded:
            data.set_padding((0, 0), (1, 1), (1, 1))
        layer = LAYERS[name](net, data)
        net.compile(threads=1)
        data.set_value(np.random.default_rng(0).normal(size=(2, 2, 3, 3)))
        net.forward()
        values.append(layer.get_value())
    np.testing.assert_array_equal(values[0], values[1])
