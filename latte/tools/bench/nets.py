"""Layers of usual sizes as they are inside of a net: with gradients, and blocked where the layers before them are."""

from __future__ import annotations

from pathlib import Path

from latte import BatchNormLayer, ConvLayerNoBias, MemoryDataLayer, Net, ReLULayer, SiLULayer

Declared = tuple[Net, tuple[str, ...]]
"""A net that is not compiled, and the layers that it is about."""

BATCH_NORM_IN_BLOCKS = Path(__file__).parent / "batch_norm_in_blocks.py"
CONV_IN_BLOCKS = Path(__file__).parent / "conv_in_blocks.py"
CHAIN_IN_BLOCKS = Path(__file__).parent / "conv_batch_norm_relu_in_blocks.py"


def batch_norm(batch: int, channels: int, height: int, blocks: bool) -> Declared:
    """Batch norm of square images, plain or in blocks of channels, a vector each."""
    net = Net(batch, seed=1)
    net.force_backward = True
    layer = BatchNormLayer(net, MemoryDataLayer(net, (channels, height, height)))
    if blocks:
        net.use_recipe(layer, BATCH_NORM_IN_BLOCKS)
    return net, (layer.name,)


def convolution(batch: int, channels: int, filters: int, height: int, kernel: int) -> Declared:
    """A convolution of square images, in blocks of a vector of channels, by a square kernel that keeps their extent."""
    net = Net(batch, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (channels, height, height))
    layer = ConvLayerNoBias(net, data, num_filters=filters, kernel=kernel, pad=kernel // 2)
    net.use_recipe(layer, CONV_IN_BLOCKS)
    return net, (layer.name,)


def chain(batch: int, channels: int, filters: int, height: int, kernel: int) -> Declared:
    """Such a convolution, batch norm and a ReLU."""
    net = Net(batch, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (channels, height, height))
    conv = ConvLayerNoBias(net, data, num_filters=filters, kernel=kernel, pad=kernel // 2)
    norm = BatchNormLayer(net, conv)
    layers = [conv, norm, ReLULayer(net, norm)]
    net.use_recipe(layers, CHAIN_IN_BLOCKS)
    return net, tuple(layer.name for layer in layers)


def silu(batch: int, channels: int, height: int) -> Declared:
    """``x · sigmoid(x)`` of square images."""
    net = Net(batch, seed=1)
    net.force_backward = True
    layer = SiLULayer(net, MemoryDataLayer(net, (channels, height, height)))
    return net, (layer.name,)
