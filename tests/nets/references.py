"""The nets that these tests train, and the same nets in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

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
from latte.ensemble import Ensemble
from swirl.config import settings
from swirl.target.machine import resolve_target

SHAPE, FILTERS, CLASSES = (1, 8, 8), (5, 7), 10


class DigitsNet:
    """conv – batch norm – ReLU – max pool, twice, then fully connected and softmax loss, as in the first
    example, but with few and odd numbers of channels.

    Args:
        batch: items.
        seed: of the net.
        shape: of the images.
        filters: of the convolutions.
        options: of ``compile``.
    """

    def __init__(
        self,
        batch: int,
        seed: int = 1,
        *,
        shape: tuple[int, int, int] = SHAPE,
        filters: Sequence[int] = FILTERS,
        **options: Any,
    ):
        self.net = Net(batch, seed=seed)
        self.images, self.labels = MemoryDataLayer(self.net, shape), MemoryDataLayer(self.net, (1,))
        self.convolutions: list[Ensemble] = []
        self.norms: list[Ensemble] = []
        below = self.images
        for count in filters:
            self.convolutions.append(ConvLayer(self.net, below, count))
            self.norms.append(BatchNormLayer(self.net, self.convolutions[-1]))
            below = MaxPoolingLayer(self.net, ReLULayer(self.net, self.norms[-1]))
        self.scores = FullyConnectedLayer(self.net, below, CLASSES)
        SoftmaxLossLayer(self.net, self.scores, self.labels)
        AccuracyLayer(self.net, self.scores, self.labels)
        self.net.compile(**{"threads": 1, **options})

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """Name (``conv1.weights``) → values, running statistics included."""
        executable = self.net.executable
        roles = ("param", "state")
        return {name: executable.read(name) for name, b in executable.buffers.items() if b.role in roles}

    def step(self, images: np.ndarray, labels: np.ndarray, solver: Any) -> float:
        """One training step, as a user writes it; its loss."""
        self.net.set_batch(images, labels)
        self.net.forward()
        self.net.clear_grad()
        self.net.backward()
        solver.step()
        return self.net.loss


_NETS: dict[tuple[Any, ...], tuple[DigitsNet, dict[str, np.ndarray]]] = {}


def reused(batch: int, seed: int = 1, *, copy: int = 0, **options: Any) -> DigitsNet:
    """A :class:`DigitsNet` of one convolution with its initial parameters; compiled once for all tests, and once more
    for those whose nets have no schedule.

    Args:
        batch: items.
        seed: of the net.
        copy: several nets at once need several numbers.
        options: of the net.
    """
    target = resolve_target(options.get("target")).name
    key = (batch, seed, copy, settings().schedule, *sorted({**options, "target": target}.items()))
    if key not in _NETS:
        made = DigitsNet(batch, seed, **{"filters": (3,), **options})
        _NETS[key] = made, made.parameters
    net, initial = _NETS[key]
    for name, values in initial.items():
        net.net.executable.write(name, values)
    net.net.clear_grad()
    return net


def torch_module(torch: Any, parameters: dict[str, np.ndarray]) -> Any:
    """The same net in PyTorch, in float64, with the same parameters."""
    nn = torch.nn
    layers: list[Any] = []
    copies: dict[Any, np.ndarray] = {}
    for number in range(1, 1 + sum(name.startswith("batch_norm") and "gamma" in name for name in parameters)):
        weights = parameters[f"conv{number}.weights"]
        convolution = nn.Conv2d(weights.shape[1], weights.shape[0], 3, padding=1)
        norm = nn.BatchNorm2d(weights.shape[0])
        copies |= {
            convolution.weight: weights,
            convolution.bias: parameters[f"conv{number}.bias"][:, 0],
            norm.weight: parameters[f"batch_norm{number}.gamma"],
            norm.bias: parameters[f"batch_norm{number}.beta"],
        }
        layers += [convolution, norm, nn.ReLU(), nn.MaxPool2d(2)]
    weights = parameters["fully_connected1.weights"].reshape(CLASSES, -1)
    linear = nn.Linear(weights.shape[1], CLASSES)
    copies |= {linear.weight: weights, linear.bias: parameters["fully_connected1.bias"][:, 0]}
    with torch.no_grad():
        for parameter, values in copies.items():
            parameter.copy_(torch.tensor(values))
    return nn.Sequential(*layers, nn.Flatten(), linear).double()


def random_data(items: int, seed: int = 0, shape: tuple[int, ...] = SHAPE) -> tuple[np.ndarray, np.ndarray]:
    """Images with a bright spot that depends on the label, so that there is something to learn; labels."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, CLASSES, items)
    images = generator.normal(size=(items, *shape)).astype(np.float32)
    for image, label in zip(images, labels, strict=True):
        image[:, label // 5 * 4 : label // 5 * 4 + 3, label % 5 : label % 5 + 3] += 2.0
    return images, labels


def steps(net: Net, layer: Ensemble, shape: tuple[int, ...]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Random data of a net of one source and gradients of a layer of that shape, each after a step on them: of a whole
    batch, and of one item fewer."""
    random = np.random.default_rng(0)
    for count in (net.batch_size, max(1, net.batch_size - 1)):
        data, grad = (random.standard_normal((count, *shape)).astype(np.float32) for _ in range(2))
        net.set_batch(data)
        net.forward()
        net.clear_grad()
        layer.set_grad(grad)
        net.backward()
        yield data, grad
