"""Operands that are copied."""

from __future__ import annotations

from dataclasses import replace

import pytest

from latte import (
    ConvLayer,
    FullyConnectedLayer,
    MemoryDataLayer,
    Net,
    PositionwiseLinearLayer,
    ScaledDotProductAttentionLayer,
)
from latte.ensemble import Ensemble
from swirl.ir.nest import Program
from swirl.schedule.rules import blocking, hardware, packing, prefetch_and_stream
from swirl.target.targets import TARGETS
from tests.schedule.rules.applied import applied_of, by_rule, chosen_in, scheduled
from tests.support import program


def attention(features: int) -> dict[str, list[str]]:
    """Commands for attention of 12 queries and 20 keys, of which each has a source."""
    net = Net(1, seed=1)
    net.force_backward = True
    sources = [MemoryDataLayer(net, (positions, features)) for positions in (12, 20, 20)]
    return applied_of(net, ScaledDotProductAttentionLayer(net, *sources), "avx2")


def test_short_sums_are_of_packed_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of rows with rows: lanes run along the columns of a copy, and the softmax after them has lanes, too."""
    monkeypatch.setattr(packing, "READ_OFTEN", 4)
    forward = attention(8)["forward"]
    assert "pack('forward', 'key', at='h', order=[1, 0])" in forward
    assert {text.split("'")[3] for text in forward if text.startswith("vectorize")} >= {"s", "s_1", "s_2", "s_3"}


def test_long_sums_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "READ_OFTEN", 4)
    monkeypatch.setattr(packing, "LONG_SUM", 1)
    assert not any(text.startswith("pack") for text in attention(8)["forward"])


def test_rows_that_share_their_place_in_the_cache_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a power of two are read often: strips of them are copied, if more of them are read than a level-1 cache
    keeps, and rows of the results are fetched before they are stored."""
    monkeypatch.setattr(blocking, "STRIP", 32)
    monkeypatch.setattr(hardware, "WAY", 512)
    monkeypatch.setattr(prefetch_and_stream, "PAGE", 512)
    target = replace(TARGETS["avx2"], l1_bytes=2**12, l2_bytes=2**13)
    net = Net(32, seed=1)
    net.force_backward = True
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (64,)), 34)
    applied = applied_of(net, layer, target)
    assert "pack('backward', 'weights', at='k_outer', nest=1)" in applied["backward"]
    assert "pack('update', 'inputs', at='i_outer', nest=1)" in applied["update"]
    assert "prefetch('update', 'grad_weights', 'k', 2, 2, nest=1)" in applied["update"]


def packed(net: Net, layer: Ensemble) -> list[str]:
    """The copies in backward."""
    return [text for text in chosen_in("backward", net, layer) if text.startswith("pack(")]


def test_rows_that_have_room_in_the_cache_are_not_copied() -> None:
    """Those of weights that are a little longer than a power of two, where items are too few for panels; and whole rows
    of a 1 × 1 convolution."""
    net = Net(48, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (4096,))
    longer = FullyConnectedLayer(net, MemoryDataLayer(net, (4112,)), 1000)
    assert packed(net, FullyConnectedLayer(net, data, 1000))
    assert not packed(net, longer)
    net = Net(16, seed=1)
    net.force_backward = True
    layer = ConvLayer(net, MemoryDataLayer(net, (128, 28, 28)), num_filters=128, kernel=1)
    assert not packed(net, layer)


@pytest.mark.parametrize(("outputs", "turned"), [(24, True), (9, False)])
def test_short_sums_of_many_rows_have_lanes_along_their_results(
    outputs: int, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of all positions are those of one matrix, and the weights are copied, where that fills the lanes."""
    monkeypatch.setattr(packing, "READ_MANY_TIMES", 32)
    net = Net(4, seed=1)
    net.force_backward = True
    layer = PositionwiseLinearLayer(net, MemoryDataLayer(net, (9, 20)), outputs)
    applied = applied_of(net, layer, "avx2")
    forward = applied["forward"]
    assert any(text.startswith("flatten('forward', ['n', ") for text in forward), forward
    assert ("pack('forward', 'weights')" in forward) == turned, forward


@pytest.mark.parametrize(("batch", "inputs", "outputs"), [(2, 256, 40), (24, 100, 40), (24, 257, 31), (9, 256, 40)])
def test_lanes_run_along_items_where_that_pays(batch: int, inputs: int, outputs: int) -> None:
    """Not where they would be empty, where sums are short, or where a copy is read a few times."""
    net = Net(batch, seed=1)
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (inputs,)), outputs)
    target = replace(TARGETS["avx2"], l1_bytes=2**12, l2_bytes=2**13)
    _, _, forward, _ = next(scheduled(net, layer, target))
    assert "_packed" not in forward.text


def product_of_rows(heads: int, rows: int) -> Program:
    """Both factors have their terms innermost."""
    text = f"""
for h in range({heads}):
    for i in range({rows}):
        for j in range(16):
            for d in range(4):
                y[h, i, j] += a[h, i, d] * b[h, j, d]
"""
    return program(text, y=(heads, rows, 16), a=(heads, rows, 4), b=(heads, 16, 4))


@pytest.mark.parametrize(("rows", "copied"), [(40, True), (4, False)])
def test_a_factor_that_is_read_often_is_copied_in_rows_along_results(rows: int, copied: bool) -> None:
    _, applied = by_rule("pack", product_of_rows(2, rows))
    assert applied == (["pack('forward', 'b', at='h', order=[1, 0])"] if copied else [])


@pytest.mark.parametrize(("rows", "turned"), [(32, True), (31, False)])
def test_an_operand_is_copied_with_its_results_innermost(
    rows: int, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the other one's rows are many."""
    monkeypatch.setattr(packing, "READ_MANY_TIMES", 32)
    text = f"for n in range({rows}):\n for k in range(40):\n  for i in range(9):\n   y[n, k] += a[n, i] * w[k, i]"
    _, applied = by_rule("turn", program(text, y=(rows, 40), a=(rows, 9), w=(40, 9)))
    assert applied[:2] == (["pack('forward', 'w')", "transpose('w_packed', order=[1, 0])"] if turned else [])


@pytest.mark.parametrize(("weights", "joined"), [("w[k, i]", True), ("w[t, i]", False)])
def test_rows_of_one_matrix_are_one_loop(weights: str, joined: bool) -> None:
    """Not where an operand moves along one of the loops alone."""
    text = f"""
for n in range(3):
    for t in range(4):
        for k in range(4):
            for i in range(6):
                y[n, t, k] += {weights} * a[n, t, i]
"""
    _, applied = by_rule("join_rows", program(text, y=(3, 4, 4), w=(4, 6), a=(3, 4, 6)))
    assert applied == (["flatten('forward', ['n', 't'])"] if joined else [])
