"""Gradients of weights for each channel, where the loop over channels is inside of those over pixels."""

from __future__ import annotations

import numpy as np
import pytest

from latte import Ensemble, MemoryDataLayer, Net, Param
from latte.neuron import ones, sqrt
from tests.nets.references import steps

EPSILON = 1e-5


class PixelNorm(Ensemble):
    """Root mean square of a pixel's channels."""

    g = Param("c", init=ones)

    def forward(self, inputs, value, g):  # type: ignore[no-untyped-def]
        N, C, H, W = inputs.shape
        for n in range(N):
            for y in range(H):
                for x in range(W):
                    q = 0.0
                    for c in range(C):
                        q += inputs[n, c, y, x] * inputs[n, c, y, x]
                    r = 1.0 / sqrt(q / C + 1e-5)
                    for c in range(C):
                        value[n, c, y, x] = inputs[n, c, y, x] * r * g[c]


class Shared(Ensemble):
    """A weight for each feature, loops over positions outside, other names; no local in between."""

    scale = Param("f", init=ones)

    def forward(self, inputs, value, scale):  # type: ignore[no-untyped-def]
        B, F, P = inputs.shape
        for position in range(P):
            for b in range(B):
                for f in range(F):
                    value[b, f, position] = inputs[b, f, position] * scale[f]


def declared(kind: type[Ensemble], items: int, shape: tuple[int, ...]) -> tuple[Net, Ensemble, Ensemble]:
    net = Net(items, seed=1)
    net.force_backward = True
    dims = ("c", "y", "x") if kind is PixelNorm else ("f", "p")
    data, layer = MemoryDataLayer(net, shape), net.add_ensemble(kind(shape=shape, dims=dims))
    net.add_one_to_one_connections(data, layer)
    return net, data, layer


def update_commands(net: Net, layer: Ensemble) -> list[str]:
    outcomes = net.executable.plan.outcomes[layer.name]
    return [each.command.text for each in outcomes if each.command.phase == "update"]


@pytest.mark.parametrize(
    ("kind", "items", "shape"),
    [
        (PixelNorm, 3, (17, 9, 11)),
        (PixelNorm, 2, (64, 8, 8)),
        (PixelNorm, 1, (1, 3, 5)),
        (Shared, 3, (33, 47)),
        (Shared, 2, (16, 130)),
        (Shared, 1, (5, 1)),
    ],
)
def test_gradients(target: str, kind: type[Ensemble], items: int, shape: tuple[int, ...]) -> None:
    net, _, layer = declared(kind, items, shape)
    net.compile(target=target)
    for x, grad in steps(net, layer, shape):
        wide = x.astype(np.float64)
        r = 1 / np.sqrt((wide**2).mean(1, keepdims=True) + EPSILON) if kind is PixelNorm else 1.0
        terms = grad * wide * r
        axes = tuple(axis for axis in range(terms.ndim) if axis != 1)
        name = "grad_g" if kind is PixelNorm else "grad_scale"
        error = np.abs(getattr(layer, f"get_{name}")().ravel() - terms.sum(axes))
        assert (error <= 1e-5 * np.abs(terms).sum(axes) + 1e-6).all()


@pytest.mark.parametrize(("kind", "shape"), [(PixelNorm, (64, 28, 28)), (Shared, (64, 800))])
def test_lanes_run_along_the_rows(kind: type[Ensemble], shape: tuple[int, ...]) -> None:
    net, _, layer = declared(kind, 4, shape)
    net.compile(target="avx2")
    along = "yx" if kind is PixelNorm else "position"
    assert any(text.startswith(f"vectorize('update', '{along}'") for text in update_commands(net, layer))
    assert any(text.startswith("parallelize('update', ") for text in update_commands(net, layer))
