"""The engine that runs rules: on what, how often, and what comes next."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from swirl.ir.buffers import Buffer
from swirl.schedule.recipe import Schedule
from swirl.schedule.rules.engine import Rule, Scope, Stage, Then, by_itself, run
from swirl.schedule.rules.trials import Trials
from swirl.target.targets import TARGETS
from tests.support import program

NESTS = """
for i in range(6):
    a[i] = 1.0
    b[i] = 2.0
    c[i] = 3.0
for i in range(6):
    d[i] = 4.0
"""


def trials() -> Trials:
    before = program(NESTS, a=(6,), b=(6,), c=(6,), d=(6,))
    return Trials(Schedule.alone({"forward": before}, TARGETS["avx2"], "net."), TARGETS["avx2"], "forward")


def cut(own: Trials) -> bool:
    """Whether a statement of the nest got a loop of its own."""
    return own.apply("", "distribute", "i")


def noted(seen: list[str], then: bool = False) -> Callable[[Trials], bool]:
    """A rule that notes what nests it is applied to, by the first array that they write."""

    def apply(own: Trials) -> bool:
        seen.append("".join(nest.arguments[0] for nest in own.nests))
        return then

    return apply


@pytest.mark.parametrize(
    ("scope", "expected"),
    [(Scope.PHASE, ["abcd"]), (Scope.NESTS, ["a", "b"]), (Scope.NEW_NESTS, ["a", "b", "c", "d"])],
)
def test_scopes(scope: Scope, expected: list[str]) -> None:
    """The first nest is cut into three: those that a stage makes are reached by one scope alone."""
    seen: list[str] = []
    run([Stage(scope, (Rule("cut", cut, ""), Rule("noted", noted(seen), "")))], trials())
    assert seen == expected


@pytest.mark.parametrize(
    ("then", "expected"),
    [
        (Then.NEXT_RULE, ["a", "last a", "b", "last b", "c", "last c", "d", "last d"]),
        (Then.LAST_RULE, ["last a", "b", "last b", "c", "last c", "d", "last d"]),
        (Then.NEXT_NEST, ["b", "last b", "c", "last c", "d", "last d"]),
        (Then.NEXT_OLD_NEST, ["d", "last d"]),
    ],
)
def test_what_comes_after_a_rule(then: Then, expected: list[str]) -> None:
    """Cutting applies to the first nest alone: others have one statement."""
    seen: list[str] = []
    last: list[str] = []

    def noted_last(own: Trials) -> None:
        last.append("")
        seen.append(f"last {own.nests[0].arguments[0]}")

    rules = (Rule("cut", cut, "", then), Rule("noted", noted(seen), ""), Rule("last", noted_last, ""))
    run([Stage(Scope.NEW_NESTS, rules)], trials())
    assert seen == expected


def test_loops_of_a_name_are_scheduled_apart_where_one_is_refused() -> None:
    """The rules begin again, once, with names of their own."""
    before = program(
        """
for n in range(3):
    for i in range(1, 12):
        y[n, i] = y[n, i - 1] * x[n, i]
    for i in range(1, 12):
        z[n, i] = x[n, i] + 1.0
""",
        x=(3, 12),
        y=(3, 12),
        z=(3, 12),
    )
    s = Schedule.alone({"forward": before}, TARGETS["avx2"], "net.")
    seen: list[list[str]] = []

    def lanes(own: Trials) -> bool:
        seen.append(own.loop_names)
        done = [own.apply("", "vectorize", name, 8) for name in dict.fromkeys(own.loop_names) if name != "n"]
        return any(done)

    by_itself([Rule("lanes", lanes, "")])(Trials(s, TARGETS["avx2"], "forward", nest=0))
    assert seen == [["n", "i", "i"], ["n", "i", "i_1"]]
    assert [outcome.command.name for outcome in s.outcomes] == ["rename", "vectorize"]


@pytest.mark.parametrize(("target", "vectors"), [("avx2", False), ("portable", True)])
def test_rules_for_vectors_leave_doubles(target: str, vectors: bool) -> None:
    """The targets with intrinsics have vectors of single precision only."""
    before = program("for i in range(20):\n y[i] = x[i]", x=(20,), y=(20,))
    before = before.with_buffers(x=Buffer("net.x", (20,), "float64"))
    own = Trials(Schedule.alone({"forward": before}, TARGETS[target], "net."), TARGETS[target], "forward", nest=0)
    seen: list[str] = []
    by_itself([Rule("noted", noted(seen), "", vectors=True)])(own)
    assert bool(seen) == vectors


def test_the_work_of_a_nest_is_that_before_its_rules() -> None:
    seen: list[int] = []

    def lanes(own: Trials) -> None:
        own.apply("", "vectorize", "i", 8)
        seen.append(own.work)

    before = program("for i in range(64):\n y[i] = x[i]", x=(64,), y=(64,))
    own = Trials(Schedule.alone({"forward": before}, TARGETS["avx2"], "net."), TARGETS["avx2"], "forward", nest=0)
    by_itself([Rule("lanes", lanes, ""), Rule("again", lanes, "")])(own)
    assert seen == [64, 64]
