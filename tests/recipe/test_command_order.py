"""A command that is refused where it stands, and would be accepted before one above it."""

from __future__ import annotations

import pytest

from swirl.errors import CommandError, LatteError
from swirl.ir.nest import Program
from swirl.schedule.recipe import Schedule
from swirl.target.targets import TARGETS
from tests.support import program

MAP = program("for n in range(8):\n for i in range(64):\n  y[n, i] = x[n, i] * 2.0", x=(8, 64), y=(8, 64))
SUM = program("for n in range(8):\n for i in range(64):\n  s[0] += x[n, i]", x=(8, 64), s=(1,))


def schedule(of: Program) -> Schedule:
    return Schedule.alone({"forward": of.renamed("net.forward")}, TARGETS["avx512"], "net.")


def refused(of: Program, *lines: str) -> LatteError:
    """What the last one of these lines raises."""
    s = schedule(of)
    for line in lines[:-1]:
        exec(line, {"s": s})
    with pytest.raises(CommandError) as caught:
        exec(lines[-1], {"s": s})
    return caught.value


@pytest.mark.parametrize(
    ("of", "lines", "place"),
    [
        (MAP, ("s.unroll_and_jam('forward', 'i', 4)", "s.vectorize('forward', 'i', 16)"), 0),
        (MAP, ("s.parallelize('forward', 'i')", "s.vectorize('forward', 'i', 16)"), 0),
        (SUM, ("s.vectorize('forward', 'i', 16)", "s.privatize('forward', 's', 'n')"), 0),
        (
            MAP,
            (
                "s.unroll_and_jam('forward', 'i', 4)",
                "s.parallelize('forward', 'n')",  # which stays possible
                "s.vectorize('forward', 'i', 16)",
            ),
            0,
        ),
        (
            MAP,
            ("s.tile_loop('forward', 'n', 2)", "s.unroll('forward', 'i', 4)", "s.vectorize('forward', 'i', 8)"),
            1,
        ),
    ],
)
def test_the_place_is_named_and_right(of: Program, lines: tuple[str, ...], place: int) -> None:
    error = refused(of, *lines)
    assert (error.way_out or "").startswith(f"give it before {lines[place]}, ")
    s = schedule(of)
    for line in (*lines[:place], lines[-1], *lines[place:-1]):
        exec(line, {"s": s})
    assert [outcome.status for outcome in s.outcomes] == ["applied"] * len(lines)


def test_a_command_that_is_wrong_anywhere_has_no_other_place() -> None:
    error = refused(MAP, "s.parallelize('forward', 'n')", "s.privatize('forward', 'y', 'n', copies=2)")
    assert "give it before" not in (error.way_out or "")


def test_a_way_out_that_names_a_command_stays() -> None:
    dependent = program(
        "for t in range(1, 64):\n for i in range(16):\n  y[t, i] = y[t - 1, i] + x[t, i]", x=(64, 16), y=(64, 16)
    )
    error = refused(dependent, "s.reorder('forward', ['t', 'i'])", "s.vectorize('forward', 't', 16)")
    assert error.way_out == "s.vectorize('forward', 'i', 16)"
    assert "one iteration needs what another one makes" in error.message  # not: is not contiguous


def test_loops_of_one_iteration_are_not_offered() -> None:
    text = "for j in range(1):\n for i in range(64):\n  for k in range(1):\n   y[j] = y[j] * 0.5 + x[i, k]"
    assert refused(program(text, x=(64, 1), y=(1,)), "s.vectorize('forward', 'i', 16)").way_out is None
