"""Algorithm 1, the factor space, the filter."""

from __future__ import annotations

from itertools import product

import pytest

from swirl.target.targets import TARGETS
from swirl.tune.automcl.complexity import CONVOPT, DNMM, LPMM, PRODUCTS, RPMM, TMM, ConvTile, t_c, t_m
from swirl.tune.automcl.factors import (
    LEVELS,
    Filter,
    Tiling,
    conv_sizes,
    factor_space,
    initial_space,
    kept_space,
    power_space,
)
from swirl.tune.divisors import divisors


def test_divisors() -> None:
    for number in range(1, 200):
        assert divisors(number) == tuple(each for each in range(1, number + 1) if number % each == 0)


@pytest.mark.parametrize("schedule", PRODUCTS)
def test_algorithm_1_beside_its_definition(schedule: str) -> None:
    m, k, n, threads = 6, 4, 9, 4
    wanted = set()
    for py in (1, 2, 4):
        rows, columns = -(-m // py), -(-n // (4 // py))
        sizes = range(1, 10)
        for mo, mt, no, nt, kt in product(sizes, repeat=5):
            one = LEVELS[schedule] == 2 or mo == no == 1
            if one and rows % (mo * mt) == 0 and columns % (no * nt) == 0 and k % kt == 0:
                wanted.add(Tiling(mo, mt, no, nt, kt))
    found = list(initial_space(schedule, m, k, n, threads))
    assert len(found) == len(set(found)) and set(found) == wanted


def test_primes_have_tiles_where_threads_share_them() -> None:
    """The gain of the paper's strategy for sizes of primes: 13 rows have tiles of 7, and the last one of 6."""
    by_factor = {each.mt for each in factor_space(RPMM, 13, 4, 8)}
    assert by_factor == {1, 13}
    assert {each.mt for each in initial_space(RPMM, 13, 4, 8, 2)} == {1, 7, 13}


def test_the_space_of_powers() -> None:
    found = list(power_space(TMM, 5, 2, 3))
    assert {(each.mt, each.nt, each.kt) for each in found} == set(product((1, 2, 4), (1, 2), (1, 2)))
    assert len(list(power_space(RPMM, 5, 2, 3))) == 6 * 3 * 2


def test_the_filter() -> None:
    small = Filter(8, 200)
    for schedule in (TMM, DNMM, LPMM):
        every = list(initial_space(schedule, 64, 48, 32, 2))
        kept = set(kept_space(schedule, 64, 48, 32, 2, small))
        assert kept == {each for each in every if small.keeps(schedule, each, 64, 48, 32)}
        assert 0 < len(kept) < len(every)
        assert all(t_m(schedule, each.tile(64, 48, 32, 16)) < 200 for each in kept)
    assert all(each.nt >= 8 for each in kept_space(TMM, 64, 48, 32, 2, small))
    assert all(each.kt >= 8 for each in kept_space(DNMM, 64, 48, 32, 2, small))
    assert all(each.mt >= 8 for each in kept_space(LPMM, 64, 48, 32, 2, small))
    # Less than a vector is not filtered away.
    assert {each.nt for each in kept_space(TMM, 64, 48, 5, 1, small)} == {5}


def test_the_filter_of_a_target() -> None:
    found = Filter.of(TARGETS["avx512"])
    assert (found.lanes, found.lines, found.line) == (16, 2**20 // 64, 16)


def test_large_spaces_are_drawn_from() -> None:
    filtered = Filter.of(TARGETS["avx2"])
    found = kept_space(RPMM, 5040, 720, 5040, 2, filtered, most=500)
    assert len(set(found)) == 500 and found == kept_space(RPMM, 5040, 720, 5040, 2, filtered, most=500)
    assert all(filtered.keeps(RPMM, each, 5040, 720, 5040) for each in found)


def test_tiles_of_convolutions() -> None:
    assert set(conv_sizes(6, 4, 3)) == set(product((1, 2, 3, 6), (1, 2, 4), (1, 3)))
    filtered = Filter(8, 100)
    tiles = [ConvTile(1, 16, 8, 8, 16, 3, 3, owt, ict, oct_, 16) for owt, ict, oct_ in conv_sizes(6, 16, 16)]
    kept = [t for t in tiles if filtered.keeps_conv(CONVOPT, t)]
    assert 0 < len(kept) < len(tiles)
    assert all(t.oct >= 8 and t_c(CONVOPT, t) < 100 for t in kept)
