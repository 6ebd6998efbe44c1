"""Which cache serves a working set, and equation 1."""

from __future__ import annotations

import pytest

from swirl.cost.time import Rates
from swirl.measure.rates import Limits
from swirl.run.runner import Runner
from swirl.target.targets import TARGETS
from swirl.tune.polydl.caches import Hierarchy, Level, cost, measured_hierarchy, served, sizes
from swirl.tune.polydl.working_sets import working_sets
from tests.support import program

SMALL = Hierarchy((Level(100, 1.0, 4.0), Level(1000, 4.0, 2.0), Level(10000, 20.0, 1.0)), Level(0, 90.0, 0.5))


def test_each_working_set_is_in_the_fastest_cache_with_room_for_it() -> None:
    assert served([60, 30], SMALL) == (90, 0, 0, 0)
    # 60 and 30 leave 10 of the first cache; the order in which they are found does not matter.
    assert served([50, 60, 30], SMALL) == served([30, 60, 50], SMALL) == (80, 60, 0, 0)
    assert served([100, 101, 1000, 20000], SMALL) == (100, 101, 1000, 20000)
    assert served([], SMALL) == (0, 0, 0, 0)


def test_what_fits_no_cache_comes_from_memory() -> None:
    without = Hierarchy((SMALL.caches[0], SMALL.caches[1], Level(0, 0.0, 0.0)), SMALL.memory)
    assert served([2000, 9000], SMALL) == (0, 0, 2000, 9000)
    assert served([2000, 9000], without) == (0, 0, 0, 11000)


def test_equation_1() -> None:
    assert cost((100, 200, 300, 400), SMALL) == 100 * 1 / 4 + 200 * 4 / 2 + 300 * 20 / 1 + 400 * 90 / 0.5
    assert cost((0, 0, 0, 0), SMALL) == 0


def test_the_least_and_the_most_of_a_dependence_count() -> None:
    text = "for i in range(3):\n for j in range(4):\n  for k in range(5):\n   C[i, j] += A[i, k] * B[k, j]"
    found = working_sets(program(text, A=(3, 5), B=(5, 4), C=(3, 4)))
    assert sorted(sizes(found)) == sorted(4 * size.elements for each in found for size in (each.least, each.most))


def test_this_machines_hierarchy() -> None:
    target, rates = TARGETS["portable"], Rates(1e10, 5e10, 2e10, 1e10)
    found = measured_hierarchy(target, Limits(target, Runner(1)), rates, 2**23)
    assert [each.bytes for each in found.caches] == [target.l1_bytes, target.l2_bytes, 2**23]
    assert all(each.latency > 0 and each.cost > 0 for each in (*found.caches, found.memory))
    assert [each.bandwidth for each in (*found.caches[1:], found.memory)] == [5e10, 2e10, 1e10]
    none = measured_hierarchy(target, Limits(target, Runner(1)), rates, 0).caches[2]
    assert none == Level(0, 0.0, 0.0) and none.cost == pytest.approx(0)
