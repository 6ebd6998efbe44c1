"""Blocks of arrays."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latte import ConvLayer, MaxPoolingLayer, MemoryDataLayer, Net
from latte.tools.bench.own_layers import OWN
from swirl.ir.buffers import Buffer, Layout
from swirl.target.targets import TARGETS
from tests.nets.test_default_chains import planned
from tests.schedule.rules.applied import applied_texts, by_rule, convolution, results_of, scheduled
from tests.support import program

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


@pytest.mark.parametrize("blocks", [((1, 8),), ()])
def test_an_array_follows_the_blocks_of_its_source(blocks: tuple[tuple[int, int], ...]) -> None:
    text = "for n in range(2):\n for c in range(16):\n  for x in range(5):\n   value[n, c, x] = 2.0 * a[n, c, x]"
    before = program(text, value=(2, 16, 5), a=(2, 16, 5))
    before = before.with_buffers(a=Buffer("data.a", (2, 16, 5), layout=Layout(blocks)))
    _, applied = by_rule("follow_blocks", before, nest=None)
    assert applied == (["tile('value', 0, 8, reorder=False)"] if blocks else [])


@pytest.mark.parametrize(("row", "blocked"), [(7, True), (64, False)])
def test_results_with_short_rows_are_blocked(row: int, blocked: bool) -> None:
    """Also the weights, in the dimension that they have alike."""
    before = program(
        f"""
for n in range(2):
    for k in range(16):
        for c in range(3):
            for x in range({row}):
                value[n, k, x] += w[k, c] * a[n, c, x]
""",
        value=(2, 16, row),
        w=(16, 3),
        a=(2, 3, row),
    )
    before = before.with_buffers(w=Buffer("net.w", (16, 3), role="param"), a=Buffer("data.a", (2, 3, row)))
    _, applied = by_rule("block_results", replace(before, name="net.forward"), nest=None)
    expected = ["tile('value', 0, 8, reorder=False)", "tile('w', 0, 8, reorder=False)"]
    assert applied == (expected if blocked else [])
