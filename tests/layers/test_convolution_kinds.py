"""Convolutions with groups, and transposed ones: large, in nets, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from latte import ConvLayer, MemoryDataLayer, Net, ReLULayer, TransposedConvLayer
from latte.errors import DeclarationError
from latte.tools.library import LIBRARY
from latte.tools.library.entries import Case, one_source
from tests.layers.against_torch import check_all, of_library

torch = pytest.importorskip("torch")
F = torch.nn.functional


@pytest.mark.parametrize(("target", "batch"), [("avx512", 17), ("avx2", 3)])
def test_weights_of_arrays_beyond_the_caches(target: str, batch: int) -> None:
    """Rows of the images pass by once for all weights; of many images, parts add up for themselves."""
    case = Case(one_source((batch, 8, 40, 33)), {"num_filters": 16, "kernel": 2, "stride": 2})
    check_all(of_library(LIBRARY["TransposedConvLayer"], case), target, batch)


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
