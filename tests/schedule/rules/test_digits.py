"""Means are exact for equal numbers."""

from __future__ import annotations

import pytest

from tests.schedule.rules.applied import by_rule
from tests.support import program


@pytest.mark.parametrize("centred", [True, False])
def test_means_that_data_are_centred_by_are_of_differences(centred: bool) -> None:
    data = "a[n, x] - m[n]" if centred else "a[n, x]"
    before = program(
        f"""
for n in range(4):
    m[n] = 0.0
    for x in range(16):
        m[n] += a[n, x]
    m[n] = m[n] / 16.0
    for x in range(16):
        y[n, x] = {data}
""",
        m=(4,),
        a=(4, 16),
        y=(4, 16),
    )
    after, applied = by_rule("digits", before, finite=True)
    assert applied == (["shift_mean('forward', 'x', occurrence=0)"] if centred else [])
    assert ("m[n] += a[n, x] - m_first" in after) == centred
