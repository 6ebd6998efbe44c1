"""Arrays of ``np.ma`` wherever arrays are given: what is masked was computed with, as if there were no mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from latte import FullyConnectedLayer, MemoryDataLayer, Net, SoftmaxLossLayer
from latte.data import DataLoader, Normalise
from latte.ensemble import ActivationEnsemble, LossEnsemble
from latte.errors import LatteError
from latte.math import compute_accuracy, compute_seg_softmax_loss, compute_softmax_loss, softmax_loss_backprop
from latte.neuron import Neuron, Param, given
from latte.solver import SGD
from latte.solvers import sgd_update

pytestmark = pytest.mark.usefixtures("as_lowered")

X = np.ones((4, 3))
Y = np.array([0, 1, 1, 0])


def hidden(array: np.ndarray) -> np.ma.MaskedArray:
    """The array with one element masked, which is not a number for a net."""
    made = np.ma.array(array, copy=True)
    made.data.flat[1] = 0 if array.dtype.kind in "iu" else 7.0
    made.mask = np.zeros(array.shape, bool)
    made.mask.flat[1] = True
    return made


def plain(array: np.ndarray) -> np.ma.MaskedArray:
    """The array with a mask that masks nothing."""
    return np.ma.array(array, mask=np.zeros(array.shape, bool))


@pytest.fixture
def net() -> Net:
    net = Net(4, seed=0, keep="all")
    net.force_backward = True
    scores = FullyConnectedLayer(net, MemoryDataLayer(net, (3,), name="x"), 2, name="scores")
    SoftmaxLossLayer(net, scores, MemoryDataLayer(net, (1,), name="y"))
    net.compile(target="portable", threads=1)
    return net


def seeded(net: Net, make: Any) -> None:
    net["x"].set_value(X)
    net["y"].set_value(Y[:, None])
    net.forward()
    net["scores"].set_grad(make(np.ones((4, 2))))


Make = Callable[[np.ndarray], Any]
GIVEN: dict[str, Callable[[Net, Make], Any]] = {
    "set_value": lambda net, make: net["x"].set_value(make(X)),
    "set_value of a list": lambda net, make: net["x"].set_value([make(row) for row in X]),
    "set_value of nested lists": lambda net, make: net["x"].set_value([(list(X[0])), *[make(row) for row in X[1:]]]),
    "set_weights": lambda net, make: net["scores"].set_weights(make(np.ones((2, 3)))),
    "set_bias": lambda net, make: net["scores"].set_bias(make(np.ones((2, 1)))),
    "set_grad": seeded,
    "set_grad_weights": lambda net, make: net["scores"].set_grad_weights(make(np.ones((2, 3)))),
    "set_batch": lambda net, make: net.set_batch(make(X), Y),
    "labels of set_batch": lambda net, make: net.set_batch(X, make(Y)),
    "fit": lambda net, make: net.fit(make(X), Y, solver=SGD(net, 0.1), progress=False),
    "labels of fit": lambda net, make: net.fit(X, make(Y), solver=SGD(net, 0.1), progress=False),
    "validation": lambda net, make: net.fit(X, Y, solver=SGD(net, 0.1), validation=(make(X), Y), progress=False),
    "evaluate": lambda net, make: net.evaluate(make(X), Y),
    "labels of evaluate": lambda net, make: net.evaluate(X, make(Y)),
    "predict": lambda net, make: net.predict(make(X)),
    "predict one item": lambda net, make: net.predict(make(X[:1])),
    "check_gradients": lambda net, make: (net.set_batch(make(X), Y), net.check_gradients()),
    "load_state_dict": lambda net, make: net.load_state_dict(
        {name: make(array) for name, array in net.state_dict().items()}
    ),
    "load_state_dict with names": lambda net, make: net.load_state_dict(
        {"w": make(np.ones((2, 3)))}, {"scores.weights": "w"}
    ),
    "a loader": lambda net, make: net.fit(DataLoader(make(X), Y, batch_size=2), solver=SGD(net, 0.1), progress=False),
    "labels of a loader": lambda net, make: DataLoader(X, make(Y), batch_size=2),
    "a data set": lambda net, make: list(DataLoader([(make(row), 0) for row in X], batch_size=2)),
    "a data set on a thread": lambda net, make: list(DataLoader([(make(r), 0) for r in X], batch_size=2, prefetch=2)),
    "a transform": lambda net, make: list(DataLoader(X, batch_size=2, transforms=[lambda batch, _: make(batch)])),
    "Normalise": lambda net, make: Normalise(make(np.ones(3)), 1.0),
    "Normalise.of": lambda net, make: Normalise.of(make(np.arange(48.0).reshape(2, 3, 2, 4))),
    "given": lambda net, make: given(make(X)),
    "sgd_update": lambda net, make: sgd_update(make(X.copy()), X.copy(), X.copy(), 0.1, 0.9),
    "sgd_update's gradient": lambda net, make: sgd_update(X.copy(), make(X), X.copy(), 0.1, 0.9),
    "compute_softmax_loss": lambda net, make: compute_softmax_loss(make(X.copy()), X.copy(), Y),
    "labels of compute_softmax_loss": lambda net, make: compute_softmax_loss(X, X.copy(), make(Y)),
    "softmax_loss_backprop": lambda net, make: softmax_loss_backprop(X.copy(), make(X / 3), Y),
    "compute_accuracy": lambda net, make: compute_accuracy(X, make(Y)),
    "compute_seg_softmax_loss": lambda net, make: compute_seg_softmax_loss(
        np.ones((1, 2, 2, 2)), np.ones((1, 2, 2, 2)), make(np.ones((1, 1, 2, 2))), 255
    ),
}


@pytest.mark.parametrize("what", GIVEN)
def test_what_is_masked_is_refused(what: str, net: Net) -> None:
    with pytest.raises(LatteError, match=r"1 of \d+ elements are masked.*array\.filled\(…\)") as caught:
        GIVEN[what](net, hidden)
    assert __file__ in str(caught.value.location)


@pytest.mark.parametrize("what", GIVEN)
def test_a_mask_that_masks_nothing(what: str, net: Net) -> None:
    GIVEN[what](net, plain)
    GIVEN[what](net, np.array)


def test_nothing_is_changed(net: Net) -> None:
    before = net.state_dict()
    for what in ("load_state_dict", "load_state_dict with names", "set_weights"):
        with pytest.raises(LatteError):
            GIVEN[what](net, hidden)
    for name, array in net.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


def test_the_constant_masked(net: Net) -> None:
    """NumPy makes NaN of it, with a warning."""
    values = X.tolist()
    values[1][2] = np.ma.masked
    with pytest.raises(LatteError, match="1 of 1 elements are masked"):
        net["x"].set_value(values)
    with pytest.raises(LatteError, match="masked"):
        net.predict([np.ma.masked] * 3)


TABLE = hidden(np.array([1.0, 2.0, 3.0]))


class Named(Neuron):
    def forward(self) -> None:
        self.value = self.input * TABLE[c]  # type: ignore[name-defined]  # noqa: F821


class Initialised(Neuron):
    weight = Param("c", init=lambda shape, fan_in, generator: hidden(np.ones(shape)))

    def forward(self) -> None:
        self.value = self.input * self.weight


class OfInstances(Neuron):
    def __init__(self, weights: np.ndarray):
        super().__init__()
        self.weights = weights

    def forward(self) -> None:
        self.value = self.input * self.weights[0]


def compiled(kind: Any) -> None:
    net = Net(2)
    layer = net.add_ensemble(ActivationEnsemble(kind, (3,), ("c",)))
    net.add_one_to_one_connections(MemoryDataLayer(net, (3,)), layer)
    net.compile(target="portable", threads=1)


@pytest.mark.parametrize("kind", [Named, Initialised, np.full(3, OfInstances(hidden(np.ones(3))), dtype=object)])
def test_arrays_of_layers(kind: Any) -> None:
    with pytest.raises(LatteError, match="1 of 3 elements are masked") as caught:
        compiled(kind)
    assert __file__ in str(caught.value.location)


class Loss(LossEnsemble):
    def forward(self, bottom: np.ndarray, label: np.ndarray) -> Any:
        return np.ma.masked_greater(bottom, 0.0).mean()

    def backward(self, bot_grad: np.ndarray, label: np.ndarray) -> None:
        bot_grad[...] = 1.0


def test_a_loss_in_python() -> None:
    net = Net(4)
    data, label = MemoryDataLayer(net, (3,)), MemoryDataLayer(net, (1,))
    loss = net.add_ensemble(Loss())
    scores = FullyConnectedLayer(net, data, 2)
    net.add_loss_connection(scores, loss)
    net.add_loss_connection(label, loss)
    net.compile(target="portable", threads=1)
    scores.set_weights(np.ones((2, 3)))
    net.set_batch(X, Y)
    with pytest.raises(LatteError, match="has returned masked; the loss, a number, is needed"):
        net.forward()
