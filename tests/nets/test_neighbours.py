"""Gradients that several statements add to neighbours of one element are sums over neighbours."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from latte import Ensemble, MemoryDataLayer, Net, Neuron, Param
from latte.neuron import constant, tanh
from tests.nets.references import steps


class Cross(Neuron):
    """Five points."""

    centre = Param(shape=(1,), init=constant(0.5))
    arm = Param(shape=(1,), init=constant(0.125))

    def forward(self) -> None:
        self.value = self.centre[0] * self.inputs[0, 1, 1] + self.arm[0] * (
            self.inputs[0, 0, 1] + self.inputs[0, 2, 1] + self.inputs[0, 1, 0] + self.inputs[0, 1, 2]
        )


class Diagonal(Neuron):
    """Two corners and the centre, beyond a function."""

    def forward(self) -> None:
        t = tanh(self.inputs[0, 1, 1])
        self.value = self.inputs[0, 0, 0] * 2.0 - self.inputs[0, 2, 2] + t


class Difference(Neuron):
    """The second difference along rows."""

    def forward(self) -> None:
        self.value = self.inputs[0, 1, 0] - 2.0 * self.inputs[0, 1, 1] + self.inputs[0, 1, 2]


class Product(Neuron):
    """Neighbours multiplied: the gradient of each has the other one."""

    def forward(self) -> None:
        self.value = self.inputs[0, 1, 0] * self.inputs[0, 1, 2]


def declared(kind: type[Neuron], items: int, shape: tuple[int, ...]) -> tuple[Net, Ensemble, Ensemble]:
    net = Net(items, seed=1)
    net.force_backward = True
    data, layer = MemoryDataLayer(net, shape), net.add_ensemble(Ensemble(kind, shape, dims=("p", "row", "col")))

    def around(p, row, col):  # type: ignore[no-untyped-def]
        return range(p, p + 1), range(row, row + 3), range(col, col + 3)

    net.add_connections(data, layer, around, padding=(0, 1, 1))
    return net, data, layer


def shifted(grad: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """What elements get of those that read them so many rows and columns further."""
    result = np.zeros_like(grad)
    height, width = grad.shape[2:]
    to = [slice(max(0, -n), min(extent, extent - n)) for n, extent in ((rows, height), (columns, width))]
    of = [slice(max(0, n), min(extent, extent + n)) for n, extent in ((rows, height), (columns, width))]
    result[:, :, to[0], to[1]] = grad[:, :, of[0], of[1]]
    return result


def cross(x: np.ndarray, g: np.ndarray) -> np.ndarray:
    return 0.5 * g + 0.125 * sum(shifted(g, *at) for at in ((1, 0), (-1, 0), (0, 1), (0, -1)))


def diagonal(x: np.ndarray, g: np.ndarray) -> np.ndarray:
    return 2.0 * shifted(g, 1, 1) - shifted(g, -1, -1) + g * (1 - np.tanh(x) ** 2)


def difference(x: np.ndarray, g: np.ndarray) -> np.ndarray:
    return shifted(g, 0, 1) - 2.0 * g + shifted(g, 0, -1)


def product(x: np.ndarray, g: np.ndarray) -> np.ndarray:
    left, right = shifted(x, 0, -1), shifted(x, 0, 1)
    return shifted(g * right, 0, 1) + shifted(g * left, 0, -1)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(Cross, cross), (Diagonal, diagonal), (Difference, difference), (Product, product)],
    ids=lambda value: value.__name__,
)
@pytest.mark.parametrize(("items", "shape"), [(3, (2, 33, 47)), (2, (1, 2, 17)), (1, (2, 1, 5))])
def test_gradients(
    target: str,
    kind: type[Neuron],
    expected: Callable[[np.ndarray, np.ndarray], np.ndarray],
    items: int,
    shape: tuple[int, ...],
) -> None:
    net, data, layer = declared(kind, items, shape)
    net.compile(target=target)
    for x, g in steps(net, layer, shape):
        np.testing.assert_allclose(data.get_grad(), expected(x.astype(np.float64), g), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [Cross, Diagonal, Difference, Product])
def test_an_element_is_stored_once(kind: type[Neuron]) -> None:
    net, _, layer = declared(kind, 4, (2, 64, 64))
    net.compile()
    commands = [o.command for o in net.executable.plan.outcomes[layer.name] if o.command.phase == "backward"]
    assert any(command.name == "reindex" for command in commands)
    (backward,) = (item for item in net.executable.compiled if (item.unit.name, item.phase) == (layer.name, "backward"))
    (text,) = (nest.body_text for nest in backward.stages[-2].program.nests)
    assert text.count("] = ") + text.count("] += ") - text.count("_t[") <= 3, text
