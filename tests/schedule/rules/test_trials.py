"""Decisions: the first candidate that applies is taken, or one that was chosen; those met are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from latte import FullyConnectedLayer, MemoryDataLayer, Net
from latte.ensemble import Ensemble
from swirl.errors import ChoiceError, CommandError
from swirl.ir.nest import Program
from swirl.schedule.recipe import Schedule
from swirl.schedule.rules.engine import run
from swirl.schedule.rules.order import PHASE
from swirl.schedule.rules.schedule import default_schedule
from swirl.schedule.rules.trials import Decision, Trials
from swirl.target.targets import TARGETS
from tests.schedule.rules.applied import applied_texts, before_schedule, convolution, strided
from tests.support import assert_same, program

AVX2 = TARGETS["avx2"]


def trials(choices: Mapping[str, int] | None = None, nest: int | None = 3) -> Trials:
    before = program("for i in range(6):\n a[i] = 1.0", a=(6,))
    return Trials(Schedule.alone({"forward": before}, AVX2, "net."), AVX2, "forward", nest, choices=choices)


@pytest.mark.parametrize(
    ("chosen", "refused", "taken", "tried"),
    [
        ({}, "", 0, "a"),
        ({}, "ab", 2, "abc"),
        ({"lanes.3": 1}, "", 1, "b"),
        ({"lanes.3": 2}, "ac", 1, "cab"),
        ({"lanes.3": 7}, "", 0, "a"),
        ({"lanes.2": 1, "tile.3": 1}, "", 0, "a"),
    ],
)
def test_a_chosen_candidate_comes_before_the_others(
    chosen: Mapping[str, int], refused: str, taken: int, tried: str
) -> None:
    own, seen = trials(chosen), list[str]()

    def applies(candidate: str) -> bool:
        seen.append(candidate)
        return candidate not in refused

    assert own.first("lanes", "abc", applies, str.upper) == "abc"[taken]
    assert "".join(seen) == tried
    assert own.decisions == [Decision("lanes.3", ("A", "B", "C"), taken)]


def test_nothing_is_decided_where_all_are_refused_or_one_is_there() -> None:
    own = trials({})
    assert own.first("lanes", "abc", lambda candidate: False) is None
    assert own.first("lanes", "a") == "a" and own.first("lanes", "") is None
    assert own.decisions == []


def test_candidates_are_found_one_by_one_where_nobody_asks_for_them() -> None:
    own, found = trials(), list[int]()

    def candidates():  # type: ignore[no-untyped-def]
        for number in range(3):
            found.append(number)
            yield number

    assert own.first("lanes", candidates(), lambda number: number == 1) == 1
    assert found == [0, 1] and own.decisions == []


def test_decisions_have_names_of_their_own() -> None:
    own = trials({"lanes.3.1": 1})
    assert [own.first(rule, "ab") for rule in ("lanes", "lanes", "tile", "lanes")] == ["a", "b", "a", "a"]
    assert [decision.name for decision in own.decisions] == ["lanes.3", "lanes.3.1", "tile.3", "lanes.3.2"]


def test_decisions_inside_of_a_candidate_follow_it_and_go_with_it() -> None:
    own = trials({})

    def applies(candidate: str) -> bool:
        own.first("tile", f"{candidate}x")
        return candidate == "b"

    assert own.first("lanes", "ab", applies) == "b"
    assert [str(decision) for decision in own.decisions] == [
        str(Decision("lanes.3", ("a", "b"), 1)),
        str(Decision("tile.3", ("b", "x"), 0)),
    ]


def test_what_is_not_accepted_decides_nothing() -> None:
    own = trials({})
    trial = own.scratch()
    trial.first("lanes", "ab")
    assert trial.decisions and not own.decisions
    own.accept(trial)
    assert own.decisions == trial.decisions


# --- the default schedule -----------------------------------------------------------------------------------
def fully_connected() -> tuple[Net, Ensemble]:
    net = Net(16, seed=1)
    net.force_backward = True
    return net, FullyConnectedLayer(net, MemoryDataLayer(net, (48,)), 40)


LAYERS = {
    "fully connected": fully_connected,
    "convolution": lambda: convolution(8, 4),
    "strided": lambda: strided(32, 5, 2),
}


def decided(before: Program, phase: str, choices: Mapping[str, int]) -> tuple[Program, Sequence[Decision], list[str]]:
    """A program after the default schedule; its decisions; and its commands."""
    s = Schedule.alone({phase: before}, AVX2, ("",))
    made = default_schedule(s, AVX2, phase, choices)
    return s.programs[phase], made, applied_texts(s.outcomes)


@pytest.mark.parametrize("name", LAYERS)
def test_no_choices_are_the_default(name: str) -> None:
    """That candidates are listed changes nothing; nor that each is chosen which is taken anyway."""
    for phase, before in before_schedule(*LAYERS[name]()).items():
        plain = Schedule.alone({phase: before}, AVX2, ("",))
        run(PHASE, Trials(plain, AVX2, phase))
        after, made, applied = decided(before, phase, {})
        assert after.text == plain.programs[phase].text and applied == applied_texts(plain.outcomes)
        again = decided(before, phase, {one.name: one.taken for one in made})
        assert (again[0].text, *again[1:]) == (after.text, made, applied)
        assert made


@pytest.mark.parametrize("name", LAYERS)
def test_other_candidates_compute_the_same(name: str) -> None:
    """The last candidate of each decision that the defaults meet, one after the other."""
    for phase, before in before_schedule(*LAYERS[name]()).items():
        _, made, applied = decided(before, phase, {})
        for decision in made:
            after, others, texts = decided(before, phase, {decision.name: len(decision.candidates) - 1})
            again = next(one for one in others if one.name == decision.name)
            assert again.candidates == decision.candidates
            assert again.taken == decision.taken or texts != applied, decision
            assert_same(before, after, seeds=(0,))


def test_wrong_choices() -> None:
    before = before_schedule(*fully_connected())
    s = Schedule.alone(before, AVX2, ("",))
    with pytest.raises(CommandError, match="there is no phase 'sideways' here"):
        default_schedule(s, AVX2, "sideways")
    for wrong in (-1, "first", 1.5):
        with pytest.raises(ChoiceError, match=r"the candidate of lanes\.0 is"):
            default_schedule(s, AVX2, "forward", {"lanes.0": wrong})  # type: ignore[dict-item]
    assert not s.outcomes
