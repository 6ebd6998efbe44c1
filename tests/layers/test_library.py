"""Layers of the library against PyTorch in double precision: values, gradients of the source and of the parameters."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import latte
from latte import (
    BinaryCrossEntropyLayer,
    DropoutLayer,
    ELULayer,
    GELULayer,
    GroupNormLayer,
    HuberLossLayer,
    LayerNormLayer,
    LeakyReLULayer,
    LogSoftmaxLayer,
    LRNLayer,
    MeanSquaredErrorLayer,
    MemoryDataLayer,
    Net,
    PositionwiseLinearLayer,
    PReLULayer,
    ReLU6Layer,
    SigmoidLayer,
    SiLULayer,
    SoftmaxLayer,
    TanhLayer,
)
from latte.ensemble import Ensemble
from latte.errors import DeclarationError
from latte.tools.library import LIBRARY
from tests.layers.against_torch import arguments, check_all, in_turn, near, of_library
from tests.layers.references import alone

torch = pytest.importorskip("torch")
F = torch.nn.functional


CASES = {
    name: (layer, case)
    for layer in LIBRARY.values()
    if "comparison" not in layer.lacks
    for name, case in layer.cases.items()
}
COMPARED = {name: of_library(layer, case) for name, (layer, case) in CASES.items()}


@pytest.mark.parametrize(("name", "target", "number"), in_turn(COMPARED), ids=str)
def test_against_pytorch(name: str, target: str, number: int) -> None:
    _, case = CASES[name]
    check_all(COMPARED[name], target, case.sizes[number].batch, number)


@pytest.mark.parametrize(
    ("layer", "same"),
    [(SigmoidLayer, torch.sigmoid), (SiLULayer, F.silu), (ELULayer, F.elu), (ReLU6Layer, F.relu6)],
    ids=["sigmoid", "silu", "elu", "relu6"],
)
def test_far_from_zero(layer: Callable[..., Ensemble], same: Callable[..., Any]) -> None:
    """No infinite intermediate value makes a NaN."""
    numbers = [[0.0, -0.0, 100.0, -100.0, 1e30, -1e30, np.inf, np.nan]]
    trial = alone(1, (8,), layer)
    trial.data.set_value(numbers)
    trial.run()
    x = torch.tensor(numbers, requires_grad=True)
    value = same(x)
    value.backward(torch.tensor(trial.gradient))
    np.testing.assert_allclose(trial.layer.get_value(), value.detach().numpy(), rtol=1e-6, atol=1e-37)
    np.testing.assert_allclose(trial.data.get_grad()[0, :6], x.grad.numpy()[0, :6], rtol=1e-5, atol=1e-37)


@pytest.mark.parametrize(
    ("layer", "same"),
    [(ELULayer, F.elu), (GELULayer, F.gelu), (TanhLayer, torch.tanh)],
    ids=["elu", "gelu", "tanh"],
)
def test_digits_near_zero(layer: Callable[..., Ensemble], same: Callable[..., Any]) -> None:
    """Each result is right relative to itself, however small."""
    numbers = [[s * 10.0**-e for e in (1, 3, 5, 7, 20) for s in (1, -1)]]
    trial = alone(1, (10,), layer)
    trial.data.set_value(numbers)
    trial.run()
    x = torch.tensor(np.float32(numbers), dtype=torch.float64, requires_grad=True)
    value = same(x)
    value.backward(torch.tensor(trial.gradient, dtype=torch.float64))
    np.testing.assert_allclose(trial.layer.get_value(), value.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(trial.data.get_grad(), x.grad.numpy(), rtol=1e-6)


@pytest.mark.parametrize("shape", [(5,), (5, 3, 3)], ids=str)
def test_log_softmax_keeps_the_digits_of_a_certain_class(shape: tuple[int, ...]) -> None:
    """Its logarithm is -1e-9; ``log`` of the sum of exponentials is 0. Several may be the largest."""
    trial = alone(2, shape, LogSoftmaxLayer)
    given = trial.x.copy()
    given[0, 1], given[1, 2:4] = given[0].max() + 20, given[1].max() + 1
    trial.data.set_value(given)
    trial.run()
    x = torch.tensor(given, dtype=torch.float64, requires_grad=True)
    value = F.log_softmax(x, 1)
    value.backward(torch.tensor(trial.gradient, dtype=torch.float64))
    np.testing.assert_allclose(trial.layer.get_value(), value.detach().numpy(), rtol=2e-6)
    near(trial.data.get_grad(), x.grad, "gradient")


# --- dropout ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(5000,), (3, 17, 29), (2, 3, 5, 7)], ids=str)
def test_dropout_drops_what_it_says(shape: tuple[int, ...]) -> None:
    ratio = 0.3
    trial = alone(3, shape, lambda net, data: DropoutLayer(net, data, ratio))
    drawn = trial.layer.get_randval()
    factor = np.float32(1 / (1 - ratio))
    np.testing.assert_array_equal(trial.layer.get_value(), np.where(drawn >= ratio, trial.x * factor, 0))
    np.testing.assert_array_equal(trial.data.get_grad(), np.where(drawn >= ratio, trial.gradient * factor, 0))
    assert drawn.min() >= 0 and drawn.max() <= 1 and abs((drawn >= ratio).mean() - 0.7) < 5 / np.sqrt(drawn.size)
    trial.net.forward()
    assert (trial.layer.get_randval() != drawn).mean() > 0.99
    trial.net.test()
    np.testing.assert_array_equal(trial.layer.get_value(), trial.x)


def test_dropout_of_nothing() -> None:
    trial = alone(2, (7,), lambda net, data: DropoutLayer(net, data, 0.0))
    np.testing.assert_array_equal(trial.layer.get_value(), trial.x)


# --- losses -----------------------------------------------------------------------------------------------
def test_binary_losses_far_from_zero() -> None:
    """They are finite, and keep their digits: ``log(1 + e)`` is 0 for ``e`` below 6e-8."""
    net = Net(2)
    net.force_backward = True
    data, target = MemoryDataLayer(net, (17,)), MemoryDataLayer(net, (17,))
    BinaryCrossEntropyLayer(net, data, target)
    net.compile(threads=1)
    net.set_batch(np.full((2, 17), -200.0), np.ones((2, 17)))
    net.forward()
    net.backward()
    assert net.loss == pytest.approx(200.0) and np.isfinite(data.get_grad()).all()
    net.set_batch([[20.0] * 17, [-30.0] * 17], [[1.0] * 17, [0.0] * 17])
    net.forward()
    assert net.loss == pytest.approx((np.log1p(np.exp(-20.0)) + np.log1p(np.exp(-30.0))) / 2, rel=1e-6)


# --- names and bad arguments ------------------------------------------------------------------------------
def source(net: Net) -> Ensemble:
    return MemoryDataLayer(net, (4, 6, 6))


@pytest.mark.parametrize("name", LIBRARY)
def test_layers_take_a_name(name: str) -> None:
    net = Net(2)
    made = getattr(latte, name)(**arguments(LIBRARY[name], net), name="mine")
    names = ["mine"] if not isinstance(made, list) else [f"mine_{number}" for number in range(len(made))]
    assert [each.name for each in (made if isinstance(made, list) else [made])] == names


REFUSED: list[tuple[Callable[[Net], Ensemble], str]] = [
    (lambda net: DropoutLayer(net, source(net), 1.0), "ratio must be a number, at least 0, below 1, not 1.0"),
    (lambda net: DropoutLayer(net, source(net), "half"), "ratio must be a number, at least 0, below 1, not 'half'"),
    (lambda net: ELULayer(net, source(net), alpha=-1), "alpha must be a number, at least 0, not -1"),
    (lambda net: GELULayer(net, source(net), "erf"), "approximate must be 'none' or 'tanh', not 'erf'"),
    (lambda net: LeakyReLULayer(net, source(net), np.nan), "negative_slope must be a number, not nan"),
    (lambda net: GroupNormLayer(net, source(net), 3), "4 channels cannot be divided into 3 groups"),
    (lambda net: GroupNormLayer(net, source(net), 2.0), "groups must be a positive integer, not 2.0"),
    (lambda net: LayerNormLayer(net, source(net), 0), "epsilon must be greater than 0"),
    (lambda net: LRNLayer(net, source(net), k=0), "k must be greater than 0"),
    (lambda net: SoftmaxLayer(net, MemoryDataLayer(net, (2, 3, 4, 5))), "reads 1 or 2 or 3 dimensions"),
    (lambda net: PReLULayer(net, MemoryDataLayer(net, (2, 3, 4, 5))), "PReLULayer reads at most 3 dimensions"),
    (lambda net: HuberLossLayer(net, MemoryDataLayer(net, 3), MemoryDataLayer(net, 3), 0), "delta must be greater"),
    (
        lambda net: MeanSquaredErrorLayer(net, MemoryDataLayer(net, 3), MemoryDataLayer(net, 4)),
        "must be two layers of one shape",
    ),
    (lambda net: PositionwiseLinearLayer(net, source(net), 3), "reads 2 dimensions without the batch"),
    (lambda net: GELULayer(net, source(net), name="a b"), "'a b' cannot name an ensemble"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_arguments_that_do_not_fit(make: Callable[[Net], Ensemble], message: str) -> None:
    net = Net(2)
    with pytest.raises(DeclarationError) as caught:
        make(net)
    assert message in str(caught.value) and "test_library.py" in str(caught.value)
    assert {layer.kind for layer in net.ensembles} == {"data"}


def test_the_net_can_be_used_afterwards() -> None:
    net = Net(2)
    for make, message in REFUSED:
        with pytest.raises(DeclarationError, match=re.escape(message)):
            make(net)
    made = GELULayer(net, net.ensembles[0])
    net.compile(threads=1)
    assert made.name == "gelu1"
