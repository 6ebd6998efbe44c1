"""Orders and blocks of the loops of products."""

from __future__ import annotations

from dataclasses import replace

import pytest

from latte import FullyConnectedLayer, MemoryDataLayer, Net, TransposedConvLayer
from swirl.analysis.loop_facts import contractions
from swirl.schedule.rules import blocking
from swirl.target.targets import TARGETS
from tests.schedule.rules.applied import applied_in, applied_of, by_rule, of_positions, scheduled
from tests.support import assert_same, program, running_targets


@pytest.mark.parametrize(("batch", "inputs", "outputs"), [(8, 64, 48), (24, 48, 8), (5, 133, 7)])
@pytest.mark.parametrize(("l1", "l2"), [(128, 1024), (512, 4096), (2**15, 2**20)])
def test_products_stay_near(batch: int, inputs: int, outputs: int, l1: int, l2: int) -> None:
    """Whatever the caches, a fully connected layer computes the same; small ones make blocks of the terms."""
    net = Net(batch, seed=1)
    net.force_backward = True
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (inputs,)), outputs)
    applied = applied_of(net, layer, replace(TARGETS["avx2"], l1_bytes=l1, l2_bytes=l2))
    blocks = [text for commands in applied.values() for text in commands if text.startswith("tile_loop")]
    assert bool(blocks) == (l2 < 2**20), applied


def test_rows_of_a_product_pass_by_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a fully connected layer whose weights fit no cache: lanes run along the items of a copy of the source;
    backward adds to strips while weights pass by; update reads strips of the source."""
    monkeypatch.setattr(blocking, "STRIP", 32)
    net = Net(16, seed=1)
    net.force_backward = True
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (192,)), 40)
    applied = applied_of(net, layer, replace(TARGETS["avx2"], l1_bytes=2**13, l2_bytes=2**14))
    assert {"pack('forward', 'inputs')", "transpose('inputs_packed', order=[1, 0])"} <= set(applied["forward"])
    assert "vectorize('forward', 'n', 8, strided='gather', nest=2)" in applied["forward"]
    assert "reorder('backward', ['i_1_outer', 'k_outer', 'i_1_inner', 'n', 'k_inner'], nest=1)" in applied["backward"]
    assert "reorder('update', ['i_1_outer', 'k', 'i_1_inner', 'n'], nest=2)" in applied["update"]
    assert "fuse('update', 'i_inner', 'i_1_inner', nest=1)" in applied["update"]


@pytest.mark.parametrize(
    ("items", "columns", "strip", "terms"),
    [
        (16, 1024, 128, 64),  # few items: half as many strips as threads may want, in long pieces of few rows
        (16, 4096, 512, 16),
        (8, 2400, 240, 32),
        (40, 1024, 64, 256),  # a strip is copied, for so many: its rows would take each other's place
    ],
)
def test_few_items_add_to_long_strips(items: int, columns: int, strip: int, terms: int) -> None:
    net = Net(items, seed=1)
    net.force_backward = True
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (columns,)), 1024)
    (outcomes,) = (found for phase, _, _, found in scheduled(net, layer, "avx2") if phase == "backward")
    applied = [found.command.text for found in outcomes if found.status == "applied"]
    assert [text for text in applied if text.startswith("tile_loop") and "nest=1" in text] == [
        f"tile_loop('backward', 'i_1', {strip}, nest=1)",
        f"tile_loop('backward', 'k', {terms}, nest=1)",
    ]


@pytest.mark.parametrize("target", running_targets())
def test_sums_over_positions_stay_in_registers(target: str) -> None:
    """Results are outside of their terms although borders clip one of these."""
    net, layer = of_positions(2, 9, 8, 24)
    for phase, before, after, _ in scheduled(net, layer, target):
        assert_same(before, after, seeds=(0,))
        for found in (c for nest in after.nests for c in contractions(nest, after.buffers)):
            inner = next(loop for loop in reversed(found.statement.loops) if loop.kind in ("range", "parallel"))
            assert inner.var in found.sums, f"{phase}\n{after.text}"


@pytest.mark.parametrize(
    ("shape", "batch", "l2", "passing", "own_sums"),
    [
        ((2, 4, 7), 9, 2**14, ["n"], True),  # an image at a time
        ((2, 6, 7), 9, 2**14, ["n", "h_outer"], True),  # a few rows
        ((8, 3, 7), 2, 2**14, ["n"], False),  # too few images for the threads
        ((8, 3, 7), 3, 2**16, [], False),  # the caches have it all
        ((2, 6, 7), 9, 2**11, [], False),  # they do not have the weights
    ],
)
def test_terms_pass_by_once_for_all_results(
    shape: tuple[int, ...], batch: int, l2: int, passing: list[str], own_sums: bool
) -> None:
    """The gradient of weights: what the caches have of the images is read for each of them."""
    net = Net(batch, seed=1)
    net.force_backward = True
    layer = TransposedConvLayer(net, MemoryDataLayer(net, shape), 16, 2, 2)
    update = applied_in("update", net, layer, replace(TARGETS["avx2"], l1_bytes=2**10, l2_bytes=l2))
    orders = [text for text in update if text.startswith("reorder('update', ['n', ")]
    assert [text.startswith(f"reorder('update', {[*passing, 'k_outer']}"[:-1]) for text in orders] == [True][
        : len(passing)
    ]
    assert any(text.startswith("privatize('update', 'grad_weights', 'n'") for text in update) == own_sums, update
    assert ("parallelize('update', 'n', nest=1)" in update) == own_sums, update


@pytest.mark.parametrize(("order", "reordered"), [("ink", True), ("nki", False)])
def test_results_are_outside_of_their_terms(order: str, reordered: bool) -> None:
    heads = {"i": "for i in range(9):", "n": "for n in range(4):", "k": "for k in range(5):"}
    text = "".join(f"{'    ' * depth}{heads[var]}\n" for depth, var in enumerate(order))
    before = program(f"{text}            y[n, k] += w[k, i] * a[n, i]", w=(5, 9), a=(4, 9), y=(4, 5))
    assert by_rule("blocks", before)[1] == (["reorder('forward', ['n', 'k', 'i'])"] if reordered else [])


def test_blocks_of_terms_for_small_caches() -> None:
    """A block of what is read again fits half of the level-2 cache."""
    text = "for n in range(8):\n for k in range(64):\n  for i in range(512):\n   y[n, k] += a[n, i] * w[k, i]"
    before = program(text, y=(8, 64), a=(8, 512), w=(64, 512))
    _, applied = by_rule("blocks", before, replace(TARGETS["avx2"], l1_bytes=2**12, l2_bytes=2**14))
    (tile,) = (text for text in applied if text.startswith("tile_loop"))
    assert tile.startswith("tile_loop('forward', 'i', "), applied
    assert by_rule("blocks", before)[1] == []
