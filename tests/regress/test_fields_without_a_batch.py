"""A field that items have in common has all its dimensions in recipes: the first one was taken for the batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from latte import MemoryDataLayer, Net
from latte.autodiff.differentiated import layer_programs
from latte.ensemble import Ensemble
from latte.neuron import Field, Param, exp, normal_fan_in

RECIPE = """\
def forward(s, target):
    assert s.shape("doubled") == (8, 5) and s.shape("items") == (8,)
    s.tile("doubled", 0, 4)
    s.tile("value", 0, 4)
"""


class Doubled(Ensemble):
    weights = Param("k", shape=(5,), init=normal_fan_in)
    doubled = Field("k", shape=(5,))
    items = Field("n", "k")

    def forward(self, inputs, value, weights, doubled, items):
        N, C = inputs.shape
        for k in range(8):
            for c in range(C):
                doubled[k, c] = 2.0 * weights[k, c]
        for n in range(N):
            for k in range(8):
                for c in range(C):
                    items[n, k] += doubled[k, c] * inputs[n, c]
                value[n, k] = items[n, k] + 1.0


def test_what_a_gradient_keeps_of_such_a_field_has_them_too() -> None:
    class Twice(Doubled):
        def forward(self, inputs, value, weights, doubled, items):
            N, C = inputs.shape
            for k in range(8):
                for c in range(C):
                    doubled[k, c] = exp(weights[k, c])
                for c in range(C):
                    doubled[k, c] = exp(doubled[k, c] * doubled[k, c])
            for n in range(N):
                for k in range(8):
                    for c in range(C):
                        value[n, k] += doubled[k, c] * inputs[n, c]
                    items[n, k] = 0.0

    net = Net(3, seed=1)
    net.force_backward = True
    layer = net.add_ensemble(Twice(shape=(8,), dims=("k",)))
    net.add_connections(MemoryDataLayer(net, (5,)), layer)
    net.compile(target="portable")
    made = {
        name: b
        for item in layer_programs(net.graph, 3)
        for p in item.programs.values()
        for name, b in p.buffers.items()
    }
    kept = [buffer for name, buffer in made.items() if name.startswith(("kept_", "doubled_before"))]
    assert kept and all(buffer.batch_dims == 0 for buffer in kept)


def test_dimensions_of_a_field_that_items_share(tmp_path: Path) -> None:
    recipe = tmp_path / "doubled.py"
    recipe.write_text(RECIPE)
    net = Net(3, seed=1)
    data = MemoryDataLayer(net, (5,))
    layer = net.add_ensemble(Doubled(shape=(8,), dims=("k",)))
    net.add_connections(data, layer)
    net.use_recipe(layer.name, recipe)
    net.compile(target="portable")
    given = np.random.default_rng(0).normal(size=(3, 5)).astype("f4")
    data.set_value(given)
    net.forward()
    np.testing.assert_allclose(layer.get_value(), given @ (2 * layer.get_weights().T) + 1, rtol=1e-5)
    (forward,) = (phase for phase in net.explain(layer).phases if phase.phase == "forward")
    blocks = {buffer.name: buffer.blocks for buffer in forward.buffers}
    assert blocks["doubled"] == ((0, 4),) and blocks["value"] == ((1, 4),)
