"""Panels of operands."""

from __future__ import annotations

import re

import pytest

from latte import FullyConnectedLayer, MemoryDataLayer, Net
from latte.ensemble import Ensemble
from swirl.codegen.emit import listing
from swirl.target.targets import TARGETS, Target
from tests.schedule.rules.applied import applied_in, applied_of, applied_texts, by_rule, of_positions, scheduled
from tests.support import program


class Similarities(Ensemble):
    """The products of each item with each other one."""

    def forward(self, first, second, value):
        N, D = first.shape
        for i in range(N):
            for j in range(N):
                for d in range(D):
                    value[i, j] += first[i, d] * second[j, d]


def test_panels_of_items(small_panels: Target) -> None:
    """The copy of a panel has the items, along which the lanes run, innermost: each vector was gathered."""
    net = Net(32, seed=1)
    layer = net.add_ensemble(Similarities(shape=(32,), dims=("j",)))
    for name in ("first", "second"):
        net.add_connections(MemoryDataLayer(net, (128,)), layer, name=name)
    copies = [text for text in applied_in("forward", net, layer, small_panels) if text.startswith("pack")]
    assert copies == ["pack('forward', 'second', at='d_outer', order=[0, -1], nest=1)"]


def panels_of(phase: str, commands: list[str]) -> list[str]:
    """The orders of loops in panels of one phase, and the copies."""
    wanted = (f"reorder('{phase}', [", f"pack('{phase}', ", f"split('{phase}', ")
    return [text for text in commands if text.startswith(wanted) and ("_outer" in text or "split" in text)]


def test_panels_of_an_operand_stay_near(small_panels: Target) -> None:
    """Of a fully connected layer of many items: for each panel the other operand passes by, turned if its terms are not
    contiguous. A panel is copied with its lanes innermost, turned where the operand has its terms innermost; blocks of
    rows, too, where panels are few."""
    net = Net(32, seed=1)
    net.force_backward = True
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (128,)), 64)
    applied = applied_of(net, layer, small_panels)
    forward = panels_of("forward", applied["forward"])
    assert (
        forward[0]
        == "reorder('forward', ['n_outer', 'k_1_outer', 'i_outer', 'n_inner', 'k_1_inner', 'i_inner'], nest=1)"
    )
    assert forward[-1] == "pack('forward', 'weights', at='i_outer', order=[1, 0], nest=1)"
    assert "vectorize('forward', 'weights_packed_dim0', 8, strided='gather', nest=1)" in applied["forward"]
    backward, update = panels_of("backward", applied["backward"]), panels_of("update", applied["update"])
    order = "['n_outer', 'i_1_outer', 'k_outer', 'n_inner', 'i_1_inner', 'k_inner']"
    assert backward[0] == f"reorder('backward', {order}, nest=1)"
    assert "pack('backward', 'weights', at='k_outer', nest=1)" in backward, applied["backward"]
    assert "transpose('grad_packed', order=[1, 0])" in applied["update"], applied["update"]
    assert "reorder('update', ['k_outer', 'i_1_outer', 'k_inner', 'i_1_inner', 'n'], nest=3)" in update, update
    assert "pack('update', 'inputs', at='i_outer', nest=2)" in update, applied["update"]


def test_ragged_ends_are_cut_off_panels(small_panels: Target) -> None:
    net = Net(8, seed=1)
    net.force_backward = True
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (152,)), 32)
    backward = panels_of("backward", applied_of(net, layer, small_panels)["backward"])
    assert "split('backward', 'i_1', [128], nest=1)" in backward, backward
    assert any(text.startswith("pack('backward', 'weights'") for text in backward), backward


def test_panels_have_terms_along_several_loops(small_panels: Target) -> None:
    """And rows, also where borders clip them."""
    net, layer = of_positions(1, 16, 32, 64)
    applied = applied_of(net, layer, small_panels)
    forward = panels_of("forward", applied["forward"])
    assert any(re.match(r"pack\('forward', 'w', at='d_outer', order=\[1, 2, 0\]", text) for text in forward), forward


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_a_copied_panel_of_a_turned_operand_is_stored_in_whole_vectors(target: str) -> None:
    """Forward of 1024 items, 128 to 4096, took ten times as long: the copy was as the weights are, with scatters."""
    net = Net(1024, seed=1)
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (128,)), 4096)
    _, _, forward, outcomes = next(scheduled(net, layer, target))
    applied = applied_texts(outcomes)
    assert any(re.match(r"pack\('forward', 'weights', .*order=\[1, 0\]", text) for text in applied), applied
    text = listing(forward, TARGETS[target])
    assert "scatter" not in text and "load_turned<" in text


PANELS = """
for k_outer in range(4):
    for n in range({rows}):
        for k in range(64):
            for i in range(32):
                y[n, k_outer * 64 + k] += a[n, i] * w[i, k_outer * 64 + k]
"""


@pytest.mark.parametrize(("rows", "copied"), [(4, True), (3, False)])
def test_panels_are_copied_for_many_rows(rows: int, copied: bool, small_panels: Target) -> None:
    before = program(PANELS.format(rows=rows), y=(rows, 256), a=(rows, 32), w=(32, 256))
    _, applied = by_rule("panels", before, small_panels)
    assert applied == (["pack('forward', 'w', at='k_outer')"] if copied else [])


@pytest.mark.parametrize(("other", "copied"), [("v", True), ("w", False)])
def test_a_panel_is_not_copied_for_others_that_want_rows_as_they_are(
    other: str, copied: bool, small_panels: Target
) -> None:
    """Of ``x xᵀ x``, the copy for one product had rows along which the other one had its lanes: each was gathered."""
    text = f"{PANELS.format(rows=4)}        for i in range(32):\n            z[n, i] += a[n, i] * {other}[i, 3]\n"
    before = program(text, y=(4, 256), z=(4, 32), a=(4, 32), w=(32, 256), v=(32, 8))
    _, applied = by_rule("panels", before, small_panels)
    assert applied == (["pack('forward', 'w', at='k_outer')"] if copied else [])
