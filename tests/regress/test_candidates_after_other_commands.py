"""A phase that goes on from other commands took the schedules that candidates of the first one had begun with: of equal
commands, those after the others' were never applied."""

from __future__ import annotations

from dataclasses import replace

from swirl.schedule.command_log import Recorded
from swirl.target.targets import TARGETS
from swirl.tune.candidates import Subject
from tests.support import assert_same, program

TEXT = "for n in range(8):\n for k in range(16):\n  y[n, k] = 2.0 * x[n, k]"


def command(name: str, *arguments: object) -> Recorded:
    return Recorded(name, ("forward", *arguments), (), None)


def test_schedules_that_begin_alike_are_of_one_beginning() -> None:
    before = program(TEXT, x=(8, 16), y=(8, 16))
    first = Subject.alone(before, "forward", (), TARGETS["avx2"])
    unrolled = [command("unroll", "n", 2)]
    plain = first.after(unrolled)
    begun = first.begun.copy()
    begun.apply(command("tile_loop", "k", 4))
    tiled = replace(first, begun=begun).after(unrolled)
    assert "k_outer" in tiled.scheduled.text and "k_outer" not in plain.scheduled.text
    assert_same(before, tiled.program)
