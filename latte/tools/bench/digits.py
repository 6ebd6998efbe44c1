"""The net of the first example: conv – batch norm – ReLU – max pool, twice; fully connected; softmax loss."""

from __future__ import annotations

import numpy as np

from latte import (
    AccuracyLayer,
    BatchNormLayer,
    ConvLayer,
    FullyConnectedLayer,
    MaxPoolingLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    SoftmaxLossLayer,
)

SHAPE, CLASSES, FILTERS = (1, 8, 8), 10, (32, 64)


def digits_net(
    batch_size: int, *, seed: int = 1, shape: tuple[int, int, int] = SHAPE, filters: tuple[int, ...] = FILTERS
) -> Net:
    """The net, declared and not compiled."""
    net = Net(batch_size, seed=seed)
    images, labels = MemoryDataLayer(net, shape), MemoryDataLayer(net, (1,))
    layer = images
    for count in filters:
        layer = ConvLayer(net, layer, num_filters=count, kernel=3, pad=1)
        layer = BatchNormLayer(net, layer)
        layer = ReLULayer(net, layer)
        layer = MaxPoolingLayer(net, layer)
    scores = FullyConnectedLayer(net, layer, CLASSES)
    SoftmaxLossLayer(net, scores, labels)
    AccuracyLayer(net, scores, labels)
    return net


def random_batch(batch_size: int, shape: tuple[int, int, int] = SHAPE, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images in [0, 1) and labels."""
    generator = np.random.default_rng(seed)
    return generator.random((batch_size, *shape), np.float32), generator.integers(0, CLASSES, batch_size)
