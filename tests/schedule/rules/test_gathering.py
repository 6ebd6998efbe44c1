"""Sums that are scattered become loops over the elements."""

from __future__ import annotations

import pytest

from tests.schedule.rules.applied import applied_in, by_rule, clipped_pooling, convolution
from tests.support import program


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_strided_sums_are_gathered_if_they_have_other_terms(target: str) -> None:
    """An element of the source sums filters for each tap, but at most a few gradients of windows."""
    for (net, layer), gathered in ((convolution(20, 7, stride=2), 2), (clipped_pooling(9), 0)):
        backward = applied_in("backward", net, layer, target)
        assert sum(text.startswith("reindex(") for text in backward) == gathered, backward


@pytest.mark.parametrize(("written", "read", "scattered"), [("x + j", "x", True), ("x", "x + j", False)])
def test_scattered_sums_become_loops_over_elements(written: str, read: str, scattered: bool) -> None:
    text = f"for x in range(40):\n for j in range(3):\n  g[{written}] += w[j] * a[{read}]"
    after, applied = by_rule("gather", program(text, g=(42,), w=(3,), a=(42,)))
    assert applied == (["reindex('forward', 'x', x_to='x + j')"] if scattered else [])
    assert ("g[x_to] += w[j] * a[x_to - j]" in after) == scattered
