"""How often loops run, and after how many iterations conditions are the same again."""

from __future__ import annotations

import pytest

from swirl.analysis.accesses import parsed
from swirl.analysis.loop_facts import residues, trips
from swirl.analysis.statements import statements_of
from swirl.ir.affine import loop_range
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Loop, parse_program


def test_periods_of_remainders() -> None:
    guard = "(t - 2 * k + 3) % 4 == 0 and t // 2 < 5"
    buffers = {"y": Buffer("net.y", (9,)), "x": Buffer("net.x", (4,))}
    before = parse_program(f"for t in range(9):\n for k in range(4):\n  if {guard}:\n   y[t] += x[k]", buffers)
    *_, statement = statements_of(before.nests[0])
    assert residues(statement) == [{"t": 4, "k": 2}]


@pytest.mark.parametrize(
    ("start", "stop", "step", "most"),
    [
        ("0", "min(9, i * 2 + 2) - max(0, i * 2 - 1)", 1, 3),
        ("max(0, 1 - i)", "min(3, 9 - i)", 1, 3),
        ("0", "min(i + 4, min(7, i + 2)) - i", 1, 2),
        ("i", "i + 5", 2, 3),
        ("0", "i + 1", 1, 6),
        ("5", "i", -1, 5),
        ("0", "max(2, i)", 1, 5),
    ],
)
def test_iterations_at_the_most(start: str, stop: str, step: int, most: int) -> None:
    """Of windows that borders clip, those that they do not."""
    loop = Loop("j", "range", parsed(start), parsed(stop), step)
    ranges = {"i": (0, 5)}
    assert trips(loop, {**ranges, **loop_range(loop, ranges)}) == most
    known = ({"i": i, "min": min, "max": max} for i in range(6))
    assert max(len(range(eval(start, names), eval(stop, names), step)) for names in known) <= most
