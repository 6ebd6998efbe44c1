"""Combinations of register tiles: which sizes, and one register tile after the other."""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest

from swirl.errors import CommandError
from swirl.schedule.recipe import Schedule
from swirl.target.targets import Target, get_target
from swirl.transforms import COMMANDS
from swirl.transforms.passes.hoist import hoist
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from swirl.transforms.rewrites.loops.tile_sizes import combination
from tests.support import assert_all_compile_to_same, assert_same, program


@pytest.mark.parametrize(
    ("extent", "factors", "expected"),
    [
        (17, 6, [6, 6, 5]),
        (34, 12, [12, 11, 11]),
        (7, 4, [4, 3]),
        (7, 14, [7]),
        (13, 14, [13]),
        (13, 6, [5, 4, 4]),
        (56, 14, [14] * 4),
        (55, 14, [14, 14, 14, 13]),
        (1, 6, [1]),
        (128, [6, 7], [7] * 14 + [6] * 5),
        (20, [4, 7], [4] * 5),
        (1001, [1], [1] * 1001),
    ],
)
def test_sizes(extent: int, factors: int | list[int], expected: list[int]) -> None:
    assert combination(extent, factors) == expected


def test_no_combination_is_shorter_or_more_even() -> None:
    for sizes in ([1, 2, 3, 4], [3, 4], [2, 5, 6], [4, 7, 9]):
        for extent in range(1, 25):
            found = [
                sorted(tiles, reverse=True)
                for count in range(1, extent + 1)
                for tiles in combinations_with_replacement(sizes, count)
                if sum(tiles) == extent
            ]
            if not found:
                with pytest.raises(CommandError, match="allow smaller tiles"):
                    combination(extent, sizes)
                continue
            best = min(found, key=lambda tiles: (len(tiles), -min(tiles), max(tiles)))
            got = combination(extent, sizes)
            assert (len(got), min(got), max(got)) == (len(best), min(best), max(best))
            assert sum(got) == extent and got == sorted(got, reverse=True)


def test_long_loops_take_no_longer() -> None:
    sizes = combination(1_000_003, 14)
    assert sum(sizes) == 1_000_003 and len(sizes) == -(-1_000_003 // 14) and min(sizes) >= 13
    assert combination(1_000_003, 600_000) == [500_002, 500_001]
    assert combination(7, 10**12) == [7]


@pytest.mark.parametrize(("extent", "factors"), [(0, 4), (5, 0), (5, []), (5, [0, 1]), (5, [7])])
def test_bad_arguments(extent: int, factors: int | list[int]) -> None:
    with pytest.raises(CommandError):
        combination(extent, factors)


CONVOLUTION = """
for k in range(2):
    for x in range(EXTENT):
        acc: float32 = bias[k]
        for c in range(3):
            acc += weights[k, c] * inputs[c, x]
        value[k, x] = acc
"""


def register_tiles(extent: int, largest: int) -> tuple[Schedule, list[int]]:
    """A recipe's register tiles over the pixels of a 1 × 1 convolution, channels vectorised by 8."""
    text = CONVOLUTION.replace("EXTENT", str(extent))
    shapes = {"bias": (2,), "weights": (2, 3), "inputs": (3, extent), "value": (2, extent)}
    s = Schedule.alone({"forward": program(text, **shapes)}, get_target("avx512"))
    sizes = s.combination(extent, largest)
    s.unroll_and_jam("forward", "x", sizes)
    return s, sizes


def test_each_part_is_a_register_tile_of_its_own() -> None:
    s, sizes = register_tiles(17, 6)
    assert sizes == [6, 6, 5]
    assert s.loops("forward") == ("k", "x", "x_unrolled", "c", "x_1", "x_1_unrolled")
    text = s.programs["forward"].text
    assert "for x in range(0, 12, 6):\n            acc: float32[6] = empty(6)" in text
    assert "for x_1 in range(12, 17, 5):\n            acc: float32[5] = empty(5)" in text


def test_parts_are_schedulable_by_themselves() -> None:
    before = program("for x in range(17):\n for c in range(32):\n  y[x, c] = z[c] * 2.0", y=(17, 32), z=(32,))
    s = Schedule.alone({"forward": before}, get_target("avx512"))
    made = s.tile_loop("forward", "x", [6, 6, 5])
    assert made == ("x_outer", "x_inner", "x_1_outer", "x_1_inner")
    s.interchange("forward", ["x_1_inner", "c"])
    s.parallelize("forward", "x_outer")
    assert_same(before, s.programs["forward"])


@pytest.mark.parametrize("extent", [1, 2, 5, 7, 13, 17, 34])
@pytest.mark.parametrize("largest", [1, 4, 6, 14])
def test_register_tiles_compute_exactly_the_same(extent: int, largest: int) -> None:
    s, _ = register_tiles(extent, largest)
    text = CONVOLUTION.replace("EXTENT", str(extent))
    before = program(text, bias=(2,), weights=(2, 3), inputs=(3, extent), value=(2, extent))
    assert_same(before, hoist(scalar_replace(tidy(s.programs["forward"]))))


@pytest.mark.parametrize(("extent", "largest"), [(7, 12), (17, 6)])
def test_register_tiles_compile_to_the_same_bits(extent: int, largest: int, target: Target) -> None:
    """A row in one tile; tiles of two sizes, one of them several times."""
    scheduled = register_tiles(extent, largest)[0].programs["forward"]
    vectorised = COMMANDS["vectorize"](scheduled, "k", 2, strided="gather")
    assert_all_compile_to_same([hoist(scalar_replace(tidy(p))) for p in (scheduled, vectorised)], target)
