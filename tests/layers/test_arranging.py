"""Layers that combine sources and rearrange elements, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from latte import (
    AddLayer,
    ConcatLayer,
    ConvLayer,
    FlattenLayer,
    FullyConnectedLayer,
    InterpolationLayer,
    MemoryDataLayer,
    MultiplyLayer,
    Net,
    PaddingLayer,
    PermuteLayer,
    ReLULayer,
    ReshapeLayer,
    ResidualSumLayer,
    SplitLayer,
)
from latte.errors import DeclarationError
from latte.tools.library import LIBRARY
from swirl.target.machine import why_not
from swirl.target.targets import TARGETS
from tests.layers.against_torch import near

torch = pytest.importorskip("torch")
F = torch.nn.functional


def test_original_bilinear_before_the_source_mixes_its_first_two_rows() -> None:
    """API: ``y0 = clamp(floor(r) - pad, 0, H - 1)``, ``y1 = min(y0 + 1, H - 1)``, with ``d`` of ``r``."""
    net = Net(1, seed=1)
    data = MemoryDataLayer(net, (1, 1, 3))
    wide = InterpolationLayer(net, PaddingLayer(net, data, (0, (0, 1), 0), "edge"), 1, 2.0)
    net.compile(threads=1)
    net.set_batch(np.array([[[[10.0, 20.0, 40.0]]]]))
    net.test()
    np.testing.assert_allclose(wide.get_value()[0, 0], [[10, 15, 10, 15, 20]] * 3)


def test_gradients_of_each_source_of_a_concat() -> None:
    net = Net(2, seed=0)
    net.force_backward = True
    sources = [MemoryDataLayer(net, (channels, 2, 2)) for channels in (1, 3, 2)]
    concat = ConcatLayer(net, sources, name="joined")
    assert (concat.name, concat.shape) == ("joined", (6, 2, 2))
    net.compile(threads=1)
    gradient = np.random.default_rng(0).normal(size=(2, 6, 2, 2)).astype(np.float32)
    concat.set_grad(gradient)
    net.set_batch(*(np.ones((2, *source.shape)) for source in sources))
    net.forward()
    net.backward()
    np.testing.assert_array_equal(concat.get_grad_inputs(), gradient[:, :1])
    np.testing.assert_array_equal(concat.get_grad_inputs1(), gradient[:, 1:4])
    np.testing.assert_array_equal(concat.get_grad_inputs2(), gradient[:, 4:])


def image(net: Net, *shape: int) -> Any:
    return MemoryDataLayer(net, shape or (4, 6, 6))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda net: ConcatLayer(net, image(net)), "reads a list of two or more layers"),
        (lambda net: ConcatLayer(net, [image(net)]), "reads a list of two or more layers"),
        (lambda net: ConcatLayer(net, [image(net), 3]), "the input must be what a layer returned, not 3"),
        (lambda net: ConcatLayer(net, [image(net), image(net, 4, 6, 5)]), "differ in more than dimension 0"),
        (lambda net: ConcatLayer(net, [image(net), image(net, 4, 6)]), "differ in more than dimension 0"),
        (lambda net: ConcatLayer(net, [image(net)] * 2, axis=3), "axis must be an integer from 0 to 2, not 3"),
        (lambda net: ConcatLayer(net, [image(net, 1, 2, 3, 4)] * 2), "reads at most 3 dimensions"),
        (lambda net: AddLayer(net, [image(net), image(net, 4)]), "have different shapes"),
        (lambda net: ResidualSumLayer(net, image(net), image(net, 4)), "have different shapes"),
        (lambda net: ResidualSumLayer(net, image(net), image(net), "half"), "scale must be a number, not 'half'"),
        (lambda net: SplitLayer(net, image(net), [2, 3]), "whose sum is 4, the extent of dimension 0"),
        (lambda net: SplitLayer(net, image(net), 2), "whose sum is 4, the extent of dimension 0"),
        (lambda net: PaddingLayer(net, image(net), (1, 1)), "does not fit a source of shape (4, 6, 6)"),
        (lambda net: PaddingLayer(net, image(net), (0, 1, 1), "round"), "mode must be 'zero' or 'edge'"),
        (lambda net: ReshapeLayer(net, image(net), (5, -1)), "cannot be given the shape (5, -1)"),
        (lambda net: ReshapeLayer(net, image(net), "flat"), "cannot be given the shape 'flat'"),
        (lambda net: PermuteLayer(net, image(net), (0, 1)), "order must have each of (0, 1, 2) once"),
        (lambda net: InterpolationLayer(net, image(net, 4)), "InterpolationLayer reads 3 dimensions"),
        (lambda net: InterpolationLayer(net, image(net), 0.5), "pad must be an integer, not 0.5"),
        (lambda net: InterpolationLayer(net, image(net), 0, 0.1), "leave nothing of"),
        (lambda net: InterpolationLayer(net, image(net), 0, 0), "resize_factor must be greater than 0"),
        (lambda net: InterpolationLayer(net, image(net), 0, 0.123456), "a fraction of numbers up to 1000"),
        (lambda net: InterpolationLayer(net, image(net), mode="cubic"), "mode must be 'bilinear' or 'nearest'"),
    ],
)
def test_arguments_that_do_not_fit(make: Callable[[Net], Any], message: str) -> None:
    """The net can be used afterwards."""
    net = Net(2)
    with pytest.raises(DeclarationError) as caught:
        make(net)
    assert message in str(caught.value) and "test_arranging.py" in str(caught.value)
    ReLULayer(net, net.ensembles[0])
    net.compile(threads=1)


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_between_layers_in_blocks_of_channels(target: str) -> None:
    """What is moved, joined and added is laid out by tuned convolutions, and read by others."""
    if reason := why_not(TARGETS[target]):
        pytest.skip(reason)
    net = Net(2, seed=0)
    net.force_backward = True
    data = MemoryDataLayer(net, (3, 7, 9))
    first, second = ConvLayer(net, data, 32), ReLULayer(net, ConvLayer(net, data, 32))
    total = ResidualSumLayer(net, first, second)
    joined = ConcatLayer(net, [total, first, second])
    _, upper = SplitLayer(net, joined, [36, 60])
    padded = PaddingLayer(net, upper, (0, 1, 1), "edge")
    third = ConvLayer(net, padded, 16, pad=0)
    wide = InterpolationLayer(net, MultiplyLayer(net, [third, AddLayer(net, [third, third])]), 0, 2)
    turned = PermuteLayer(net, ConvLayer(net, wide, 16, stride=2), (1, 2, 0))
    top = FullyConnectedLayer(net, FlattenLayer(net, turned), 5)
    net.compile(threads=1, target=target)
    generator = np.random.default_rng(0)
    data.set_value(x := generator.normal(size=(2, 3, 7, 9)))
    top.set_grad(gradient := generator.normal(size=(2, 5)))
    net.forward()
    net.backward()
    state = {name: torch.tensor(v, dtype=torch.float64, requires_grad=True) for name, v in net.state_dict().items()}

    def conv(number: int, source: Any, **options: Any) -> Any:
        return F.conv2d(source, state[f"conv{number}.weights"], state[f"conv{number}.bias"][:, 0], **options)

    source = torch.tensor(x, requires_grad=True)
    a, b = conv(1, source, padding=1), torch.relu(conv(2, source, padding=1))
    c = conv(3, F.pad(torch.cat([a + b, a, b], 1)[:, 36:], (1, 1, 1, 1), mode="replicate"))
    wider = LIBRARY["InterpolationLayer"].computed(torch, 2 * c * c, options={"resize_factor": 2.0})
    d = conv(4, wider, padding=1, stride=2).permute(0, 2, 3, 1).flatten(1)
    value = d @ state["fully_connected1.weights"].T + state["fully_connected1.bias"][:, 0]
    value.backward(torch.tensor(gradient))
    near(top.get_value(), value, "value")
    near(data.get_grad(), source.grad, "gradient of the data")
    for name in ("conv1", "conv2", "conv3", "conv4"):
        layer = next(layer for layer in net.ensembles if layer.name == name)
        near(layer.get_grad_weights(), state[f"{name}.weights"].grad, name)
