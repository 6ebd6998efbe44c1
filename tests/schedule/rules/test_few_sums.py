"""Few sums over much data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swirl.target.targets import TARGETS
from tests.schedule.rules.applied import by_rule
from tests.support import program


@pytest.mark.parametrize(("cache", "together"), [(2**10, True), (2**20, False)])
def test_few_sums_are_added_to_while_the_data_pass_by_once(cache: int, together: bool) -> None:
    """Where the cache does not hold the data."""
    text = "for j in range(2):\n for n in range(16):\n  for x in range(64):\n   s[j] += a[n, x] * b[n, x + j]"
    before = program(text, s=(2,), a=(16, 64), b=(16, 65))
    _, applied = by_rule("few_sums", before, replace(TARGETS["avx2"], l2_bytes=cache))
    expected = [
        "reorder('forward', ['n', 'j', 'x'])",
        "privatize('forward', 's', 'n')",
        "vectorize('forward', 'x', 8)",
        "unroll_and_jam('forward', 'j', 2)",
        "parallelize('forward', 'n')",
    ]
    assert applied == (expected if together else [])
