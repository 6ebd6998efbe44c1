"""What threads share."""

from __future__ import annotations

import pytest

from latte import FullyConnectedLayer, MemoryDataLayer, Net
from tests.schedule.rules.applied import by_rule, chosen_by_rule, chosen_in, default, net_of, share_from
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


@pytest.mark.parametrize(("written", "private"), [("0", True), ("n", False)])
def test_parts_of_a_sum_have_sums_of_their_own(written: str, private: bool) -> None:
    """Not where iterations that threads may share add to elements of their own."""
    before = program(f"for n in range(8):\n for x in range(4096):\n  s[{written}] += a[n, x]", s=(8,), a=(8, 4096))
    assert chosen_by_rule("parts", before) == (["privatize('forward', 's', 'n')"] if private else [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("for n in range(20):\n for x in range(40):\n  y[n, x] = a[n, x]", ["parallelize('forward', 'n')"]),
        (
            "for n in range(8):\n for x in range(40):\n  y[n, x] = a[n, x]",
            ["tile_loop('forward', 'x', 20)", "parallelize('forward', ['n', 'x_outer'])"],
        ),
        (
            "for x in range(39):\n for n in range(20):\n  y[n, x + 1] = y[n, x]",
            ["reorder('forward', ['n', 'x'])", "parallelize('forward', 'n')"],
        ),
        ("for x in range(39):\n y[0, x + 1] = y[0, x]", []),
    ],
    ids=["outermost", "pieces", "inner", "none"],
)
def test_threads_share_independent_loops(text: str, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    share_from(1, monkeypatch)
    assert by_rule("threads", program(text, y=(20, 40), a=(20, 40)))[1] == expected
