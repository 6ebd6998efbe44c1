"""Sums that are scattered become loops over the elements."""

from __future__ import annotations

import pytest

from tests.schedule.rules.applied import applied_in, clipped_pooling, convolution


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_strided_sums_are_gathered_if_they_have_other_terms(target: str) -> None:
    """An element of the source sums filters for each tap, but at most a few gradients of windows."""
    for (net, layer), gathered in ((convolution(20, 7, stride=2), 2), (clipped_pooling(9), 0)):
        backward = applied_in("backward", net, layer, target)
        assert sum(text.startswith("reindex(") for text in backward) == gathered, backward
