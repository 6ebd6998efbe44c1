"""The size of a register tile."""

from __future__ import annotations

import pytest

from swirl.schedule.rules.register_tiles import register_tile


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 14, 64])
@pytest.mark.parametrize("vectors", [1, 2, 4, 7])
def test_register_tiles_fit(rows: int, vectors: int, registers: int) -> None:
    p, q = register_tile(rows, vectors, registers)
    assert 1 <= p <= rows and 1 <= q <= vectors and p * q + q + 1 <= registers
    if rows >= 14 and vectors >= 2:
        assert p * q >= registers // 3


@pytest.mark.parametrize("periods", [(1, 1), (2, 1), (1, 2), (3, 2), (4, 4), (7, 1), (40, 1)])
def test_a_register_tile_of_periods(periods: tuple[int, int]) -> None:
    for registers in (16, 32):
        p, q = register_tile(64, 8, registers, 0, periods)
        assert p * q + q + 1 <= registers
        possible = periods[0] * periods[1] + periods[1] + 1 <= registers
        assert not possible or (p % periods[0] == 0 and q % periods[1] == 0)
    assert register_tile(1, 1, 2, 0, periods) == (1, 1)
