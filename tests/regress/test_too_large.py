"""Numbers that are infinite as float32, given as values: they were stored as infinities, with a warning of NumPy's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from latte import FullyConnectedLayer, MeanSquaredErrorLayer, MemoryDataLayer, Net, ResidualSumLayer
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.errors import LatteError
from latte.neuron import Neuron, Param, constant
from latte.solver import SGD

LARGE = np.full((3, 4), 1e300)
WEIGHTS = "fully_connected1.weights"


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def compiled() -> tuple[Net, Ensemble, Ensemble]:
    net = Net(2, seed=0)
    data = MemoryDataLayer(net, 4)
    layer = FullyConnectedLayer(net, data, 3)
    net.compile(threads=1)
    return net, data, layer


CALLS: dict[str, Callable[[Net, Ensemble, Ensemble], Any]] = {
    "fully_connected1.set_weights": lambda net, data, layer: layer.set_weights(LARGE),
    "fully_connected1.set_grad_weights": lambda net, data, layer: layer.set_grad_weights(LARGE),
    "fully_connected1.set_grad": lambda net, data, layer: layer.set_grad(LARGE[:2, :3]),
    "data1.set_value": lambda net, data, layer: data.set_value(LARGE[:2]),
    "w": lambda net, data, layer: net.load_state_dict({"w": LARGE}, {"fully_connected1.weights": "w"}),
    "fully_connected1.weights": lambda net, data, layer: net.load_state_dict({**net.state_dict(), WEIGHTS: LARGE}),
}


@pytest.mark.parametrize("what", CALLS)
def test_setters_and_load_state_dict(what: str):
    net, data, layer = compiled()
    before = net.state_dict()
    with pytest.raises(LatteError) as caught:
        CALLS[what](net, data, layer)
    needed = "numbers for float32, which goes up to 3.4e38, are needed"
    assert caught.value.message == f"{what}: {needed}; at [0, 0] it is 1e+300"
    assert __file__ in str(caught.value.location)
    for name, values in net.state_dict().items():
        np.testing.assert_array_equal(values, before[name])


def test_a_tensor_of_doubles():
    torch = pytest.importorskip("torch")
    net, _, layer = compiled()
    names = {"fully_connected1.weights": "w"}
    with pytest.raises(LatteError, match=r"w: numbers .* it is 1e\+300"):
        net.load_state_dict({"w": torch.full((3, 4), 1e300, dtype=torch.float64)}, names)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        net.load_state_dict({"w": torch.full((3, 4), 0.5, dtype=dtype)}, names)
        assert (layer.get_weights() == 0.5).all()


def test_infinities_are_values():
    """A weight may be infinite, or NaN, if the user wants it; so may data with ``finite=False``."""
    net, _, layer = compiled()
    weights = np.array([[np.inf, np.nan, -np.inf, 3.4e38]] * 3)
    layer.set_weights(weights)
    np.testing.assert_array_equal(layer.get_weights(), weights.astype(np.float32))
    net.set_batch(LARGE[:2], finite=False)
    assert np.isinf(net["data1"].get_value()).all()


def test_initial_values():
    class Scaled(Neuron):
        factor = Param("c", init=constant(1e300))

        def forward(self) -> None:
            self.value = self.factor * self.input

    net = Net(2)
    layer = net.add_ensemble(ActivationEnsemble(Scaled, (4,), ("c",)))
    net.add_one_to_one_connections(MemoryDataLayer(net, 4), layer)
    with pytest.raises(LatteError, match=r"scaled1\.factor: of what init returned, numbers for float32") as caught:
        net.compile(threads=1)
    assert __file__ in str(caught.value.location)


def test_half_floats_are_compared_as_python_floats():
    """NumPy makes the limit a half float, which is infinite: it was accepted, and any other number warned."""
    net = Net(2, seed=0)
    data = MemoryDataLayer(net, 4)
    MeanSquaredErrorLayer(net, FullyConnectedLayer(net, data, 3), MemoryDataLayer(net, 3))
    assert ResidualSumLayer(net, data, data, scale=np.float16(0.5)).shape == (4,)
    for wrong in (np.float16("inf"), np.float16("-inf"), np.float16("nan")):
        with pytest.raises(LatteError, match="scale must be a number"):
            ResidualSumLayer(net, data, data, scale=wrong)
    net.compile(target="portable", threads=1)
    assert SGD(net, np.float16(0.5)).learning_rate == 0.5
    with pytest.raises(LatteError, match="learning_rate"):
        SGD(net, np.float16("inf"))
