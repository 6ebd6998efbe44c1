"""fuse with a shift: the second loop is delayed until what it reads is there."""

from __future__ import annotations

import random
from inspect import cleandoc

import pytest

from swirl.errors import CommandError, Refused
from swirl.ir.nest import Program
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from tests.support import assert_compiles_to_same, assert_same, program

BLUR = program(
    "for i in range(6):\n y[i] = x[i] * 2.0\nfor j in range(6):\n z[j] = y[j] + y[j + 1]", x=(6,), y=(7,), z=(6,)
)


def test_what_is_left_of_both_is_a_loop_of_its_own(target: Target) -> None:
    after = assert_same(BLUR, COMMANDS["fuse"](BLUR, "i", "j", shift=1))
    assert after.nests[0].body_text == cleandoc("""
        for i_before in range(1):
            y[i_before] = x[i_before] * 2.0
        for i in range(1, 6):
            y[i] = x[i] * 2.0
            z[i - 1] = y[i - 1] + y[i]
        for i_after in range(5, 6):
            z[i_after] = y[i_after] + y[i_after + 1]
        """)
    assert_compiles_to_same(after, target)


@pytest.mark.parametrize("shift", range(1, 6))
def test_any_shift_that_is_long_enough(shift: int) -> None:
    assert_same(BLUR, COMMANDS["fuse"](BLUR, "i", "j", shift=shift))


def test_bounds_that_move() -> None:
    before = program(
        "for n in range(5):\n for i in range(n, 4):\n  y[n, i] = x[n, i]\n for i in range(n, 4):\n"
        "  z[n, i] = y[n, i + 1]",
        x=(5, 4),
        y=(5, 5),
        z=(5, 4),
    )
    for shift in (1, 2, 7):  # where n is large, there are fewer iterations than that
        after = assert_same(before, COMMANDS["fuse"](before, "i", shift=shift))
        assert f"for i in range(n + {shift}, 4):" in after.text


def test_statements_between_and_locals() -> None:
    before = program(
        "for n in range(2):\n for i in range(5):\n  t: float32 = x[n, i]\n  y[n, i] = t\n w[n] = 1.0\n"
        " for i in range(5):\n  t: float32 = y[n, i + 1]\n  z[n, i] = t + w[n]",
        x=(2, 5),
        y=(2, 6),
        z=(2, 5),
        w=(2,),
    )
    assert_same(before, COMMANDS["fuse"](before, "i", shift=1))


def test_parallel_loops_stay_free_of_races() -> None:
    before = BLUR
    for loop in "ij":
        before = COMMANDS["parallelize"](before, loop)
    with pytest.raises(Refused, match="the parallel loop would no longer be free of races"):
        COMMANDS["fuse"](before, "i", "j", shift=1)


def test_other_steps_are_refused() -> None:
    before = program(
        "for i in range(0, 6, 2):\n y[i] = x[i]\nfor i in range(0, 6, 2):\n z[i] = y[i + 2]", x=(6,), y=(8,), z=(6,)
    )
    with pytest.raises(Refused, match="i is a loop of step 2, and cannot be shifted"):
        COMMANDS["fuse"](before, "i", shift=1)


@pytest.mark.parametrize("shift", [-1, True, 1.0, "1"])
def test_bad_shifts(shift: object) -> None:
    with pytest.raises(CommandError, match="shift must be a whole number of iterations"):
        COMMANDS["fuse"](BLUR, "i", "j", shift=shift)  # type: ignore[arg-type]


def _random(seed: int) -> Program:
    choose = random.Random(seed)
    extent = choose.randint(2, 7)
    subscripts = ("i", "i + 1", "i + 2", "i - 1", "6 - i", "i // 2", "2")

    def index() -> str:
        return f"{choose.choice(subscripts)} + 1"

    lines = []
    for target in ("y", "z"):
        lines.append(f"for i in range({extent}):")
        lines += [
            f" {choose.choice('yz')}[{index()}] {choose.choice(('=', '+='))} {choose.choice('xyz')}[{index()}]"
            for _ in range(choose.randint(1, 2))
        ]
        lines.append(f" {target}[{index()}] = x[{index()}]")
    return program("\n".join(lines), x=(10,), y=(10,), z=(10,))


def test_random_loops() -> None:
    shifts: list[int] = []
    for seed in range(150):
        before = _random(seed)
        for shift in range(4):
            try:
                after = COMMANDS["fuse"](before, "i", shift=shift)
            except Refused:
                continue
            assert_same(before, after, seeds=(seed,))
            shifts.append(shift)
    assert min(shifts.count(shift) for shift in range(4)) > 10
