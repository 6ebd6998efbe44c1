"""ReLU and tanh, compiled, against NumPy and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from latte import ReLULayer, SoftplusLayer, TanhLayer
from tests.layers.references import ROUNDING, Alone, alone, assert_within

SHAPES = [(1, (1,)), (3, (17,)), (2, (3, 5)), (2, (3, 7, 5)), (1, (2, 1, 2, 19))]


def with_zeros(x: np.ndarray) -> np.ndarray:
    """Rounded, so that many elements are 0."""
    return np.round(2 * x) / 2


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def relu(request: pytest.FixtureRequest) -> Alone:
    return alone(*request.param, ReLULayer, change=with_zeros)


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def tanh(request: pytest.FixtureRequest) -> Alone:
    return alone(*request.param, TanhLayer, change=lambda x: 4 * x)


def test_relu(relu: Alone) -> None:
    np.testing.assert_array_equal(relu.layer.get_value(), np.maximum(relu.x, 0))
    np.testing.assert_array_equal(relu.data.get_grad(), np.where(relu.x > 0, relu.gradient, 0))
    np.testing.assert_array_equal(relu.data.get_value(), relu.x)  # not in place


def test_relu_of_special_numbers() -> None:
    """NaN stays NaN, as in NumPy and PyTorch; -0.0 and infinities."""
    result = alone(1, (5,), ReLULayer)
    result.data.set_value([[np.nan, -0.0, 0.0, np.inf, -np.inf]])
    result.run()
    np.testing.assert_array_equal(result.layer.get_value(), [[np.nan, 0, 0, np.inf, 0]])
    np.testing.assert_array_equal(result.data.get_grad()[0, 1:], [0, 0, result.gradient[0, 3], 0])


def test_tanh(tanh: Alone) -> None:
    expected = np.tanh(tanh.x.astype(np.float64))
    # tanh is within 4 units in the last place.
    assert_within(tanh.layer.get_value(), expected, 8 * ROUNDING * abs(expected), "value")
    derivative = 1 - expected**2
    # 1 - y·y loses what y·y rounds, and y is off by 8 roundings.
    bound = abs(tanh.gradient) * (2 * 9 + 2) * ROUNDING
    assert_within(tanh.data.get_grad(), tanh.gradient * derivative, bound, "grad_inputs")


def against_pytorch(trial: Alone, function: Any) -> None:
    """Two float32 results of numbers up to 1, or the same numbers."""
    torch = pytest.importorskip("torch")
    x = torch.tensor(trial.x, requires_grad=True)
    value = function(torch, x)
    value.backward(torch.tensor(trial.gradient))
    assert_within(trial.layer.get_value(), value.detach().numpy(), 16 * ROUNDING, "value")
    assert_within(trial.data.get_grad(), x.grad.numpy(), 32 * ROUNDING * abs(trial.gradient), "gradient")


def repeated_phases(trial: Alone) -> None:
    """The same bits, however often a phase runs."""
    value, of_data = trial.layer.get_value(), trial.data.get_grad()
    trial.net.forward()
    trial.net.backward()
    trial.net.backward()
    np.testing.assert_array_equal(trial.layer.get_value(), value)
    np.testing.assert_array_equal(trial.data.get_grad(), of_data)


def test_relu_against_pytorch(relu: Alone) -> None:
    against_pytorch(relu, lambda torch, x: torch.relu(x))


def test_tanh_against_pytorch(tanh: Alone) -> None:
    against_pytorch(tanh, lambda torch, x: torch.tanh(x))


def test_relu_repeated(relu: Alone) -> None:
    repeated_phases(relu)


def test_tanh_repeated(tanh: Alone) -> None:
    repeated_phases(tanh)


def test_softplus_is_smooth_at_zero_and_saturates() -> None:
    """The slope at 0 is a half; large numbers neither overflow nor lose their small rest."""
    result = alone(1, (7,), SoftplusLayer)
    result.data.set_value([[0.0, -0.0, 1000.0, -1000.0, np.inf, -np.inf, -30.0]])
    result.run()
    expected = np.array([[np.log(2), np.log(2), 1000.0, 0.0, np.inf, 0.0, np.exp(-30.0)]])
    np.testing.assert_allclose(result.layer.get_value(), expected, rtol=4e-7)
    slopes = np.array([[0.5, 0.5, 1.0, 0.0, 1.0, 0.0, np.exp(-30.0)]])
    np.testing.assert_allclose(result.data.get_grad(), slopes * result.gradient, rtol=1e-6)
