"""What threads share."""

from __future__ import annotations

import pytest

from latte import FullyConnectedLayer, MemoryDataLayer, Net
from tests.schedule.rules.applied import chosen_in, default, net_of
from tests.support import assert_same, program


def test_a_sum_of_everything_has_private_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = program("for n in range(8):\n for i in range(16):\n  s[0] += x[n, i] * x[n, i]", x=(8, 16), s=(1,))
    after, applied = default(before, monkeypatch)
    assert_same(before, after, seeds=(0,))
    assert any(text.startswith("privatize('forward', 's'") for text in applied)
    assert any(text.startswith("parallelize(") for text in applied)


def test_small_layers_run_on_one_thread() -> None:
    net, _, layer = net_of("gelu", 2, (2, 3, 3))
    net.compile(target="portable")
    assert not any("parallelize" in c.text for c in net.explain(layer).commands)


def test_threads_share_results_whose_terms_are_their_own() -> None:
    """Blocks of a long sum pass by; each thread reads its own rows of the weights, and has results of its own."""
    net = Net(64, seed=1)
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (25088,)), 1000)
    applied = chosen_in("forward", net, layer)
    assert "reorder('forward', ['i_outer', 'k_1', 'n', 'i_inner'], nest=2)" in applied
    assert "parallelize('forward', 'k_1', nest=2)" in applied
    assert not any(text.startswith("privatize(") for text in applied), applied
