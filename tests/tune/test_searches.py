"""Searches on spaces whose every time is known."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from statistics import mean

import pytest

from swirl.cost.time import Demand
from swirl.tune.searches import BATCH, SEARCHES, Search, run_search
from swirl.tune.spaces import Draw


@dataclass(frozen=True)
class Number:
    """A point of a made-up space."""

    value: int

    @property
    def key(self) -> str:
        return str(self.value)


class Line:
    """The numbers below ``size``: loads grow with the distance from ``best``, and so does the time, which the model
    gets wrong by a factor for every third."""

    def __init__(self, size: int, best: int):
        self.size, self.best, self.seen = size, best, set[int]()

    def seconds(self, draw: Draw) -> float:
        return 1e-3 * (1 + abs(int(draw.point.key) - self.best) / self.size)

    def draw(self, random: Random) -> Draw | None:
        rest = [value for value in range(self.size) if value not in self.seen]
        return self._made(random.choice(rest)) if rest else None

    def neighbour(self, of: Draw, random: Random) -> Draw | None:
        near = sorted(
            (v for v in range(self.size) if v not in self.seen), key=lambda value: abs(value - int(of.point.key))
        )
        return self._made(random.choice(near[:4])) if near else None

    def _made(self, value: int) -> Draw:
        self.seen.add(value)
        loads = 1000 + 1000 * abs(value - self.best) // self.size
        demand = Demand(10, loads, 10 + value % 7, 1.0, 100, 100, 100, 1)
        wrong = 2.0 if value % 3 == 0 else 1.0
        return Draw(Number(value), demand, loads * wrong)  # type: ignore[arg-type]


def best_of(method: str, seed: int, trials: int, size: int = 1000) -> float:
    """The shortest time that a search finds."""
    line = Line(size, best=size // 3)
    found: list[float] = []

    def measured(batch: Sequence[Draw]) -> list[float]:
        times = [line.seconds(draw) for draw in batch]
        found.extend(times)
        return times

    run_search(SEARCHES[method](line, Random(seed)), measured, lambda: len(found) < trials)
    return min(found[:trials])


@pytest.mark.parametrize(("wanted", "sent"), [(1, 1), (2, 2), (9, 3)])
def test_a_search_is_measured_batch_by_batch(wanted: int, sent: int) -> None:
    """To the end of the batch after which no other one is wanted, or of the search; an empty batch ends it, too."""
    told: list[object] = []

    def steps() -> Search:
        for number in range(3):
            told.append((yield [Line(9, 1)._made(number)]))
        yield []

    measured: list[str] = []

    def measure(batch: Sequence[Draw]) -> list[float | None]:
        measured.extend(draw.point.key for draw in batch)
        return [None] if len(measured) == 2 else [1.0]

    run_search(steps(), measure, lambda: len(measured) < wanted)
    assert measured == ["0", "1", "2"][:sent]
    assert told == [[1.0], [None], [1.0]][: min(wanted - 1, 3)]


@pytest.mark.parametrize("method", SEARCHES)
def test_every_search_ends_with_a_small_space_and_draws_nothing_twice(method: str) -> None:
    line = Line(20, best=3)
    steps = SEARCHES[method](line, Random(1))
    keys: list[str] = []
    try:
        batch = next(steps)
        while batch:
            assert len(batch) <= BATCH
            keys += [draw.point.key for draw in batch]
            batch = steps.send([None if len(keys) % 3 == 0 else line.seconds(draw) for draw in batch])
    except StopIteration:
        pass
    assert len(keys) == len(set(keys))
    assert sorted(map(int, keys)) == list(range(20))


@pytest.mark.parametrize("method", SEARCHES)
def test_a_seed_gives_the_same_search(method: str) -> None:
    assert best_of(method, 3, 24) == best_of(method, 3, 24)


@pytest.mark.parametrize("method", [name for name in SEARCHES if name != "random"])
def test_searches_find_more_than_random_draws(method: str) -> None:
    by_method = mean(best_of(method, seed, 32) for seed in range(8))
    at_random = mean(best_of("random", seed, 32) for seed in range(8))
    assert by_method < at_random


@pytest.mark.parametrize("method", SEARCHES)
def test_refused_points_are_no_end(method: str) -> None:
    line = Line(200, best=50)
    steps = SEARCHES[method](line, Random(2))
    batch = next(steps)
    for _ in range(4):
        batch = steps.send([None for _ in batch])
        assert batch


@pytest.mark.parametrize("method", SEARCHES)
def test_a_space_without_further_points_is_not_asked_again_and_again(method: str) -> None:
    class Empty(Line):
        asked = 0

        def draw(self, random: Random) -> Draw | None:
            self.asked += 1
            return super().draw(random)

    line = Empty(BATCH, best=1)
    steps = SEARCHES[method](line, Random(0))
    batch: Sequence[Draw] = next(steps)
    with suppress(StopIteration):
        while True:
            batch = steps.send([line.seconds(each) for each in batch])
    assert line.asked <= BATCH + 4  # each question is many tries
