"""Fields that had the name, and so the memory, of what differentiation keeps for backward."""

from __future__ import annotations

import numpy as np
import pytest

from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.neuron import Field, Param, ones, sqrt
from tests.support import running_targets

N, C = 3, 9


class KeptSum(Ensemble):
    """``s`` is kept for backward; inference reads a parameter of the name that its array would have."""

    kept_s = Param("c", init=ones)

    def forward(self, inputs, value, kept_s):
        N, C = inputs.shape
        if self.training:
            for n in range(N):
                s = 0.0
                for i in range(C):
                    s += inputs[n, i] * inputs[n, i]
                for i in range(C):
                    value[n, i] = inputs[n, i] / sqrt(s + 0.01)
        else:
            for n in range(N):
                for i in range(C):
                    value[n, i] = inputs[n, i] * kept_s[i]


class OverwrittenField(Ensemble):
    """The same for the value that ``h`` had before it is overwritten."""

    h = Field("n", "c")
    h_before = Param("c", init=ones)

    def forward(self, inputs, value, h, h_before):
        N, C = inputs.shape
        if self.training:
            for n in range(N):
                for i in range(C):
                    h[n, i] = inputs[n, i] * inputs[n, i]
            for n in range(N):
                for i in range(C):
                    h[n, i] = h[n, i] * h[n, i]
            for n in range(N):
                for i in range(C):
                    value[n, i] = h[n, i] * h[n, i]
        else:
            for n in range(N):
                for i in range(C):
                    value[n, i] = inputs[n, i] * h_before[i]


class Largest(Ensemble):
    """The same for the place of a maximum, which has another shape and type."""

    mask_i = Param("c", init=ones)

    def forward(self, inputs, value, mask_i):
        N, C = inputs.shape
        if self.training:
            for n in range(N):
                for k in range(C):
                    value[n, k] = inputs[n, 0]
                    for i in range(C):
                        value[n, k] = max(value[n, k], inputs[n, i] * inputs[n, k])
        else:
            for n in range(N):
                for i in range(C):
                    value[n, i] = inputs[n, i] * mask_i[i]


@pytest.mark.parametrize(("kind", "field"), [(KeptSum, "kept_s"), (OverwrittenField, "h_before"), (Largest, "mask_i")])
@pytest.mark.parametrize("target", running_targets())
def test_a_field_keeps_its_array(kind: type[Ensemble], field: str, target: str) -> None:
    net = Net(N, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (C,))
    layer = net.add_ensemble(kind(shape=(C,), dims=("c",), name="layer"))
    net.add_connections(data, layer)
    net.compile(target=target, threads=1)
    x = np.random.default_rng(0).uniform(0.5, 1.5, (N, C)).astype(np.float32)
    data.set_value(x)
    net.forward()
    layer.set_grad(np.ones((N, C)))
    net.backward()
    array = getattr(layer, f"get_{field}")()
    assert array.dtype == np.float32 and array.size == C
    np.testing.assert_array_equal(array, np.ones_like(array))
    net.test()
    np.testing.assert_array_equal(layer.get_value(), x)
    net.forward()
    assert net.check_gradients(layer)
