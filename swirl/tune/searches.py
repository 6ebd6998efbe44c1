"""Searches: which points of a space are measured, in which order. All have one signature: a generator that yields
batches of draws, and is sent the seconds of each (None of one that was refused, wrong, or hung).

A search that does not beat ``random`` on the logs that are kept is taken out; ``tests/tune`` replays them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import astuple
from itertools import islice
from math import log
from random import Random
from typing import Protocol

import numpy as np

from swirl.cost.time import Demand
from swirl.tune.spaces import Draw

BATCH = 8
"""Points that are compiled together."""
DRAWN = 4
"""Points that are drawn for each that is measured: a draw costs a tenth of a measurement."""
PARENTS = 6
"""Points that the evolutionary search goes on from."""
CURIOUS = 4
"""Of so many points one is drawn at random where the others follow what was measured: the fit may be wrong."""
RIDGE = 1e-2
"""What large coefficients of a fit cost, beside its squared errors."""

Batch = Sequence[Draw]
Times = Sequence["float | None"]
Search = Generator[Batch, Times, None]


class Source(Protocol):
    """What a search draws from: a :class:`swirl.tune.spaces.Pool`, or the points of a log."""

    def draw(self, random: Random) -> Draw | None:
        """A new point."""

    def neighbour(self, of: Draw, random: Random) -> Draw | None:
        """A new point near one."""

    def following(self) -> Draw | None:
        """The next new point of the ranking that the space has; None at its end."""


def run_search(steps: Search, measure: Callable[[Batch], Times], more: Callable[[], bool]) -> None:
    """Measure what a search asks for, to its end.

    Args:
        steps: the search.
        measure: the seconds of a batch; it remembers what it needs.
        more: whether another batch is wanted; one that has begun is measured to its end.
    """
    batch = next(steps, None)
    while batch:
        times = measure(batch)
        if not more():
            return
        try:
            batch = steps.send(times)
        except StopIteration:
            return


def _drawn(pool: Source, random: Random, count: int) -> list[Draw]:
    """As many draws, or fewer where one was not found in many tries: there are hardly more."""
    found: list[Draw] = []
    while len(found) < count and (draw := pool.draw(random)) is not None:
        found.append(draw)
    return found


def random_search(pool: Source, random: Random) -> Search:
    """Points as they are drawn."""
    while batch := _drawn(pool, random, BATCH):
        yield batch


def model_search(pool: Source, random: Random) -> Search:
    """Of many points, those that the cost model takes for the fastest."""
    waiting: list[Draw] = []
    while True:
        waiting += _drawn(pool, random, BATCH * DRAWN)
        waiting.sort(key=lambda draw: draw.predicted)
        if not waiting:
            return
        batch, waiting = waiting[:BATCH], waiting[BATCH:]
        yield batch


def regression_search(pool: Source, random: Random) -> Search:
    """Of many points, those that a fit takes for the fastest: the logarithm of the seconds is linear in those of the
    model's terms, by ridge regression on what was measured so far. The first batch follows the model."""
    waiting: list[Draw] = []
    known: list[tuple[Draw, float]] = []
    while True:
        waiting += _drawn(pool, random, BATCH * DRAWN)
        if not waiting:
            return
        guess = _fitted(known)
        waiting.sort(key=guess)
        curious = BATCH // CURIOUS if known else 0
        batch, waiting = waiting[: BATCH - curious], waiting[BATCH - curious :]
        for _ in range(min(curious, len(waiting))):
            batch.append(waiting.pop(random.randrange(len(waiting))))
        times = yield batch
        known += [(draw, seconds) for draw, seconds in zip(batch, times, strict=True) if seconds is not None]


def evolutionary_search(pool: Source, random: Random) -> Search:
    """Points near the fastest so far, of which those that the model takes for the fastest; a quarter as they are drawn.
    The first batch follows the model."""
    known: list[tuple[float, int, Draw]] = []
    waiting: list[Draw] = []
    while True:
        if not known:
            waiting += _drawn(pool, random, BATCH * DRAWN)
        parents = [draw for *_, draw in sorted(known)[:PARENTS]]
        near = (pool.neighbour(random.choice(parents), random) for _ in range(BATCH * DRAWN // 2) if parents)
        waiting = sorted([*waiting, *(each for each in near if each is not None)], key=lambda draw: draw.predicted)
        curious = BATCH // CURIOUS if known else 0
        batch = [*waiting[: BATCH - curious], *_drawn(pool, random, curious)]
        waiting = waiting[BATCH - curious :]
        if not batch:
            return
        times = yield batch
        known += [(s, len(known) + n, d) for n, (d, s) in enumerate(zip(batch, times, strict=True)) if s is not None]


def ranked_search(pool: Source, random: Random) -> Search:
    """Points in the order of their space's ranking, up to its end."""
    while batch := list(islice(iter(pool.following, None), BATCH)):
        yield batch


def _terms(demand: Demand) -> list[float]:
    """The logarithms of a demand's numbers."""
    return [log(1 + abs(value)) for value in astuple(demand)]


def _fitted(known: Sequence[tuple[Draw, float]]) -> Callable[[Draw], float]:
    """What a fit to measured points says of a draw; the model itself, where little was measured."""
    if len(known) < BATCH // 2:
        return lambda draw: draw.predicted
    rows = np.array([[*_terms(draw.demand), log(draw.predicted)] for draw, _ in known])
    seconds = np.log([seconds for _, seconds in known])
    mean, spread = rows.mean(axis=0), rows.std(axis=0) + 1e-9
    scaled, level = (rows - mean) / spread, seconds.mean()
    penalty = RIDGE * len(known) * np.eye(rows.shape[1])
    weights = np.linalg.solve(scaled.T @ scaled + penalty, scaled.T @ (seconds - level))

    def guess(draw: Draw) -> float:
        row = (np.array([*_terms(draw.demand), log(draw.predicted)]) - mean) / spread
        return float(row.clip(-3, 3) @ weights + level)

    return guess


SEARCHES: Mapping[str, Callable[[Source, Random], Search]] = {
    "random": random_search,
    "model": model_search,
    "regression": regression_search,
    "evolution": evolutionary_search,
}
"""By the name that ``latte tune --method`` takes."""
RANKED = "ranked"
"""The name of :func:`ranked_search`, for spaces that have a ranking."""
