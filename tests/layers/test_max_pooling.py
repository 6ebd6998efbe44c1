"""Max pooling, compiled: Latte's old rule against NumPy, the others against PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from latte import MaxPoolingLayer, MemoryDataLayer, Net, ReLULayer
from tests.layers.references import (
    ROUNDING,
    Alone,
    Pair,
    alone,
    assert_within,
    both,
    max_pool,
    max_pool_gradient,
)


@dataclass(frozen=True)
class Shape:
    """One pooling: batch, source, window."""

    batch: int
    source: tuple[int, int, int]
    kernel: int | Pair = 2
    stride: int | Pair = 2
    pad: int | Pair = 0


OLD_RULE = {
    "digits": Shape(2, (3, 8, 8)),
    "odd: the last window is clamped": Shape(2, (17, 7, 5)),
    "overlapping": Shape(1, (2, 8, 9), kernel=3),
    "overlapping, padded": Shape(2, (3, 5, 6), kernel=3, stride=1, pad=1),
    "padded": Shape(1, (1, 5, 5), pad=1),
    "gaps between windows": Shape(1, (2, 9, 7), kernel=2, stride=3),
    "each axis its own": Shape(2, (2, 4, 9), (1, 3), (1, 2), (0, 1)),
    "one pixel": Shape(1, (3, 1, 1), kernel=1, stride=1),
    "whole rows": Shape(2, (1, 3, 40), kernel=(3, 1), stride=(1, 1)),
    "few columns, channels of two vectors less one": Shape(2, (31, 4, 6)),
    "borders of rows of two vectors": Shape(1, (18, 3, 36), kernel=3, stride=1, pad=1),
    "every window at a border": Shape(2, (3, 3, 5), kernel=3, stride=3, pad=1),
    "wide windows": Shape(1, (16, 6, 6), kernel=5, stride=1, pad=2),
}
# kernel, stride, pad and rounding as PyTorch has them
PYTORCH = {
    "digits": Shape(2, (3, 8, 8)),
    "odd": Shape(2, (2, 7, 5)),
    "overlapping, padded": Shape(1, (17, 8, 8), kernel=3, pad=1),
    "stride 1": Shape(2, (2, 5, 6), kernel=3, stride=1, pad=1),
    "gaps": Shape(1, (1, 9, 7), kernel=3, stride=4, pad=1),
    "borders of rows of two vectors": Shape(1, (18, 3, 37), kernel=3, stride=1, pad=1),
    "borders of strided rows": Shape(1, (9, 5, 40), kernel=3, pad=1),
    "wide windows": Shape(1, (16, 8, 8), kernel=5, pad=2),
    "wide windows, few channels": Shape(2, (3, 6, 6), kernel=5, stride=1, pad=2),
    "windows wider than the image": Shape(1, (16, 5, 5), kernel=9, stride=1, pad=4),
    "one column": Shape(1, (3, 4, 1), kernel=4, pad=2),
}
LEAVE_ROWS = ("odd", "overlapping, padded", "gaps", "one column")
"""Rounded down, windows leave something unread."""


def few_numbers(x: np.ndarray) -> np.ndarray:
    """Rounded, so that many windows have several largest elements."""
    return np.round(x)


@pytest.fixture(scope="module", params=OLD_RULE)
def old_rule(request: pytest.FixtureRequest) -> tuple[Shape, Alone]:
    shape = OLD_RULE[request.param]
    return shape, alone(
        shape.batch,
        shape.source,
        lambda net, data: MaxPoolingLayer(net, data, shape.kernel, shape.stride, shape.pad, ceil_mode=True, clamp=True),
        change=few_numbers,
    )


def test_value_and_masks(old_rule: tuple[Shape, Alone]) -> None:
    shape, trial = old_rule
    value, mask_j, mask_k = max_pool(trial.x, both(shape.kernel), both(shape.stride), both(shape.pad))
    assert trial.layer.shape == value.shape[1:]
    np.testing.assert_array_equal(trial.layer.get_value(), value)
    for got, mask in ((trial.layer.get_mask_j(), mask_j), (trial.layer.get_mask_k(), mask_k)):
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, mask)


def test_gradient(old_rule: tuple[Shape, Alone]) -> None:
    shape, trial = old_rule
    stride, pad = both(shape.stride), both(shape.pad)
    _, *masks = max_pool(trial.x, both(shape.kernel), stride, pad)
    expected = max_pool_gradient(trial.gradient, tuple(masks), trial.x.shape, stride, pad)
    # An element wins at most kernel · kernel windows, or all that clamp to it: below 32 additions here.
    size = max_pool_gradient(abs(trial.gradient), tuple(masks), trial.x.shape, stride, pad)
    assert_within(trial.data.get_grad(), expected, 32 * ROUNDING * size, "grad_inputs")
    before = trial.data.get_grad()
    trial.net.forward()
    trial.net.backward()
    trial.net.backward()
    np.testing.assert_array_equal(trial.data.get_grad(), before)


@pytest.mark.parametrize(
    ("name", "ceil_mode"), [(name, mode) for name in PYTORCH for mode in (True, False) if mode or name in LEAVE_ROWS]
)
def test_like_pytorch(name: str, ceil_mode: bool) -> None:
    """Positions outside do not take part; the first of equal elements wins in PyTorch, too."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    shape = PYTORCH[name]
    trial = alone(
        shape.batch,
        shape.source,
        lambda net, data: MaxPoolingLayer(
            net, data, shape.kernel, shape.stride, shape.pad, ceil_mode=ceil_mode, clamp=False
        ),
        change=few_numbers,
    )
    x = torch.tensor(trial.x, requires_grad=True)
    value = torch.nn.functional.max_pool2d(x, shape.kernel, shape.stride, shape.pad, ceil_mode=ceil_mode)
    value.backward(torch.tensor(trial.gradient))
    np.testing.assert_array_equal(trial.layer.get_value(), value.detach().numpy())
    # At most 9 additions in another order, of numbers below 4.
    assert_within(trial.data.get_grad(), x.grad.numpy(), 2 * 9 * ROUNDING * 36, "grad_inputs")


