"""What the automatic pass keeps in registers over loops."""

from __future__ import annotations

import pytest

from swirl.target import TARGETS
from swirl.transforms import COMMANDS
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from tests.support import assert_compiles_to_same, assert_same, program


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_sums_of_a_ragged_end_stay_in_registers_too(target: str) -> None:
    """The loops of the end have the names of the others, and other bounds: its sums were loaded and stored for every
    term."""
    before = program(
        """
for k in range(3):
    for n in range(38):
        for i in range(5):
            y[n, k] += w[k, i] * x[i, n]
""",
        y=(38, 3),
        w=(3, 5),
        x=(5, 38),
    )
    lanes = COMMANDS["vectorize"](before, "n", TARGETS[target].simd_width, strided="gather")
    after = scalar_replace(tidy(COMMANDS["unroll_and_jam"](lanes, "n", 2)))
    assert_same(before, after)
    assert_compiles_to_same(after, TARGETS[target])
    sums = [line for line in after.text.splitlines() if "+=" in line]
    assert len(sums) == 2 and all("y_t" in line for line in sums), after.text
