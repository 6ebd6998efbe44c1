"""A block of items whose last one is a statement of its own, beside copies of the others: where fewer items are given,
it is left out where it does not exist. Batch norm's gradient counted an item that was not there."""

import numpy as np
import pytest

from latte import BatchNormLayer, MemoryDataLayer, Net
from tests.support import running_targets


def gradients(capacity: int, x: np.ndarray, gradient: np.ndarray, target: str) -> tuple[np.ndarray, ...]:
    net = Net(capacity, seed=0)
    net.force_backward = True
    data = MemoryDataLayer(net, x.shape[1:])
    layer = BatchNormLayer(net, data)
    net.compile(target=target)
    net.set_batch(np.full((capacity, *x.shape[1:]), 1e3, np.float32))  # what is left of another batch
    net.forward()
    net.set_batch(x)
    net.forward()
    layer.set_grad(gradient)
    net.backward()
    assert not net.report.fixed
    return data.get_grad(), layer.get_grad_gamma(), layer.get_grad_beta(), layer.get_value()


@pytest.mark.parametrize("target", running_targets())
@pytest.mark.parametrize("capacity", [10, 15, 12, 11])
def test_batch_norm_of_rows(target: str, capacity: int) -> None:
    generator = np.random.default_rng(0)
    for items in (1, 7, capacity - 1):
        x, gradient = generator.standard_normal((2, items, 17)).astype(np.float32)
        both = (gradients(size, x, gradient, target) for size in (capacity, items))
        for fewer, alone in zip(*both, strict=True):
            assert np.abs(fewer - alone).max() <= 1e-5 * max(1.0, np.abs(alone).max())
