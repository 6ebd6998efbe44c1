"""Ranges that are cut."""

from __future__ import annotations

import pytest

from latte import FullyConnectedLayer, InterpolationLayer, MemoryDataLayer, Net
from tests.schedule.rules.applied import applied_in, applied_of, by_rule, pooling
from tests.support import program


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize(("factor", "extent"), [(2.0, 9), (1.5, 18), (0.5, 18), (3.0, 10)])
@pytest.mark.parametrize("centred", [False, True])
def test_lanes_run_along_quotients_that_are_whole_steps_apart(
    factor: float, extent: int, centred: bool, mode: str
) -> None:
    """An enlarged row: neighbours in the source are as many results apart as the factor has; ends that are clamped are
    loops of their own."""
    net = Net(1, seed=1)
    net.force_backward = True
    layer = InterpolationLayer(
        net, MemoryDataLayer(net, (1, 2, extent)), resize_factor=factor, mode=mode, centred=centred
    )
    applied = applied_of(net, layer, "avx2")
    for phase in ("forward", "backward"):
        assert any(text.startswith(f"vectorize('{phase}', 'x") for text in applied[phase]), applied


def test_ragged_blocks_are_not_taken_for_clipped_windows() -> None:
    """The last block of 20 filters has four: no loop over blocks is cut but for copies of whole ones."""
    net = Net(3, seed=1)
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (6,)), 20)
    forward = applied_in("forward", net, layer, "avx2")
    assert not any(text.startswith("rename(") for text in forward), forward


@pytest.mark.parametrize("extent", [7, 35])
def test_a_clipped_window_at_the_end_is_separate(extent: int) -> None:
    """Three whole windows are enough for lanes; one that ends beyond the row has another number of taps."""
    for phase, commands in applied_of(*pooling(extent, ceil_mode=True)).items():
        assert any(text.startswith(f"split('{phase}', 'x', [{extent // 2}]") for text in commands), commands
        assert any(text.startswith(f"vectorize('{phase}', 'x', 16") for text in commands), commands


@pytest.mark.parametrize(("index", "cut"), [("x // 2", True), ("x % 2", True), ("2 * x", False)])
def test_loops_with_quotients_in_subscripts_are_cut(index: str, cut: bool) -> None:
    before = program(f"for x in range(64):\n y[x] = a[{index}]", y=(64,), a=(128,))
    _, applied = by_rule("quotients", before)
    assert applied == (["tile_loop('forward', 'x', 2)"] if cut else [])


@pytest.mark.parametrize(
    ("index", "cuts"), [("max(x - 1, 0)", "[1]"), ("min(max(x - 2, 0), 60)", "[2, 63]"), ("x", None)]
)
def test_ends_that_are_clamped_are_loops_of_their_own(index: str, cuts: str | None) -> None:
    before = program(f"for x in range(64):\n y[x] = a[{index}]", y=(64,), a=(64,))
    after, applied = by_rule("ends", before)
    assert [text for text in applied if "split" in text] == ([f"split('forward', 'x', {cuts})"] if cuts else [])
    assert "max(" not in after
