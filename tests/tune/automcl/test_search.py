"""Boosted trees; AutoMCL's search and AutoTVM's on made-up configurations whose times are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import log2
from random import Random
from statistics import mean
from typing import Any

import numpy as np
import pytest

from swirl.cost.time import Demand
from swirl.tune.automcl.search import (
    AUTOTVM,
    Encoder,
    annealing_search,
    configuration_search,
)
from swirl.tune.automcl.trees import Trees, fitted, ranked
from swirl.tune.log import MEASURED, CandidateLine
from swirl.tune.replay import LoggedPool, replayed
from swirl.tune.searches import BATCH, Search, Source, random_search
from swirl.tune.spaces import Draw


# --- trees --------------------------------------------------------------------------------------------------
def made_up(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    rows = random.integers(0, 10, (count, 3)).astype(float)
    return rows, np.where(rows[:, 0] > 4, 3.0, 1.0) + np.abs(rows[:, 1] - 6) / 4


def test_trees_learn_steps_and_valleys() -> None:
    rows, values = made_up(200)
    others, wanted = made_up(100, 1)
    found = fitted(rows, values)
    assert float(np.mean((found.predict(others) - wanted) ** 2)) < 0.05 * float(np.var(wanted))


def test_ranking_learns_an_order() -> None:
    rows, values = made_up(60)
    others, wanted = made_up(60, 1)
    predicted = ranked(rows, values).predict(others)
    apart = np.abs(wanted[:, None] - wanted[None, :]) > 0.3
    right = (predicted[:, None] > predicted[None, :]) == (wanted[:, None] > wanted[None, :])
    assert right[apart].mean() > 0.9


def test_one_row_and_equal_rows() -> None:
    one = np.array([[1.0, 2.0]])
    assert fitted(one, np.array([4.0])).predict(one) == pytest.approx([4.0])
    same = np.ones((5, 2))
    assert fitted(same, np.arange(5.0)).predict(same) == pytest.approx([2.0] * 5)


def test_trees_are_written_and_read() -> None:
    rows, values = made_up(50)
    found = fitted(rows, values)
    again = Trees.read(found.written())
    assert np.array_equal(again.predict(rows), found.predict(rows))
    damaged = found.written()
    damaged["trees"][0]["left"][0] = 0  # the root below itself: evaluating would not end
    with pytest.raises(ValueError, match="not in order"):
        Trees.read(damaged)
    damaged = found.written()
    damaged["trees"][0]["value"].pop()
    with pytest.raises(ValueError, match="several lengths"):
        Trees.read(damaged)


# --- searches -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Chosen:
    """A point of made-up configurations."""

    knobs: Mapping[str, Any]

    @property
    def key(self) -> str:
        return str(self.knobs)


SIZES = [2**power for power in range(7)]
EVERY = [
    {"schedule": schedule, "M_t": mt, "N_t": nt, "K_t": kt}
    for schedule, mt, nt, kt in product(("A", "B"), SIZES, SIZES, SIZES)
    if mt * nt <= 2**8
]


def seconds(configuration: Mapping[str, Any], refuses: bool = False) -> float | None:
    """Best is B at 16 × 32 × 64; all with K_t of 1 are wrong, if so asked."""
    if refuses and configuration["K_t"] == 1:
        return None
    away = sum(abs(log2(configuration[name]) - at) for name, at in (("M_t", 4), ("N_t", 5), ("K_t", 6)))
    return 1e-3 * (1 + 0.3 * away + (configuration["schedule"] == "A"))


class Configured:
    """A source that lists its configurations, every seventh of which is refused."""

    def __init__(self, every: Sequence[Mapping[str, Any]] = EVERY):
        self.every, self.asked = list(every), list[str]()

    def configurations(self) -> Sequence[Mapping[str, Any]]:
        return self.every

    def at(self, configuration: Mapping[str, Any]) -> Draw | None:
        self.asked.append(str(configuration))
        if self.every.index(configuration) % 7 == 6:
            return None
        return Draw(Chosen(configuration), Demand(1, 1, 1, 1.0, 1, 1, 1, 1), 1.0)  # type: ignore[arg-type]

    def draw(self, random: Random) -> Draw | None:
        return self.at(random.choice(self.every))

    def neighbour(self, of: Draw, random: Random) -> Draw | None:
        return self.draw(random)


METHODS: dict[str, Callable[[Source, Random], Search]] = {"ours": configuration_search, "theirs": annealing_search}


def run(method: Callable[[Source, Random], Search], seed: int, trials: int, refuses: bool = False) -> list[float]:
    """The times that a search is told, in its order."""
    pool, found = Configured(), list[float]()
    steps = method(pool, Random(seed))
    batch = next(steps)
    while len(found) < trials:
        times = [seconds(draw.point.knobs, refuses) for draw in batch]
        found += [1.0 if each is None else each for each in times]
        batch = steps.send(times)
    assert len(pool.asked) == len(set(pool.asked))
    return found[:trials]


@pytest.mark.parametrize("name", METHODS)
def test_they_find_more_than_random_draws(name: str) -> None:
    at_random = mean(min(run(random_search_of_configurations, seed, 48)) for seed in range(3))
    assert mean(min(run(METHODS[name], seed, 48, refuses=seed > 1)) for seed in range(3)) < at_random


def random_search_of_configurations(pool: Source, random: Random) -> Search:
    assert isinstance(pool, Configured)
    shuffled = random.sample(pool.every, len(pool.every))
    while True:
        yield [draw for draw in (pool.at(shuffled.pop()) for _ in range(BATCH)) if draw is not None]


@pytest.mark.parametrize("name", METHODS)
def test_a_seed_gives_the_same_search(name: str) -> None:
    assert run(METHODS[name], 3, 24) == run(METHODS[name], 3, 24) != run(METHODS[name], 4, 24)


@pytest.mark.parametrize("name", METHODS)
def test_a_small_space_ends_and_batches_are_small(name: str) -> None:
    pool, keys = Configured(EVERY[:20]), list[str]()
    steps = METHODS[name](pool, Random(1))
    batch: Sequence[Draw] | None = next(steps)
    while batch:
        assert len(batch) <= BATCH
        keys += [draw.point.key for draw in batch]
        try:
            batch = steps.send([None if len(keys) % 3 == 0 else seconds(draw.point.knobs) for draw in batch])
        except StopIteration:
            break
    assert len(set(keys)) == len(keys) == 18  # two are refused


def test_autotvm_fits_after_64() -> None:
    """Its first 64 are at random, and nothing is fitted before."""
    found: list[list[str]] = []
    for wrong in (1.0, 2.0):  # other times, another search
        pool = Configured()
        steps = annealing_search(pool, Random(5), AUTOTVM)
        batch, keys = next(steps), list[str]()
        while len(keys) < AUTOTVM + BATCH:
            keys += [draw.point.key for draw in batch]
            batch = steps.send([(seconds(draw.point.knobs) or 0) * (wrong if len(keys) % 16 else 1) for draw in batch])
        found.append(keys)
    assert found[0][:AUTOTVM] == found[1][:AUTOTVM]
    assert found[0][AUTOTVM:] != found[1][AUTOTVM:]


def test_words_have_places_of_their_own() -> None:
    encoder = Encoder([{"schedule": "A", "M_t": 1}, {"schedule": "B", "OW_t": 7}])
    assert encoder.rows([{"schedule": "A", "M_t": 3}]).tolist() == [[1, 0, 2, 0]]
    assert encoder.rows([{"schedule": "B", "OW_t": 7}]).tolist() == [[0, 1, 0, 3]]


def lines() -> list[CandidateLine]:
    """A log of all configurations; times beside 1 ms."""
    model = dict(
        zip(("multiply_adds", "loads", "stores", "lanes", "level1", "level2", "memory", "shares"), [1] * 8, strict=True)
    )
    return [
        CandidateLine("s", f"k{n}", "B", each, [], MEASURED, "", [seconds(each) or 0] * 3, [1e-3] * 3, 1.0, model)
        for n, each in enumerate(EVERY)
    ]


@pytest.mark.parametrize("name", METHODS)
def test_logs_are_replayed(name: str) -> None:
    found = replayed(METHODS[name], lines()[:60], 2)
    assert len(found) == 60 and found == replayed(METHODS[name], lines()[:60], 2)
    best = mean(min(replayed(METHODS[name], lines(), seed, 40)) for seed in range(3))
    assert best < mean(min(replayed(random_search, lines(), seed, 40)) for seed in range(3))


def test_a_log_without_configurations_is_drawn_from() -> None:
    plain = [CandidateLine(**{**vars(line), "knobs": {}}) for line in lines()[:30]]
    assert not LoggedPool(plain).configurations()
    assert len(replayed(configuration_search, plain, 1)) == 30
