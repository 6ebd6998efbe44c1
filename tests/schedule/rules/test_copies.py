"""Copies of loops: register tiles, sums that do not wait for each other, terms that are written out."""

from __future__ import annotations

import re

import pytest

from latte import (
    ConvLayer,
    EmbeddingLayer,
    FullyConnectedLayer,
    InterpolationLayer,
    MaxPoolingLayer,
    MemoryDataLayer,
    Net,
)
from latte.runtime.kernels import generated_kernels
from latte.tools.bench.assembly import counts, innermost_loops, instructions
from swirl.analysis.accesses import parsed
from swirl.analysis.statements import statements_of
from swirl.ir.nest import names_in
from swirl.target.targets import TARGETS
from tests.codegen.test_machine_code import target_named
from tests.nets.test_default_chains import planned
from tests.schedule.rules.applied import applied_in, applied_texts, convolution, default, scheduled, strided
from tests.support import assert_same, program


def test_products_by_way_of_a_local_are_contractions(monkeypatch: pytest.MonkeyPatch) -> None:
    before = program(
        """
for i in range(8):
    for j in range(16):
        for k in range(5):
            p: float32 = a[i, k] * b[k, j]
            y[i, j] += p
""",
        a=(8, 5),
        b=(5, 16),
        y=(8, 16),
    )
    after, applied = default(before, monkeypatch)
    assert_same(before, after, seeds=(0,))
    assert "unroll_and_jam('forward', 'i', 4)" in applied and "unroll_and_jam('forward', 'j', 2)" in applied


def test_short_loops_that_move_the_borders_of_lanes_are_written_out() -> None:
    """Masks that depend on them were made anew for each vector: a bilinear gradient took 2.6 times as long."""
    net = Net(2, seed=1)
    net.force_backward = True
    layer = InterpolationLayer(net, MemoryDataLayer(net, (3, 20, 20)), resize_factor=2.0, centred=True)
    backward = next(p for phase, _, p, _ in scheduled(net, layer, "avx512") if phase == "backward")
    masked = [s for nest in backward.nests for s in statements_of(nest) if any(x.kind == "vector" for x in s.loops)]
    moving = {name for s in masked for guard in s.guards for name in names_in(parsed(guard))}
    kinds = {loop.var: loop.kind for s in masked for loop in s.loops if loop.extent != 1}
    assert {kinds[name] for name in moving & kinds.keys()} == {"vector", "unrolled"}, moving


def test_several_vectors_of_each_row_that_data_choose() -> None:
    net = Net(3, seed=1)
    layer = EmbeddingLayer(net, MemoryDataLayer(net, (5,), dtype="int32", below=7), 7, 48)
    net.compile(target="avx2")
    applied = [outcome.text for outcome in net.explain(layer, "update").commands if outcome.status == "applied"]
    assert applied[:2] == ["vectorize('update', 'e', 8)", "unroll_and_jam('update', 'e', 3)"]


@pytest.mark.parametrize(("extent", "taps", "stride"), [(64, 7, 2), (61, 5, 3), (64, 5, 4)])
@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_copies_of_a_strided_gradient_have_taps_of_their_own(extent: int, taps: int, stride: int, target: str) -> None:
    """As many pixels as the stride, or a multiple of it; taps are written out. Conditions in the innermost loop took
    three quarters of the time."""
    net, layer = strided(extent, taps, stride)
    backward = applied_in("backward", net, layer, target)
    made = [found for text in backward if (found := re.match(r"unroll_and_jam\('backward', '(\w+)', (\d+)", text))]
    copies = [int(found[2]) for found in made if found[1] != "c"]
    assert copies and not any(count % stride for count in copies), backward
    assert f"unroll('backward', 'i', {taps}, unroll_type=1)" in backward


def test_copies_of_blocks_are_innermost() -> None:
    """A broadcast meets all vectors of a tile while it is in its register: elsewise AVX2 took twice as long."""
    net, layer = strided(64, 7, 2)
    forward = applied_in("forward", net, layer, "avx2")
    copied = [found[1] for text in forward if (found := re.match(r"unroll_and_jam\('forward', '(\w+)'", text))]
    assert copied[-1].startswith("f_outer") and copied[0].startswith("t"), forward


def test_windows_share_what_they_read() -> None:
    """The gradient of a depthwise convolution's weights: nine sums in one pass over the images, added up once."""
    net = Net(2, seed=1)
    layer = ConvLayer(net, MemoryDataLayer(net, (3, 6, 18)), num_filters=3, groups=3)
    update = applied_in("update", net, layer, "avx512")
    assert {"unroll_and_jam('update', 'ky_1', 3)", "unroll_and_jam('update', 'kx_1', 3)"} <= set(update)


@pytest.mark.parametrize(("filters", "ragged"), [(33, True), (40, False)])
def test_a_ragged_block_is_separate_from_the_whole_ones(filters: int, ragged: bool) -> None:
    """Copies of whole blocks share what they read; beside a ragged one, copies of their loop would be refused."""
    forward = applied_in("forward", *convolution(filters, 7), "avx2")
    assert any(re.match(r"split\('forward', 'k_outer\w*', \[4\]", text) for text in forward) == ragged, forward
    assert any(re.match(r"unroll_and_jam\('forward', 'k_outer\w*'", text) for text in forward), forward


@pytest.mark.parametrize("name", ["avx512", "avx2"])
def test_register_tiles_of_products_stay_in_registers(name: str) -> None:
    target = target_named(name, runs=True)
    net = Net(64, seed=1)
    net.force_backward = True
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (2048,)), 1100)
    net.compile(target=name)
    for phase in ("forward", "backward", "update"):
        (kernel,) = (c for c in net.executable.compiled if c.ensemble is layer and c.phase == phase)
        loops = innermost_loops(instructions(kernel.built.path, kernel.built.name))
        tiles = [loop for loop in loops if counts(loop).multiply_adds >= target.registers * 0.6]
        found = [counts(tile) for tile in tiles]
        assert any(tile.loads + tile.broadcasts <= tile.multiply_adds for tile in found), (phase, found)
        assert not [text for tile in tiles for text in tile if "[rsp" in text and re.search("[yz]mm", text)], phase


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_lanes_that_write_every_second_element_fill_the_row(target: str) -> None:
    """Gradients of poolings, and interpolation; the gradient of interpolation adds up a row before it is stored."""
    net = Net(2)
    net.force_backward = True
    source = MemoryDataLayer(net, (4, 40, 40))
    pooled = MaxPoolingLayer(net, InterpolationLayer(net, source, 0, 2.0, centred=True), 2, 2)
    for layer in net.ensembles:
        net.use_recipe(layer, None)
    plan, _ = planned(net, TARGETS[target])
    code = {(each.unit.name, each.phase): each.source.source for each in generated_kernels(plan)}
    assert "interleaved<" in code["interpolation1", "forward"] and "interleaved<" in code[pooled.name, "backward"]
    applied = applied_texts(plan.outcomes["interpolation1"])
    orders = [text for text in applied if text.startswith("reorder('backward'")]
    assert orders and "'i_1', 'x_inner_1', 'j_1'" in orders[0]
