"""Residual nets of He et al. (2016) for images of any size, as torchvision defines them.

    python examples/nets/resnet.py 50 16        # what a ResNet-50 for 16 images has: layers, parameters, operations

A block of two 3 × 3 convolutions (18, 34 layers), or a bottleneck of 1 × 1, 3 × 3 and 1 × 1 whose stride is at the
3 × 3 convolution (50, 101, 152 layers); any other numbers of blocks by ``blocks=``. Layers have torchvision's names,
with ``_`` for ``.``: ``net.load_state_dict(module.state_dict(), torchvision_names(net))`` takes its weights.

Source: He et al., *Deep Residual Learning for Image Recognition*, CVPR 2016, table 1.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from latte import *
from latte.ensemble import Ensemble

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Depth → blocks of each stage."""
WIDTHS = (64, 128, 256, 512)
"""Channels of the stages; a bottleneck ends with four times as many."""
FIELDS = {"weights": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
"""Field of a layer → what torchvision calls it."""


def resnet(
    depth: int = 50,
    batch_size: int = 16,
    *,
    size: int = 224,
    classes: int = 1000,
    blocks: Sequence[int] | None = None,
    bottleneck: bool | None = None,
    **options: object,
) -> Net:
    """A residual net with a loss and an accuracy, not compiled yet; its data layers are ``image`` and ``label``.

    Args:
        depth: a key of ``BLOCKS``; not used where ``blocks`` are given.
        batch_size: images in a batch.
        size: height and width of the images, of three channels.
        classes: how many.
        blocks: of each stage, one stage to four; by default those of ``depth``.
        bottleneck: which kind of block; by default bottlenecks from 50 layers on.
        options: of ``Net``: ``seed=0``, ``keep="all"``.
    """
    bottleneck = depth >= 50 if bottleneck is None else bottleneck
    net = Net(batch_size, **options)
    image = MemoryDataLayer(net, (3, size, size), name="image")
    label = MemoryDataLayer(net, (1,), name="label")
    layer = convolution(net, image, 64, "conv1", "bn1", kernel=7, stride=2, pad=3)
    layer = MaxPoolingLayer(net, ReLULayer(net, layer), 3, 2, 1, ceil_mode=False, clamp=False)
    for stage, count in enumerate(blocks or BLOCKS[depth]):
        for number in range(count):
            stride = 2 if stage > 0 and number == 0 else 1
            layer = block(net, layer, WIDTHS[stage], f"layer{stage + 1}_{number}", stride, bottleneck)
    scores = FullyConnectedLayer(net, GlobalMeanPoolingLayer(net, layer), classes, name="fc")
    SoftmaxLossLayer(net, scores, label)
    AccuracyLayer(net, scores, label)
    return net


def block(net: Net, source: Ensemble, width: int, name: str, stride: int, bottleneck: bool) -> Ensemble:
    """``relu(source + branch(source))``; a 1 × 1 convolution and a norm where the shape changes."""
    windows = (1, 3, 1) if bottleneck else (3, 3)
    out = 4 * width if bottleneck else width
    branch = source
    for place, kernel in enumerate(windows, start=1):
        last = place == len(windows)
        step = stride if place == (2 if bottleneck else 1) else 1
        filters = out if last else width
        branch = convolution(
            net,
            branch,
            filters,
            f"{name}_conv{place}",
            f"{name}_bn{place}",
            kernel=kernel,
            stride=step,
            pad=kernel // 2,
        )
        branch = branch if last else ReLULayer(net, branch)
    shortcut = source
    if stride != 1 or source.shape[0] != out:
        shortcut = convolution(
            net, source, out, f"{name}_downsample_0", f"{name}_downsample_1", kernel=1, stride=stride, pad=0
        )
    return ReLULayer(net, AddLayer(net, [branch, shortcut]))


def convolution(net: Net, source: Ensemble, filters: int, name: str, norm: str, **window: int) -> Ensemble:
    """A convolution without bias, and a batch norm."""
    return BatchNormLayer(net, ConvLayerNoBias(net, source, filters, name=name, **window), name=norm)


def torchvision_names(net: Net) -> dict[str, str]:
    """Our names of parameters and running statistics → torchvision's, for ``load_state_dict`` and ``state_dict``."""
    names = {}
    for layer in net.ensembles:
        for field, spec in layer.fields().items():
            if spec.role in ("param", "state"):
                names[f"{layer.name}.{field}"] = f"{layer.name.replace('_', '.')}.{FIELDS.get(field, field)}"
    return names


def net() -> Net:
    """For the command line: ``latte show examples/nets/resnet.py --layer layer1_0_conv1``."""
    return resnet(18, 4, size=64)


if __name__ == "__main__":
    depth, batch_size = (int(text) for text in (*sys.argv[1:], "50", "16")[:2])
    print(resnet(depth, batch_size).summary())
