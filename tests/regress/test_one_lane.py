"""Lanes of a loop of one iteration may share what several cannot: their code ended with Unsupported where copies of a
local had become an array."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.errors import LatteError
from swirl.target.targets import TARGETS


class Products(Ensemble):
    kind = "products"

    def forward(self, inputs, value):
        N, T = inputs.shape
        for n in range(N):
            b = 1.0
            for t in range(T):
                b = b * inputs[n, t]
                value[n, t] = b


def compiled(steps: int, target: str, folder: Path) -> tuple[Net, Ensemble, Ensemble]:
    path = folder / "products.py"
    path.write_text(
        "def forward(s, target):\n    s.unroll_and_jam('forward', 'n', 2)\n    s.vectorize('forward', 't', 8)\n"
    )
    net = Net(2, seed=0)
    data = MemoryDataLayer(net, (steps,))
    layer = net.add_ensemble(Products(shape=(steps,), dims=("t",)))
    net.add_connections(data, layer)
    net.use_recipe("products", path)
    net.compile(target=target, threads=1)
    return net, data, layer


@pytest.mark.parametrize("target", TARGETS)
def test_a_recurrence_of_one_step(target: str, tmp_path: Path) -> None:
    net, data, layer = compiled(1, target, tmp_path)
    data.set_value([[2.0], [3.0]])
    net.forward()
    np.testing.assert_array_equal(layer.get_value(), [[2.0], [3.0]])


def test_of_two_steps_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LatteError, match=r"products\.py:3: vectorize(.|\n)*a dependence would be reversed"):
        compiled(2, "portable", tmp_path)
