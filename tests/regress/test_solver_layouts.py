"""SGD walked a parameter and its gradient as flat memory although only one of them was blocked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from latte import ConvLayer, FullyConnectedLayer, MemoryDataLayer, Net, SoftmaxLossLayer
from latte.solver import SGD, Adam, Solver

EMPTY = "def forward(s, target):\n    pass\n"


def sgd(net: Net) -> Solver:
    return SGD(net, 0.1, momentum=0.9, weight_decay=0.01)


def losses(folder: Path, tiled: tuple[str, ...], make: Callable[[Net], Solver] = sgd) -> list[float]:
    """Of three full batches and a smaller one, with buffers of the convolution blocked by 4."""
    net = Net(3, seed=0)
    data, labels = MemoryDataLayer(net, (2, 3, 3)), MemoryDataLayer(net, (1,))
    conv = ConvLayer(net, data, 6)
    SoftmaxLossLayer(net, FullyConnectedLayer(net, conv, 4), labels)
    lines = ["def forward(s, target):", *(f"    s.tile({buffer!r}, 0, 4)" for buffer in tiled), "    pass"]
    recipe = folder / f"conv_{'_'.join(tiled)}.py"
    recipe.write_text("\n".join(lines))
    empty = folder / "empty.py"
    empty.write_text(EMPTY)
    net.use_recipe("conv", recipe)
    net.use_recipe("fully_connected", empty)
    net.compile(threads=1, target="portable")
    solver = make(net)
    generator = np.random.default_rng(0)
    images, numbers = generator.normal(size=(3, 2, 3, 3)), [0, 3, 1]
    found = []
    for count in (3, 3, 3, 2, 3):
        net.set_batch(images[:count], numbers[:count])
        net.forward()
        net.clear_grad()
        net.backward()
        solver.step()
        found.append(net.loss)
    return found


def test_blocked_parameters_train_alike(tmp_path: Path) -> None:
    # Blocking moves elements in memory; sums keep their order.
    expected = losses(tmp_path, ())
    for tiled in (("value", "weights", "bias"), ("grad_weights",), ("weights", "grad_weights")):
        np.testing.assert_allclose(losses(tmp_path, tiled), expected, rtol=1e-6, err_msg=str(tiled))


def test_blocked_gradients_are_clipped_alike(tmp_path: Path) -> None:
    tilings = ((), ("grad_weights",), ("weights", "grad_weights"))
    expected, *found = (losses(tmp_path, each, lambda net: Adam(net, 0.01, clip_norm=0.5)) for each in tilings)
    np.testing.assert_allclose(found, [expected] * 2, rtol=1e-6)
