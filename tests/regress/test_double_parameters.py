"""A parameter in double precision was changed by the solver as if it were single."""

import numpy as np
import pytest

from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.neuron import Neuron, Param, ones
from latte.solver import SGD
from swirl.target.machine import why_not
from swirl.target.targets import TARGETS, get_target


class Scale(Neuron):
    factor = Param("c", shape=(2,), init=ones, dtype="float64")
    offset = Param("c", shape=(1,), init=ones)

    def forward(self) -> None:
        self.value = self.factor[0] * self.inputs[0] + self.factor[1] + self.offset[0]


@pytest.mark.parametrize("name", TARGETS)
def test_step(name: str) -> None:
    if reason := why_not(get_target(name)):
        pytest.skip(f"{name}: {reason}")
    net = Net(2, seed=1)
    data = MemoryDataLayer(net, (5,))
    scale = net.add_ensemble(Ensemble(Scale, (5,), ("c",), kind="scale"))
    net.add_connections(data, scale, lambda c: (range(c, c + 1),))
    net.compile(target=name)
    factor = np.arange(1, 11).reshape(5, 2) / 3
    scale.set_factor(factor)
    np.testing.assert_array_equal(scale.get_factor(), factor)
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    data.set_value(x)
    # Twice, so that the momentum counts; the rate is far below what single precision resolves.
    solver = SGD(net, 1e-12, momentum=0.5)
    expected, velocity = factor.copy(), np.zeros((5, 2))
    for _ in range(2):
        net.clear_grad()
        net.forward()
        scale.set_grad(np.ones((2, 5), np.float32))
        net.backward()
        solver.step()
        velocity = 0.5 * velocity + np.stack([x.sum(0), np.full(5, 2.0)], axis=1)
        expected = expected - 1e-12 * velocity
    # Two steps of a few roundings each, of numbers up to 4.
    np.testing.assert_allclose(scale.get_factor(), expected, rtol=0, atol=8 * 2**-51)
    assert (scale.get_factor() != factor).all()
    np.testing.assert_array_equal(scale.get_offset(), np.ones((5, 1), np.float32))
