"""Candidates from commands to times: legal by the compiler's checks, right by comparison, each with its outcome."""

from __future__ import annotations

from itertools import islice
from math import prod
from random import Random

from swirl.cost.time import Rates
from swirl.ir.nest import Program
from swirl.schedule.choices import Knob
from swirl.schedule.command_log import Recorded
from swirl.schedule.recipe import Recipe, Schedule
from swirl.schedule.rules.schedule import FOR_RECIPES
from swirl.target.targets import TARGETS, Target
from swirl.tune.candidates import Subject
from swirl.tune.evaluation import Evaluator
from swirl.tune.log import MEASURED
from swirl.tune.spaces import Around, Chosen, Decided, Point, Pool, Several
from tests.support import assert_same, program

TEXT = "for n in range(24):\n for k in range(32):\n  for c in range(17):\n   y[n, k] += x[n, c] * w[k, c]"
RATES = Rates(1e11, 1e11, 5e10, 1e10)


def product() -> Program:
    return program(TEXT, x=(24, 17), y=(24, 32), w=(32, 17))


def subject() -> Subject:
    return Subject.alone(product(), "forward", (), TARGETS["portable"])


def command(name: str, *arguments: object) -> Recorded:
    return Recorded(name, ("forward", *arguments), (), None)


KNOWN = (command("tile_loop", "k", 8), command("unroll_and_jam", "n", 4), command("parallelize", "n"))


def test_what_is_drawn_computes_the_same() -> None:
    space = Around(subject(), KNOWN)
    random = Random(4)
    drawn = [space.sample(random) for _ in range(6)]
    first = next(point for point in drawn if point is not None)
    near = space.neighbours(first, random)
    for point in (*drawn, next(near), next(near)):
        assert point is not None
        assert_same(product(), point.candidate.program)


def test_pools_draw_nothing_twice() -> None:
    pool = Pool(Around(subject(), KNOWN), TARGETS["portable"], RATES, 2, 2**25)
    random = Random(5)
    draws = [pool.draw(random) for _ in range(10)]
    found = [each for each in draws if each is not None]
    near = [pool.neighbour(found[0], random) for _ in range(5)]
    keys = [each.point.key for each in (*found, *near) if each is not None]
    assert len(keys) == len(set(keys)) > 10
    assert all(each.predicted > 0 for each in found)


def forward(s: Schedule, target: Target) -> None:
    size = s.choose("size", [2, 4, 5], default=4)
    if s.choose("inner", ["k", "c"], default="k") == "k":
        s.tile_loop("forward", "k", size)
    else:
        s.split("forward", "c", [20])  # refused: past the end of the loop


def chosen() -> Chosen:
    return Chosen(subject(), Recipe("own", {"forward": forward}))


def test_knobs_are_a_space() -> None:
    space = chosen()
    assert [knob.name for knob in space.knobs] == ["size", "inner"] and isinstance(space.knobs[0], Knob)
    assert space.size() == 6
    points = list(space.every())
    assert [point.knobs for point in points] == [{"size": size, "inner": "k"} for size in (2, 4, 5)]
    near = list(space.neighbours(points[0], Random(1)))
    assert sorted(point.knobs["size"] for point in near) == [4, 5]
    both = Several([space, Around(subject(), KNOWN)])
    assert both.size() == float("inf")
    origins = {point.origin for point in (both.sample(Random(seed)) for seed in range(20)) if point is not None}
    assert origins == {"chosen", "varied"}


def test_decisions_of_the_default_schedule_are_a_space() -> None:
    space = Decided(subject())
    assert space.usual and space.size() == prod(len(decision.candidates) for decision in space.usual) > 1
    random = Random(2)
    points = [point for point in (space.sample(random) for _ in range(8)) if point is not None]
    near = list(islice(space.neighbours(points[0], random), 4))
    assert len({point.key for point in (*points, *near)}) > 2
    for point in (*points, *near):
        assert point.origin == "decided"
        assert_same(product(), point.candidate.program)
        assert subject().after(point.candidate.commands).key == point.key
    usual = [point for point in points if not point.knobs]
    assert all(point.key == subject().by(FOR_RECIPES.functions["forward"]).key for point in usual)


def test_candidates_are_compiled_checked_and_timed() -> None:
    own = subject()
    known = own.after(KNOWN)
    with Evaluator(own, known, 2, 24) as evaluator:
        right, other = own.after([command("tile_loop", "k", 4)]), own.after([command("interchange", "k", "c")])
        wrong = Subject.alone(
            program(TEXT.replace("range(17)", "range(16)"), x=(24, 17), y=(24, 32), w=(32, 17)),
            "forward",
            (),
            TARGETS["portable"],
        ).after(())
        found = evaluator.measure([right, wrong, other])
    assert [each.outcome for each in found] == [MEASURED, "wrong", MEASURED]
    assert found[1].told.startswith("net.y[")
    assert found[0].ratio is not None and found[0].ratio > 0
    assert len(found[0].beside) >= len(found[2].seconds) > 0


def test_candidates_with_other_layouts_are_compared_by_their_logical_values() -> None:
    own = Subject.alone(product(), "forward", ["net."], TARGETS["portable"])

    def laid_out(*given: object) -> Recorded:
        return Recorded(given[0], given[1:], (), None)  # type: ignore[arg-type]

    read = own.after([laid_out("tile", "w", 0, 8), laid_out("tile", "x", 0, 8)])  # 17 is not a multiple of it
    written = own.after([laid_out("tile", "y", 0, 16)])
    assert [len(each.commands) for each in (read, written)] == [2, 1]
    with Evaluator(own, own.after(KNOWN), 2, 24) as evaluator:
        found = evaluator.measure([read, written])
    assert [(each.outcome, each.told) for each in found] == [(MEASURED, "")] * 2


def test_a_candidate_is_beside_the_runs_of_its_own_rounds() -> None:
    own = subject()
    orders = [["n", "c", "k"], ["c", "n", "k"], ["k", "n", "c"], ["k", "c", "n"], ["c", "k", "n"]]
    candidates = [own.after([command("reorder", order)]) for order in orders]
    with Evaluator(own, own.after(KNOWN), 1, 24) as evaluator:
        found = evaluator.measure(candidates)
    assert all(each.outcome == MEASURED and len(each.beside) == len(each.seconds) for each in found)
    assert len({len(each.seconds) for each in found}) > 1  # some were left out after a round
    longest = max((each.beside for each in found), key=len)
    assert all(list(each.beside) == list(longest[: len(each.beside)]) for each in found)


def test_points_say_what_they_are() -> None:
    assert Point(subject().after(())).origin == "varied"
