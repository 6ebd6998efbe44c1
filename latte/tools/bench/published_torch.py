"""The nets of ``examples/nets`` in PyTorch, module for module as torchvision defines them, with its names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class Block(nn.Module):
    """A block of a residual net: two 3 × 3 convolutions, or a bottleneck with its stride at the 3 × 3 convolution."""

    def __init__(self, channels: int, width: int, stride: int, bottleneck: bool):
        super().__init__()
        out = 4 * width if bottleneck else width
        extents = [(channels, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)]
        if not bottleneck:
            extents = [(channels, width, 3, stride), (width, width, 3, 1)]
        self.count = len(extents)
        for place, (before, after, kernel, step) in enumerate(extents, start=1):
            conv = nn.Conv2d(before, after, kernel, step, kernel // 2, bias=False)
            self.add_module(f"conv{place}", conv)
            self.add_module(f"bn{place}", nn.BatchNorm2d(after))
        changes = stride != 1 or channels != out
        conv = nn.Conv2d(channels, out, 1, stride, bias=False)
        self.downsample = nn.Sequential(conv, nn.BatchNorm2d(out)) if changes else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = x
        for place in range(1, self.count + 1):
            inner = getattr(self, f"bn{place}")(getattr(self, f"conv{place}")(inner))
            inner = inner if place == self.count else torch.relu_(inner)
        return torch.relu_(inner.add_(self.downsample(x)))


class ResNet(nn.Module):
    """A residual net of blocks of each stage."""

    def __init__(self, blocks: Sequence[int], bottleneck: bool, classes: int = 1000):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.stages = len(blocks)
        channels = 64
        for stage, (count, width) in enumerate(zip(blocks, (64, 128, 256, 512), strict=False)):
            layers = []
            for number in range(count):
                layers.append(Block(channels, width, 2 if stage > 0 and number == 0 else 1, bottleneck))
                channels = 4 * width if bottleneck else width
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(torch.relu_(self.bn1(self.conv1(x))))
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))


class Convolution(nn.Module):
    """A convolution, a batch norm, a ReLU."""

    def __init__(self, channels: int, filters: int, kernel: int = 1, stride: int = 1, pad: int = 0):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel, stride, pad, bias=False)
        self.bn = nn.BatchNorm2d(filters, eps=0.001)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu_(self.bn(self.conv(x)))


class Inception(nn.Module):
    """Four branches side by side."""

    def __init__(self, channels: int, filters: Sequence[int]):
        super().__init__()
        one, before_three, three, before_five, five, after_pooling = filters
        self.branch1 = Convolution(channels, one)
        self.branch2 = nn.Sequential(Convolution(channels, before_three), Convolution(before_three, three, 3, 1, 1))
        self.branch3 = nn.Sequential(Convolution(channels, before_five), Convolution(before_five, five, 3, 1, 1))
        pool = nn.MaxPool2d(3, 1, 1, ceil_mode=True)
        self.branch4 = nn.Sequential(pool, Convolution(channels, after_pooling))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class Auxiliary(nn.Module):
    """The classes' scores of an inner module."""

    def __init__(self, channels: int, classes: int):
        super().__init__()
        self.conv = Convolution(channels, 128)
        self.fc1, self.fc2 = nn.Linear(2048, 1024), nn.Linear(1024, classes)
        self.dropout = nn.Dropout(0.7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(nn.functional.adaptive_avg_pool2d(x, 4)).flatten(1)
        return self.fc2(self.dropout(torch.relu_(self.fc1(x))))


class GoogLeNet(nn.Module):
    """GoogLeNet; ``inceptions`` are those of ``examples/nets/googlenet.py``. With ``aux`` it returns three scores."""

    def __init__(self, inceptions: dict[str, Sequence[int]], aux: bool = False, classes: int = 1000):
        super().__init__()
        self.conv1, self.conv2 = Convolution(3, 64, 7, 2, 3), Convolution(64, 64)
        self.conv3 = Convolution(64, 192, 3, 1, 1)
        self.names = tuple(inceptions)
        channels = 192
        self.heads = {"4a": "aux1", "4d": "aux2"} if aux else {}
        for name, filters in inceptions.items():
            self.add_module(f"inception{name}", Inception(channels, filters))
            channels = filters[0] + filters[2] + filters[4] + filters[5]
            if name in self.heads:
                self.add_module(self.heads[name], Auxiliary(channels, classes))
        self.dropout, self.fc = nn.Dropout(0.2), nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        pool = nn.functional.max_pool2d
        x = self.conv3(self.conv2(pool(self.conv1(x), 3, 2, ceil_mode=True)))
        x = pool(x, 3, 2, ceil_mode=True)
        found = []
        for name in self.names:
            x = getattr(self, f"inception{name}")(x)
            if name in self.heads:
                found.append(getattr(self, self.heads[name])(x))
            if name in ("3b", "4e"):
                x = pool(x, 3 if name == "3b" else 2, 2, ceil_mode=True)
        scores = self.fc(self.dropout(x.mean((2, 3))))
        return (scores, *found) if found else scores
