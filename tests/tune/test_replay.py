"""Searches on the logs that are kept: one that does not find more than random draws has no place here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import isinf
from pathlib import Path
from random import Random
from statistics import geometric_mean

import pytest

from swirl.cost.time import Demand
from swirl.tune.expect import expect
from swirl.tune.log import MEASURED, CandidateLine, read_log
from swirl.tune.replay import best_after, replayed
from swirl.tune.searches import SEARCHES

LOGS = sorted((Path(__file__).parents[2] / "benchmarks" / "tuning").glob("*.jsonl.gz"))
TRIALS, SEEDS = (10, 30, 100), 12


def made_up(count: int, seed: int = 1) -> list[CandidateLine]:
    """Candidates whose time grows with their loads."""
    random, lines = Random(seed), []
    for number in range(count):
        loads = random.randint(100, 1000)
        model = asdict(Demand(10, loads, 10, 1.0, 100, 100, 100, 1))
        times = [loads * random.uniform(0.9, 1.1)] * 3
        outcome = "wrong" if number % 10 == 9 else MEASURED
        lines.append(
            CandidateLine(
                "s", f"k{number}", "varied", {}, [["unroll", loads]], outcome, "", times, [500.0] * 3, loads, model
            )
        )
    return lines


@pytest.mark.parametrize("method", SEARCHES)
def test_each_candidate_is_tried_once(method: str) -> None:
    lines = made_up(50)
    found = replayed(SEARCHES[method], lines, 3)
    assert len(found) == 50 and sum(map(isinf, found)) == 5
    assert sorted(each for each in found if not isinf(each)) == sorted(line.ratio for line in lines if line.ratio)
    assert found == replayed(SEARCHES[method], lines, 3) != replayed(SEARCHES[method], lines, 4)


def test_a_good_model_finds_the_best_first() -> None:
    found = best_after(made_up(200), [8, 16], 5)
    assert found["model"][0] > found["random"][0] and found["random"][0] <= found["random"][1] <= 1
    assert all(len(values) == 2 for values in found.values())


def read(path: Path) -> list[CandidateLine]:
    return [line for line in read_log(path) if isinstance(line, CandidateLine)]


def random_draws(lines: Sequence[CandidateLine]) -> list[float]:
    """What of a log was drawn at random, as times as fast as the known schedule."""
    return [1 / line.ratio for line in lines if line.ratio is not None and line.method == "random"]


@pytest.mark.skipif(not LOGS, reason="no logs are kept")
def test_searches_beat_random_draws_on_the_logs() -> None:
    every = [best_after(read(path), TRIALS, SEEDS) for path in LOGS]
    means = {name: [geometric_mean(found[name][n] for found in every) for n in range(len(TRIALS))] for name in SEARCHES}
    for name in SEARCHES:
        if name != "random":
            better = [ours > drawn for ours, drawn in zip(means[name], means["random"], strict=True)]
            assert any(better), (name, means)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name.partition(".")[0])
def test_expect_of_the_logs(path: Path) -> None:
    drawn = random_draws(read(path))
    values = [expect(drawn, count, 0.9) for count in (1, 10, 30, 100)]
    assert values == sorted(values) and values[-1] <= max(drawn)
