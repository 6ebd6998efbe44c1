"""Several statements of a vector loop that add to one array, as the gradient of mirrored elements: what a lane had in a
register while another one added to the element lost that. ``y[c] += …; y[c + 1] += …; y[c] += …``."""

from __future__ import annotations

import numpy as np
import pytest

from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.neuron import Neuron
from swirl.target.targets import TARGETS
from swirl.transforms import COMMANDS
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from tests.support import assert_same, program

OTHERS = {"next": "c + 1", "mirrored": "{last} - c", "rolled": "(c + {half}) % {size}"}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("lanes", [8, 16])
def test_what_other_lanes_add_is_kept(lanes: int, other: str) -> None:
    index = OTHERS[other].format(last=lanes - 1, half=lanes // 2, size=lanes)
    text = f"for c in range({lanes}):\n y[c] += x[c]\n y[{index}] += 2.0 * x[c]\n y[c] += x[c] * x[c]"
    before = program(text, y=(lanes + 1,), x=(lanes,))
    after = scalar_replace(tidy(COMMANDS["vectorize"](before, "c", lanes, strided="gather")))
    assert "y_t" not in assert_same(before, after).text, after.text


class Shift(Ensemble):
    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C - 1):
                value[n, c] += inputs[n, c]
                value[n, c + 1] += 2.0 * inputs[n, c]
                value[n, c] += inputs[n, c] * inputs[n, c]


class Mirror(Neuron):
    def forward(self) -> None:
        self.value = self.a * self.m
        self.value += self.a if self.m > 0.0 else self.m


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [4, 8, 16, 24])
def test_layers_under_the_default_schedule(size: int, target: str) -> None:
    x = np.arange(1, size + 1, dtype=np.float32)[None] / 4
    net = Net(1, seed=0)
    net.force_backward = True
    data = MemoryDataLayer(net, (size,))
    shifted = net.add_ensemble(Shift(shape=(size,), dims=("c",)))
    net.add_connections(data, shifted)
    mirrored = net.add_ensemble(Ensemble(Mirror, (size,), ("c",)))
    net.add_one_to_one_connections(data, mirrored, name="a")
    net.add_connections(data, mirrored, lambda c: range(size - 1 - c, size - c), name="m")
    net.compile(target=target)
    data.set_value(x)
    shifted.set_grad(np.zeros((1, size)))
    mirrored.set_grad(np.ones((1, size)))
    net.forward()
    net.backward()
    expected = np.zeros((1, size), np.float32)
    expected[:, :-1] += x[:, :-1] + x[:, :-1] ** 2
    expected[:, 1:] += 2 * x[:, :-1]
    np.testing.assert_allclose(shifted.get_value(), expected, rtol=1e-6)
    np.testing.assert_allclose(data.get_grad(), 2 * x[:, ::-1] + 1, rtol=1e-6)
