"""Convolutions with groups, and transposed ones, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from latte import ConvLayer, ConvLayerNoBias, MemoryDataLayer, Net, ReLULayer, TransposedConvLayer
from latte.errors import DeclarationError
from tests.layers.against_torch import Case, check_all, in_turn

torch = pytest.importorskip("torch")
F = torch.nn.functional


def grouped(*shapes: tuple[int, ...], groups: int, bias: bool = True, **options: Any) -> Case:
    def declare(net: Net, source: Any) -> Any:
        layer = ConvLayer if bias else ConvLayerNoBias
        return layer(net, source, groups=groups, **options)

    def same(x: Any, weights: Any, bias: Any = None) -> Any:
        moved = [options.get(name, default) for name, default in (("stride", 1), ("pad", 1), ("dilation", 1))]
        return F.conv2d(x, weights, None if bias is None else bias[:, 0], *moved, groups)

    return Case(declare, same, [(shape,) for shape in shapes])


def transposed(*shapes: tuple[int, ...], **options: Any) -> Case:
    def declare(net: Net, source: Any) -> Any:
        return TransposedConvLayer(net, source, **options)

    def same(x: Any, weights: Any, bias: Any) -> Any:
        stride, pad, dilation = (options.get(*each) for each in (("stride", 1), ("pad", 0), ("dilation", 1)))
        return F.conv_transpose2d(x, weights, bias[:, 0], stride, pad, options.get("output_padding", 0), 1, dilation)

    return Case(declare, same, [(shape,) for shape in shapes])


CASES = {
    "two groups": grouped((4, 5, 7), groups=2, num_filters=6),
    "groups of 16": grouped((48, 8, 16), (48, 5, 7), groups=3, num_filters=33),
    "depthwise": grouped((17, 5, 7), (17, 8, 16), groups=17, num_filters=17, stride=2),
    "depthwise, two filters each": grouped((4, 9, 9), groups=4, num_filters=8, kernel=(3, 2), dilation=2, pad=(1, 2)),
    "depthwise without bias": grouped((32, 8, 8), groups=32, bias=False, num_filters=32),
    "transposed": transposed((3, 5, 7), num_filters=6),
    "transposed, enlarging": transposed((16, 4, 4), num_filters=17, kernel=4, stride=2, pad=1),
    "transposed, all options": transposed(
        (2, 5, 6), num_filters=3, kernel=(3, 2), stride=(2, 3), dilation=(1, 2), pad=(1, 0), output_padding=1
    ),
    "transposed, one pixel": transposed((1, 1, 1), num_filters=1, kernel=1),
}


@pytest.mark.parametrize(("name", "target", "number"), in_turn(CASES), ids=str)
def test_against_pytorch(name: str, target: str, number: int) -> None:
    check_all(CASES[name], target, number=number)


@pytest.mark.parametrize(("target", "batch"), [("avx512", 17), ("avx2", 3)])
def test_weights_of_arrays_beyond_the_caches(target: str, batch: int) -> None:
    """Rows of the images pass by once for all weights; of many images, parts add up for themselves."""
    check_all(transposed((8, 40, 33), num_filters=16, kernel=2, stride=2), target, batch)


def test_groups_in_a_net() -> None:
    """A separable convolution between layers that are tuned, in blocks of channels."""

    def declare(net: Net, source: Any) -> Any:
        first = ConvLayer(net, source, num_filters=32, kernel=1, pad=0)
        depthwise = ReLULayer(net, ConvLayer(net, first, num_filters=32, groups=32))
        return ConvLayer(net, depthwise, num_filters=16, kernel=1, pad=0)

    net = Net(2, seed=0)
    data = MemoryDataLayer(net, (3, 8, 8))
    top = declare(net, data)
    net.compile(threads=1)
    net.set_batch(generated := torch.randn(2, 3, 8, 8).numpy())
    net.forward()
    first, grouped_conv, last = (layer for layer in net.ensembles if "conv" in layer.kind)
    x = torch.tensor(generated)
    for layer, groups, pad in ((first, 1, 0), (grouped_conv, 32, 1), (last, 1, 0)):
        x = F.conv2d(x, torch.tensor(layer.get_weights()), torch.tensor(layer.get_bias()[:, 0]), 1, pad, 1, groups)
        x = torch.relu(x) if layer is grouped_conv else x
    torch.testing.assert_close(torch.tensor(top.get_value()), x, rtol=1e-4, atol=1e-4)


def image(net: Net) -> Any:
    return MemoryDataLayer(net, (4, 6, 6))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda net: ConvLayer(net, image(net), 6, groups=3), "4 channels and 6 filters cannot be divided into 3"),
        (lambda net: ConvLayer(net, image(net), 6, groups=4), "4 channels and 6 filters cannot be divided into 4"),
        (lambda net: ConvLayer(net, image(net), 6, groups=0), "groups must be a positive integer, not 0"),
        (lambda net: ConvLayer(net, image(net), groups=2), "num_filters must be a positive integer, not 0"),
        (lambda net: TransposedConvLayer(net, image(net)), "num_filters must be a positive integer, not 0"),
        (
            lambda net: TransposedConvLayer(net, image(net), 3, stride=2, output_padding=2),
            "output_padding 2 in y must be less than the stride 2 or the dilation 1",
        ),
        (lambda net: TransposedConvLayer(net, image(net), 3, kernel=1, pad=3), "leaves nothing of the result: (0, 0)"),
        (lambda net: TransposedConvLayer(net, image(net), 3, stride=0), "stride must be an integer of at least 1"),
    ],
)
def test_arguments_that_do_not_fit(make: Callable[[Net], Any], message: str) -> None:
    net = Net(2)
    with pytest.raises(DeclarationError) as caught:
        make(net)
    assert message in str(caught.value) and "test_convolution_kinds.py" in str(caught.value)
