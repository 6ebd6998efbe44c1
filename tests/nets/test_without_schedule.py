"""LATTE_SCHEDULE=0: nets run as they are lowered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from latte import ConvLayer, FullyConnectedLayer, MemoryDataLayer, Net, ReLULayer, SoftmaxLossLayer
from latte.errors import LatteError
from latte.solver import SGD


def trained(folder: Path) -> tuple[Net, list[float]]:
    """A net with a recipe of its own, commands on a layer, and a chain; and its losses, the last of a smaller batch."""
    (folder / "mine.py").write_text("def forward(s, target):\n    s.tile('value', 0, 4)\n")
    net = Net(4, seed=1)
    data, label = MemoryDataLayer(net, (3, 6, 7)), MemoryDataLayer(net, (1,))
    hidden = ReLULayer(net, ConvLayer(net, data, num_filters=5))
    other = ConvLayer(net, hidden, num_filters=8)
    scores = FullyConnectedLayer(net, other, 3)
    scores.parallelize("forward", "n")
    SoftmaxLossLayer(net, scores, label)
    net.use_recipe(other, folder / "mine.py")
    net.compile(threads=2)
    generator = np.random.default_rng(0)
    given = generator.standard_normal((10, 3, 6, 7)), generator.integers(0, 3, 10)
    return net, net.fit(*given, solver=SGD(net, 0.05), epochs=2, shuffle=False, progress=False).losses


def test_the_same_losses_without_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, expected = trained(tmp_path)
    monkeypatch.setenv("LATTE_SCHEDULE", "0")
    net, losses = trained(tmp_path)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert {step.unit.name for step in net.executable.compiled} == {e.name for e in net.ensembles if e.kind != "data"}
    assert not any(net.executable.plan.outcomes.values())
    assert not any(buffer.layout.blocks for buffer in net.executable.buffers.values())
    assert "no recipe: as the automatic passes left it" in str(net.explain("conv2"))


def test_another_value_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATTE_SCHEDULE", "fast")
    with pytest.raises(LatteError, match=r"LATTE_SCHEDULE='fast' is not accepted\n.*0 \| off"):
        trained(tmp_path)
