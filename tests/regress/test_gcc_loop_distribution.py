"""g++ 12 at -O3 cuts a loop in two at statements that depend on each other through ``y[3 - i]`` and ``y[i]``.

swirl/build/compiler_flags.py turns its loop distribution off.
"""

from __future__ import annotations

from swirl.target.targets import Target
from tests.support import assert_compiles_to_same, program


def test_a_row_and_its_mirror_image(target: Target) -> None:
    before = program(
        """
for l in range(2):
    u[2, 2] = 0.0
    for i in range(3):
        y[3 - i, l] -= y[i, l + i] + f[0, i, 0]
        u[l + 1, 2 * l] = f[l, i + l, i + l]
""",
        y=(5, 16),
        u=(22, 15),
        f=(8, 15, 12),
    )
    assert_compiles_to_same(before, target)
