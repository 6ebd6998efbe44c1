"""GoogLeNet (Szegedy et al., 2015) as torchvision defines it: with batch norm, and 3 × 3 convolutions for 5 × 5.

    python examples/nets/googlenet.py 16        # what the net for 16 images has: layers, parameters, operations

Layers have torchvision's names, with ``_`` for ``.``:
``net.load_state_dict(module.state_dict(), torchvision_names(net))`` takes its weights (of a module with
``aux_logits=False`` where ``aux=False``).

Source: Szegedy et al., *Going Deeper with Convolutions*, CVPR 2015, table 1.
"""

from __future__ import annotations

import sys

from resnet import torchvision_names  # in this folder

from latte import *
from latte import Neuron
from latte.ensemble import Ensemble
from latte.neuron import eachindex

__all__ = ["googlenet", "torchvision_names"]

INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""Module → filters: 1 × 1; before and in the 3 × 3; before and in the second 3 × 3; after the pooling."""
POOLED = {"3b": 3, "4e": 2}
"""Module that a pooling layer follows → its kernel."""
AUXILIARY = {"4a": "aux1", "4d": "aux2"}
"""Module whose value has a loss of its own → names of the layers for it."""


def googlenet(
    batch_size: int = 16,
    *,
    size: int = 224,
    classes: int = 1000,
    aux: bool = False,
    dropout: float = 0.2,
    dropout_aux: float = 0.7,
    **options: object,
) -> Net:
    """The net with a loss and an accuracy, not compiled yet; its data layers are ``image`` and ``label``.

    Args:
        batch_size: images in a batch.
        size: height and width of the images, of three channels.
        classes: how many.
        aux: whether two inner modules have losses of their own, of weight 0.3.
        dropout, dropout_aux: share of elements that are 0 before the last layer, and before the inner modules'.
        options: of ``Net``: ``seed=0``, ``keep="all"``.
    """
    net = Net(batch_size, **options)
    image = MemoryDataLayer(net, (3, size, size), name="image")
    label = MemoryDataLayer(net, (1,), name="label")
    layer = pooled(net, convolution(net, image, 64, "conv1", kernel=7, stride=2, pad=3))
    layer = convolution(net, convolution(net, layer, 64, "conv2"), 192, "conv3", kernel=3, pad=1)
    layer = pooled(net, layer)
    for name, filters in INCEPTIONS.items():
        layer = inception(net, layer, filters, f"inception{name}")
        if aux and name in AUXILIARY:
            loss = SoftmaxLossLayer(net, auxiliary(net, layer, classes, dropout_aux, AUXILIARY[name]), label)
            loss.loss_weight = 0.3
        if name in POOLED:
            layer = pooled(net, layer, POOLED[name])
    scores = DropoutLayer(net, FlattenLayer(net, GlobalMeanPoolingLayer(net, layer)), dropout)
    scores = FullyConnectedLayer(net, scores, classes, name="fc")
    SoftmaxLossLayer(net, scores, label)
    AccuracyLayer(net, scores, label)
    return net


def inception(net: Net, source: Ensemble, filters: tuple[int, ...], name: str) -> Ensemble:
    """Four branches side by side."""
    one, before_three, three, before_five, five, after_pooling = filters
    branches = [convolution(net, source, one, f"{name}_branch1")]
    inner = convolution(net, source, before_three, f"{name}_branch2_0")
    branches.append(convolution(net, inner, three, f"{name}_branch2_1", kernel=3, pad=1))
    inner = convolution(net, source, before_five, f"{name}_branch3_0")
    branches.append(convolution(net, inner, five, f"{name}_branch3_1", kernel=3, pad=1))
    inner = MaxPoolingLayer(net, source, 3, 1, 1)
    branches.append(convolution(net, inner, after_pooling, f"{name}_branch4_1"))
    return ConcatLayer(net, branches)


def auxiliary(net: Net, source: Ensemble, classes: int, dropout: float, name: str) -> Ensemble:
    """The classes' scores of an inner module."""
    layer = convolution(net, adaptive_mean(net, source, 4), 128, f"{name}_conv")
    layer = ReLULayer(net, FullyConnectedLayer(net, layer, 1024, name=f"{name}_fc1"))
    return FullyConnectedLayer(net, DropoutLayer(net, layer, dropout), classes, name=f"{name}_fc2")


class MeanOfWindow(Neuron):
    """The mean of a window, whose size depends on its place."""

    def forward(self):
        self.value = 0.0
        count = 0.0
        for i in eachindex(self.inputs):
            self.value += self.inputs[i]
            count += 1.0
        self.value = self.value / count


def adaptive_mean(net: Net, source: Ensemble, count: int) -> Ensemble:
    """``count`` × ``count`` means of windows that cover the source: PyTorch's ``AdaptiveAvgPool2d``."""
    channels, height, width = source.shape
    ensemble = net.add_ensemble(Ensemble(MeanOfWindow, (channels, count, count), ("c", "y", "x"), kind="adaptive_mean"))

    def mapping(c, y, x):
        rows = range(y * height // count, ((y + 1) * height + count - 1) // count)
        columns = range(x * width // count, ((x + 1) * width + count - 1) // count)
        return range(c, c + 1), rows, columns

    net.add_connections(source, ensemble, mapping)
    return ensemble


def convolution(
    net: Net, source: Ensemble, filters: int, name: str, kernel: int = 1, stride: int = 1, pad: int = 0
) -> Ensemble:
    """A convolution without bias, a batch norm, a ReLU."""
    layer = ConvLayerNoBias(net, source, filters, kernel, stride, pad, name=f"{name}_conv")
    return ReLULayer(net, BatchNormLayer(net, layer, epsilon=0.001, name=f"{name}_bn"))


def pooled(net: Net, source: Ensemble, kernel: int = 3) -> Ensemble:
    """The largest of windows at distance 2; the size is rounded up."""
    return MaxPoolingLayer(net, source, kernel, 2, ceil_mode=True, clamp=False)


def net() -> Net:
    """For the command line: ``latte show examples/nets/googlenet.py --layer inception3a_branch1_conv``."""
    return googlenet(4, size=64)


if __name__ == "__main__":
    (batch_size,) = (int(text) for text in (*sys.argv[1:], "16")[:1])
    print(googlenet(batch_size).summary())