def test_all_equal_windows_and_zeros_of_a_relu() -> None:
    """The first element of a window of zeros wins."""
    trial = alone(2, (2, 4, 4), lambda net, data: MaxPoolingLayer(net, ReLULayer(net, data)), change=lambda x: -abs(x))
    assert not trial.layer.get_value().any()
    assert not trial.layer.get_mask_j().any()
    assert not trial.layer.get_mask_k().any()
    relu = trial.net.ensembles[1]
    expected = np.zeros((2, 2, 4, 4), np.float32)
    expected[:, :, ::2, ::2] = trial.gradient
    np.testing.assert_array_equal(relu.get_grad(), expected)
    assert not trial.data.get_grad().any()


def test_not_a_number_wins() -> None:
    """As in PyTorch: a NaN wins instead of being skipped."""
    trial = alone(1, (1, 2, 4), MaxPoolingLayer)
    trial.data.set_value([[[[1, np.nan, 3, 4], [5, 6, 7, 8]]]])
    trial.net.forward()
    np.testing.assert_array_equal(trial.layer.get_value(), [[[[np.nan, 8]]]])


def test_masks_are_there_without_gradients() -> None:
    """A net that sends no gradient to its data still says which elements won."""
    net = Net(1, seed=1)
    data = MemoryDataLayer(net, (1, 2, 4))
    pool = MaxPoolingLayer(net, data)
    net.compile(threads=1)
    data.set_value([[[[1, 2, 3, 3], [5, 0, 3, 3]]]])
    net.forward()
    np.testing.assert_array_equal(pool.get_value(), [[[[5, 3]]]])
    np.testing.assert_array_equal(pool.get_mask_j(), [[[[1, 0]]]])
    np.testing.assert_array_equal(pool.get_mask_k(), [[[[0, 0]]]])
