"""A copy of a net whose given gradients have been cleared: backward of the copy had nothing to start from."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from latte import FullyConnectedLayer, MemoryDataLayer, Net


@pytest.mark.parametrize("inner", [False, True])
def test_a_copy_starts_from_zero_as_well(inner: bool) -> None:
    net = Net(2, seed=3, compat=True)
    hidden = FullyConnectedLayer(net, MemoryDataLayer(net, 3), 4, name="hidden")
    top = FullyConnectedLayer(net, hidden, 2, name="top")
    net.compile(target="portable", threads=1)
    net.set_batch(np.ones((2, 3)))
    net.forward()
    for layer in [hidden, top] if inner else [top]:
        layer.set_grad(np.ones((2, *layer.shape)))
    net.backward()
    net.clear_grad()
    other = copy.deepcopy(net)
    for each in (net, other):
        each.forward()
        each.backward()
        for name in ("hidden", "top"):
            assert not each[name].get_grad_weights().any()
    gradient = np.full((2, 4), 0.5)
    for each in (net, other):
        each.clear_grad()
        each["hidden"].set_grad(gradient)
        each.backward()
    np.testing.assert_array_equal(net["hidden"].get_grad_weights(), other["hidden"].get_grad_weights())
    assert net["hidden"].get_grad_weights().any()
