"""The ranker, declared and trained in Latte from made-up logs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from random import Random

import numpy as np
import pytest

from latte.tools.tune.ranker import (
    BATCH,
    MOST_PAIRS,
    Layer,
    RankerNet,
    Tried,
    compared,
    layers_of,
    pairs_right,
    read_layers,
    trained,
)
from swirl.errors import LatteError
from swirl.tune.log import MEASURED, CandidateLine, Log, SubjectLine
from swirl.tune.polydl.ranker import LAYERS, Ranker, layer_shapes

COSTS = (0.01, 0.05, 0.3, 1.0)
"""Of a byte from each level, in the machine of these logs. Equation 1 knows others."""


def layer(net: str, name: str, random: Random, variants: int = 12) -> Layer:
    """Its times are those of what the levels serve, with 3 % of noise."""
    tried = []
    for number in range(variants):
        statistics = tuple(random.uniform(0, 1) ** 2 * 10 ** random.uniform(3, 6) for _ in COSTS)
        time = sum(each * by for each, by in zip(statistics, COSTS, strict=True)) * random.uniform(0.97, 1.03)
        tried.append(Tried(statistics, random.uniform(1, 2), time, number == 3))
    return Layer(net, name, "avx2, 2 threads, a machine", tuple(tried))


def layers(seed: int = 0) -> list[Layer]:
    random = Random(seed)
    return [layer(net, f"{number}", random) for net in ("one", "other") for number in range(6)]


def test_the_net_of_the_paper_computes_what_numpy_does() -> None:
    made = RankerNet.declared(seed=3)
    assert [each.shape for each in made.dense] == [(count,) for count, _ in LAYERS]
    ranker = made.ranker({})
    assert [each.shape for each in ranker.weights] == layer_shapes()
    pairs = np.random.default_rng(0).random((BATCH, 8)).astype(np.float32)
    scores = made.net.predict(pairs, layer=made.dense[-1])
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    # Sums of at most 64 products near 1 in float32, five times after each other.
    assert ranker.outputs(pairs) == pytest.approx(raised / raised.sum(axis=1, keepdims=True), abs=1e-5)


def test_training_finds_what_the_times_are_made_of() -> None:
    known, told = layers(), []
    ranker = trained(known, 60, 0, told.append)
    unseen = layers(seed=7)
    assert pairs_right(unseen, ranker) > 0.8
    (one, other) = compared(unseen, ranker).values()
    for found in (one, other):
        assert found.layers == 6 and found.ranker > 0.75 and found.ranker > found.chance
    card = ranker.card
    assert card["trained on"] == {"one": 6, "other": 6} and card["measured on"] == "avx2, 2 threads, a machine"
    held_out = card["nets that rankers had not seen"]
    assert set(held_out) == {"one", "other"} and len(told) == 2
    assert all(0 < each["chance"] <= 1 and each["pairs right"] > 0.7 for each in held_out.values())
    assert Ranker.read(ranker.written(), "here").card == card


def test_the_same_seed_gives_the_same_weights() -> None:
    known = [layer("one", f"{number}", Random(number), 5) for number in range(3)]
    first, second, other = (trained(known, 2, seed, print) for seed in (0, 0, 1))
    assert all((a == b).all() for a, b in zip(first.weights, second.weights, strict=True))
    assert not (first.weights[0] == other.weights[0]).all()
    assert first.card["nets that rankers had not seen"] == "there is one net: nothing was held out"


def test_layers_that_are_alike_are_left_out() -> None:
    one = layer("one", "1", Random(0))
    alike = replace(one, tried=tuple(replace(each, time=1 + n / 200) for n, each in enumerate(one.tried)))
    assert layers_of([one, alike]) == [one]
    with pytest.raises(LatteError, match="no layer whose variants differ"):
        trained([alike], 1, 0, print)
    elsewhere = replace(one, measured_on="another machine")
    with pytest.raises(LatteError, match="train a ranker for each"):
        trained([one, elsewhere], 1, 0, print)


def test_picks_beside_the_fastest() -> None:
    tried = [Tried((1.0, 0, 0, 0), cost, time, time == 3) for cost, time in ((3, 1.0), (1, 2.0), (2, 3.0))]
    (found,) = compared([Layer("one", "1", "", tuple(tried))], None).values()
    assert found.chance == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert (found.default, found.equation, found.ranker) == (pytest.approx(1 / 3), 0.5, 0.0)


def test_large_layers_do_not_outweigh_the_others() -> None:
    card = trained([layer("one", "1", Random(0), 60)], 1, 0, print).card
    assert card["pairs"] == MOST_PAIRS < 60 * 59


# --- logs ---------------------------------------------------------------------------------------------------
def lines() -> Iterator[SubjectLine | CandidateLine]:
    yield SubjectLine("s", "resnet-50/03", ("conv",), "forward", "avx2", 2, "this", "gcc", 2, {}, None)
    for number in range(4):
        knobs = {"statistics": [1.0, 2.0, 3.0, float(number)], "cost": number, "rank": number}
        knobs |= {"default": True} if number == 2 else {}
        yield CandidateLine("s", f"k{number}", "", knobs, [], MEASURED, "", [number + 1.0], [1.0])
    yield CandidateLine("s", "k9", "", {"statistics": [1.0, 2.0, 3.0, 4.0]}, [], "wrong", "other results")
    yield CandidateLine("s", "k8", "", {"scheme": "of another search"}, [], MEASURED, "", [1.0], [1.0])
    yield SubjectLine("t", "conv1", ("conv",), "forward", "avx2", 2, "this", "gcc", 2, {}, None)
    yield CandidateLine("t", "k0", "", {"statistics": [1.0, 2.0, 3.0, 4.0]}, [], MEASURED, "", [1.0], [1.0])


def test_logs_are_read_without_what_was_not_measured(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for line in lines():
        log.tell(line)
    log.close()
    (found,) = read_layers(tmp_path)  # one variant alone says nothing
    assert (found.net, found.name, found.measured_on) == ("resnet-50", "03", "avx2, 2 threads, this")
    assert [each.time for each in found.tried] == [1.0, 2.0, 3.0, 4.0]
    assert [each.default for each in found.tried] == [False, False, True, False]
    assert prod(found.tried[1].statistics) == 6.0 and found.spread == 4.0
