"""Loops of which data choose one iteration."""

from __future__ import annotations

import pytest

from docs.commands import nests as example
from swirl.ir.buffers import Buffer
from swirl.schedule.recipe import Schedule
from swirl.schedule.rules.engine import run
from swirl.schedule.rules.order import PHASE
from swirl.schedule.rules.trials import Trials
from swirl.target.targets import TARGETS
from tests.schedule.rules.applied import applied_in, applied_texts, by_rule, clipped_pooling
from tests.support import assert_same, program


def test_gradients_of_overlapping_windows_go_to_their_places() -> None:
    """Lanes along the row would add eight zeros for each gradient."""
    backward = applied_in("backward", *clipped_pooling(33), "avx512")
    assert {"locate('backward', 'k')", "locate('backward', 'j')"} <= set(backward), backward


PLACES = {
    "rows that all have one place": ("d", "dw[j, d]", "g[n, d]", "idx[n]", 20, 24, True),
    "many places of lanes of their own": ("d", "dw[n + j, d]", "g[n, d]", "m[n, d]", 40, 16, True),
    "few places of lanes of their own": ("d", "dw[n + j, d]", "g[n, d]", "m[n, d]", 9, 16, False),
    "many places of a few lanes": ("d", "dw[n + j, d]", "g[n, d]", "m[n, d]", 9, 4, True),
}


@pytest.mark.parametrize(
    ("inner", "target", "value", "which", "places", "width", "located"), PLACES.values(), ids=list(PLACES)
)
def test_places_that_data_choose(
    inner: str, target: str, value: str, which: str, places: int, width: int, located: bool
) -> None:
    """Lanes for all places only where each has places of its own, and not many."""
    text = f"""
        for n in range(8):
            for j in range({places}):
                for {inner} in range({width}):
                    {target} += {value} if {which} == j else 0.0
        """
    shapes = {"dw": (8 + places, width), "g": (8, width), "idx": (8,), "m": (8, width)}
    before = example(text, ["idx", "m"], **shapes)
    s = Schedule.alone({"forward": before}, TARGETS["avx512"], ("",))
    run(PHASE, Trials(s, TARGETS["avx512"], "forward"))
    assert_same(before, s.programs["forward"], finite=True)
    applied = applied_texts(s.outcomes)
    assert ("locate('forward', 'j')" in applied) == located, applied
    assert width < 8 or any(command.startswith("vectorize('forward', 'd'") for command in applied), applied


@pytest.mark.parametrize("chosen", [True, False])
def test_a_loop_over_places_becomes_the_chosen_one(chosen: bool) -> None:
    test = "idx[n] == j" if chosen else "j < 5"
    before = program(
        f"""
for n in range(4):
    for j in range(20):
        for d in range(8):
            w[j, d] += g[n, d] if {test} else 0.0
""",
        w=(20, 8),
        g=(4, 8),
        idx=(4,),
    ).with_buffers(idx=Buffer("net.idx", (4,), "int32"))
    after, applied = by_rule("places", before, finite=True)
    assert applied == (["locate('forward', 'j')"] if chosen else [])
    assert ("w[idx[n], d] += g[n, d]" in after) == chosen, after
