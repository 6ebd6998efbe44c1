"""``expect`` beside the definition, and beside simulated draws."""

from __future__ import annotations

from random import Random

import pytest

from swirl.tune.expect import TAUS, best_so_far, expect


def probability(performances: list[float], draws: int, wanted: float) -> float:
    """That the best of so many draws, with replacement, is at least the wanted one."""
    share = sum(each >= wanted for each in performances) / len(performances)
    return 1 - (1 - share) ** draws


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("draws", [1, 2, 7, 25, 40, 1000])
def test_it_is_the_best_performance_of_that_probability(draws: int, tau: float) -> None:
    random = Random(3)
    performances = [float(random.randint(0, 60)) for _ in range(200)]
    found = expect(performances, draws, tau)
    assert probability(performances, draws, found) >= tau - 1e-9
    better = [each for each in performances if each > found]
    assert not better or probability(performances, draws, min(better)) < tau


def test_it_is_what_draws_give() -> None:
    random = Random(5)
    performances = [random.random() for _ in range(1000)]
    found = expect(performances, 25, 0.9)
    reached = sum(max(random.choices(performances, k=25)) >= found for _ in range(4000)) / 4000
    assert reached == pytest.approx(0.9, abs=0.02)


def test_more_draws_are_never_worse() -> None:
    performances = [1.0, 5.0, 5.0, 8.0]
    values = [expect(performances, draws, 0.5) for draws in range(1, 50)]
    assert values == sorted(values) and values[-1] == 8.0
    assert expect([3.0], 1, 0.9) == 3.0


@pytest.mark.parametrize("given", [([], 1, 0.5), ([1.0], 0, 0.5), ([1.0], 1, 0.0), ([1.0], 1, 1.0)])
def test_bad_numbers(given: tuple[list[float], int, float]) -> None:
    with pytest.raises(ValueError, match="expect of"):
        expect(*given)


def test_the_best_so_far() -> None:
    assert best_so_far([2.0, 1.0, 3.0]) == [2.0, 2.0, 3.0]
    assert best_so_far([]) == []
