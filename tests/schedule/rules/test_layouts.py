"""Blocks of arrays."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from latte import ConvLayer, MaxPoolingLayer, MemoryDataLayer, Net
from latte.tools.bench.own_layers import OWN
from swirl.target.targets import TARGETS
from tests.nets.test_default_chains import planned
from tests.schedule.rules.applied import applied_texts, convolution, results_of, scheduled

NOTHING = "def forward(s, target): ...\ndef backward(s, target): ...\ndef update(s, target): ...\n"
"""A recipe that leaves the nests as they are."""


def test_blocks_of_the_source_are_taken_over(tmp_path: Path) -> None:
    """The channels of the source are in blocks of a vector, the last one ragged. The gradients of its readers
    come to it one after the other."""
    (tmp_path / "nothing.py").write_text(NOTHING)
    results = []
    for recipe in (None, tmp_path / "nothing.py"):
        net = Net(2, seed=3)
        net.force_backward = True
        data = MemoryDataLayer(net, (3, 6, 7))
        conv = ConvLayer(net, data, num_filters=24)
        names = ("gelu", "prelu", "rms-norm", "depthwise", "softmax", "squeeze")
        layers = [OWN[name].declare(net, conv) for name in names]
        if recipe is not None:
            for layer in layers:
                net.use_recipe(layer, recipe)
        net.compile()
        results.append([found for layer in layers for found in results_of(net, data, layer)])
        buffers = net.executable.buffers
        source, *values = (buffers[f"{ensemble.name}.value"].layout.blocks for ensemble in (conv, *layers))
        assert source
        assert values == [source if recipe is None else ()] * len(layers)
    for default, plain in zip(*results, strict=True):
        np.testing.assert_allclose(default, plain, rtol=0, atol=1e-4 * max(1.0, float(np.abs(plain).max())))


@pytest.mark.parametrize(("extent", "blocks"), [(17, True), (31, True), (32, False)])
def test_results_are_in_blocks_beside_short_rows_that_borders_clip(extent: int, blocks: bool) -> None:
    _, _, _, outcomes = next(scheduled(*convolution(20, extent), "avx2"))
    assert ("tile('value', 0, 8, reorder=False)" in applied_texts(outcomes)) == blocks, outcomes


@pytest.mark.parametrize("stride", [1, 2])
def test_in_blocks_of_channels_windows_have_lanes_of_their_own(stride: int) -> None:
    """The saved places have the blocks of the source, too."""
    net = Net(2, seed=1)
    net.force_backward = True
    source = ConvLayer(net, MemoryDataLayer(net, (3, 9, 9)), num_filters=32, kernel=3, stride=1, pad=1)
    layer = MaxPoolingLayer(net, source, kernel=3, stride=stride, pad=1, ceil_mode=False, clamp=False)
    applied = applied_texts(planned(net, TARGETS["avx512"])[0].outcomes[layer.name])
    assert {f"tile('{name}', 0, 16, reorder=False)" for name in ("value", "grad", "mask_j", "mask_k")} <= set(applied)
    assert not any(text.startswith(("locate", "reindex")) for text in applied), applied
    assert any(re.match(r"vectorize\('backward', 'c_inner\w*', 16\)", text) for text in applied), applied
