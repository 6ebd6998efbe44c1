"""Theorems 1 and 2, tables 2 and 3, beside a simulated ideal cache: never below it, and at the most twice as much where
rows of tiles are of two lines or more and the arrays are much larger than the cache."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from ideal_cache import convolution_trace, misses, product_trace

from swirl.tune.automcl.complexity import (
    CONV,
    CONVOPT,
    DNMM,
    DPMM,
    LPMM,
    PRODUCTS,
    RPMM,
    TMM,
    TTMM,
    ConvTile,
    Tile,
    c_c,
    c_im2col,
    c_m,
    t_c,
    t_im2col,
    t_m,
)
from swirl.tune.divisors import divisors

LINE = 4
"""Words of a line: small, so that small arrays have many."""
DIFFERENT = (TMM, TTMM, DNMM, LPMM, RPMM, DPMM)


def test_the_ideal_cache() -> None:
    assert misses([1, 2, 3, 1, 2, 3], 3) == 3
    assert misses([1, 2, 3, 1, 2, 3], 2) == 4  # 1 stays; the least recently used one would miss six times
    assert misses([1, 2, 3, 1, 2, 3], 1) == 6
    assert misses([], 1) == 0
    random = Random(2)
    for _ in range(30):
        trace = [random.randrange(6) for _ in range(12)]
        assert misses(trace, 2) == _fewest(tuple(trace), frozenset(), 2)


def _fewest(trace: tuple[int, ...], held: frozenset[int], lines: int) -> int:
    """The misses of the best choice of lines that are given up, by trying all."""
    if not trace:
        return 0
    first, rest = trace[0], trace[1:]
    if first in held:
        return _fewest(rest, held, lines)
    kept = [held] if len(held) < lines else [held - {each} for each in held]
    return 1 + min(_fewest(rest, each | {first}, lines) for each in kept)


@pytest.mark.parametrize("schedule", DIFFERENT)
def test_products_of_random_sizes_miss_at_the_most_as_often(schedule: str) -> None:
    random = Random(schedule)
    for _ in range(12):
        m, k, n = (random.randint(4, 20) for _ in range(3))
        tile = Tile(m, k, n, *(random.choice(divisors(size)) for size in (m, k, n)), LINE)
        simulated = misses(product_trace(schedule, tile, random.randrange(LINE)), t_m(schedule, tile) + 1)
        assert simulated <= c_m(schedule, tile), tile


@pytest.mark.parametrize("schedule", DIFFERENT)
def test_products_that_do_not_fit_miss_at_least_half_as_often(schedule: str) -> None:
    random = Random(schedule)
    for _ in range(2):
        mt = 8 if schedule in (LPMM, DPMM) else random.choice((4, 8))
        tile = Tile(2 * mt, 6 * 8, 2 * 12, mt, 8, random.choice((8, 12)), LINE)
        simulated = misses(product_trace(schedule, tile, random.randrange(LINE)), t_m(schedule, tile) + 1)
        assert simulated <= c_m(schedule, tile) <= 2 * simulated, tile


@pytest.mark.parametrize("schedule", [CONV, CONVOPT])
def test_convolutions_of_random_sizes_miss_at_the_most_as_often(schedule: str) -> None:
    random = Random(schedule)
    for _ in range(8):
        ic, oc, kernel, stride = (random.choice(each) for each in ((4, 6, 8), (4, 6), (1, 2, 3), (1, 2)))
        pad, size = random.randint(0, kernel // 2), random.randint(kernel + 2, 8)
        ict, oct_ = random.choice(divisors(ic)), random.choice(divisors(oc))
        t = ConvTile(1, ic, size, size, oc, kernel, kernel, 1, ict, oct_, LINE, pad, pad, stride, stride)
        t = replace(t, owt=random.choice(divisors(t.ow)))
        simulated = misses(convolution_trace(schedule, t, random.randrange(LINE)), t_c(schedule, t) + 1)
        assert simulated <= c_c(schedule, t), t


def test_a_convolution_that_does_not_fit_misses_at_least_half_as_often() -> None:
    """One of those for which this holds: docs/tuning.md says of how many it does not."""
    t = ConvTile(1, 16, 7, 25, 16, 2, 2, 8, 4, 8, LINE)
    simulated = misses(convolution_trace(CONV, t), t_c(CONV, t) + 1)
    assert simulated <= c_c(CONV, t) <= 2 * simulated


def test_one_product_by_hand() -> None:
    """4 × 8 · (8 × 4), tiles of 2 × 4 × 2, lines of 4: rows of 4 have two lines, rows of 2 have two."""
    tile = Tile(4, 8, 4, 2, 4, 2, 4)
    assert t_m(TMM, tile) == 2 * 2 + 2 * 2 + 2 * 2
    assert c_m(TMM, tile) == 4 * (2 * 2 * 2 + 2 * 2 * 2 + 2 * 2)
    assert t_m(RPMM, tile) == 1 + max(1 + 2, 1 + max(2 * 2, 2 * 2 + 2 + 1))
    copy = 2 * (4 + 1) + 4 * (2 + 1)
    assert c_m(RPMM, tile) == copy + 2 + 4 * (2 * 2 + 2 * (2 * 2 + 3))
    assert c_m(DPMM, tile) == 2 * copy + 2 + 4 * (2 * 2 + 2 * (3 + 3))


def test_symmetry() -> None:
    """RPMM is LPMM with D and W in each other's place, but for the rows of C."""
    random = Random(0)
    for _ in range(20):
        tile = Tile(*(random.randint(8, 64) for _ in range(3)), *(random.randint(1, 8) for _ in range(3)), 16)
        rows = tile.tiles * (tile.mt * tile.row(tile.nt) - tile.nt * tile.row(tile.mt))
        assert c_m(RPMM, tile) - c_m(LPMM, tile.turned) == rows


@pytest.mark.parametrize("schedule", PRODUCTS)
def test_larger_tiles_need_more_lines(schedule: str) -> None:
    small, large = Tile(64, 64, 64, 4, 16, 16, 16), Tile(64, 64, 64, 8, 32, 32, 16)
    assert t_m(schedule, small) < t_m(schedule, large)
    assert c_m(schedule, small) > c_m(schedule, large)


def test_conv_opt_copies_weights_with_fewer_misses() -> None:
    """Remark 1: usually; the rest is the same."""
    t = ConvTile(1, 64, 56, 56, 64, 3, 3, 14, 16, 16, 16, 1, 1)
    assert (t.oh, t.ow, t.window, t.chunks) == (56, 56, 16, (4, 4, 4))
    assert c_c(CONV, t) - c_c(CONVOPT, t) == 64 * 64 * 3 * 2 - 64 * 4 * (9 + 1)
    assert t_c(CONV, t) >= t_c(CONVOPT, t)


def test_im2col_is_a_product_of_pixels_and_filters() -> None:
    t = ConvTile(2, 8, 6, 6, 16, 3, 3, 3, 4, 8, 16, 1, 1)
    assert t.product == Tile(72, 72, 16, 3, 36, 8, 16)
    assert c_im2col(RPMM, t) > c_m(RPMM, t.product)
    assert t_im2col(RPMM, t) >= t_m(RPMM, t.product)
