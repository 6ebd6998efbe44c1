"""Operands that lowering stores, in layers: their names, training and inference, gradients, batches of other sizes."""

from __future__ import annotations

import numpy as np
import pytest

from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.neuron import Field, Param, normal, ones, sqrt
from tests.support import running_targets

D, K = 12, 10


class RowsNormalised(Ensemble):
    """A fully connected layer whose weights have rows of length ``g``."""

    norm = Field("k")

    def forward(self, inputs, value, v, g, norm):
        N, D = inputs.shape
        for k in range(v.shape[0]):
            for d in range(D):
                norm[k] += v[k, d] * v[k, d]
        for n in range(N):
            for k in range(v.shape[0]):
                for d in range(D):
                    value[n, k] += g[k] * v[k, d] / sqrt(norm[k]) * inputs[n, d]


class OwnField(Ensemble):
    """One array in training, another one in inference, which has the name that an operand would have."""

    def forward(self, inputs, value, v, g, v_part):
        N, D = inputs.shape
        if self.training:
            for n in range(N):
                for k in range(v.shape[0]):
                    for d in range(D):
                        value[n, k] += g[k] * v[k, d] * inputs[n, d]
        else:
            for n in range(N):
                for k in range(v.shape[0]):
                    for d in range(D):
                        value[n, k] += v_part[k, d] * inputs[n, d]


class PartInTraining(Ensemble):
    """Fewer weights in training than in inference."""

    def forward(self, inputs, value, v, g):
        N, D = inputs.shape
        if self.training:
            for n in range(N):
                for k in range(4):
                    for d in range(3):
                        value[n, k] += g[k] * v[k, d] * inputs[n, d]
        else:
            for n in range(N):
                for k in range(v.shape[0]):
                    for d in range(D):
                        value[n, k] += g[k] * v[k, d] * inputs[n, d]


def of(kind: type[Ensemble], batch: int = 8, **more: Param) -> tuple[Net, Ensemble, Ensemble]:
    """A net of data and one layer, its source, and the layer."""
    net = Net(batch, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (D,))
    layer = kind(shape=(K,), dims=("k",))
    for name, field in {
        "v": Param("k", shape=(D,), init=normal(1.0)),
        "g": Param("k", init=normal(1.0)),
        **more,
    }.items():
        layer.add_field(name, field)
    net.add_ensemble(layer)
    net.add_connections(data, layer)
    return net, data, layer


def compiled(net: Net, data: Ensemble, target: str) -> np.ndarray:
    """The source's values, random ones, once the net is compiled."""
    net.compile(target=target, threads=1)
    x = np.random.default_rng(0).standard_normal((8, D)).astype(np.float32)
    data.set_value(x)
    return x


@pytest.mark.parametrize("target", running_targets())
def test_gradients(target: str) -> None:
    net, data, layer = of(RowsNormalised)
    x = compiled(net, data, target)
    net.forward()
    v, g = layer.get_v(), layer.get_g().ravel()
    weights = v * (g / np.sqrt((v * v).sum(1)))[:, None]
    np.testing.assert_allclose(layer.get_value(), x @ weights.T, rtol=1e-4, atol=1e-5)
    assert net.check_gradients(layer)


@pytest.mark.parametrize("target", running_targets())
def test_a_declared_field_keeps_its_array(target: str) -> None:
    net, data, layer = of(OwnField, v_part=Param("k", shape=(D,), init=ones))
    x = compiled(net, data, target)
    net.forward()
    np.testing.assert_array_equal(layer.get_v_part(), np.ones((K, D), np.float32))
    np.testing.assert_allclose(
        layer.get_value(), x @ (layer.get_g().reshape(-1, 1) * layer.get_v()).T, rtol=1e-4, atol=1e-5
    )
    net.test()
    np.testing.assert_allclose(layer.get_value(), np.repeat(x.sum(1, keepdims=True), K, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", running_targets())
def test_training_and_inference_have_arrays_of_their_own(target: str) -> None:
    net, data, layer = of(PartInTraining)
    x = compiled(net, data, target)
    weights = layer.get_g().reshape(-1, 1) * layer.get_v()
    for _ in range(2):
        net.forward()
        np.testing.assert_allclose(layer.get_value()[:, :4], x[:, :3] @ weights[:4, :3].T, rtol=1e-4, atol=1e-5)
        net.test()
        np.testing.assert_allclose(layer.get_value(), x @ weights.T, rtol=1e-4, atol=1e-5)
    shapes = sorted(
        array.shape for name, array in net.executable.arrays.items() if name.startswith(f"{layer.name}.v_part")
    )
    assert shapes == [(4, 3), (K, D)]
