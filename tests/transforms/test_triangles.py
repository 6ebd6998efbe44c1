"""Loops whose bounds move with others, in another order: bounds by projection, over exactly the same points."""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from swirl.errors import Refused
from swirl.ir.nest import Program
from swirl.transforms import COMMANDS
from tests.support import assert_same, program


def loops(*heads: str) -> Program:
    """A nest of loops ``i``, ``j``, … with these ranges that notes how often each point is visited."""
    names = "ijkl"[: len(heads)]
    text = "".join(f"{' ' * depth}for {names[depth]} in range({head}):\n" for depth, head in enumerate(heads))
    where = ", ".join(f"({name} + 64) % 32" for name in names)
    return program(f"{text}{' ' * len(heads)}x[{where}] += 1.0", x=(32,) * len(heads))


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        (("5", "i + 1"), ("5", "j, 5")),
        (("5", "i, 5"), ("5", "j + 1")),
        (("6", "i"), ("5", "j + 1, 6")),
        (("56", "max(0, 1 - i), min(3, 57 - i)"), ("3", "max(0, 1 - j), min(57 - j, 56)")),
        (("5", "max(0, i - 2), min(7, i * 2)"), ("7", "j // 2 + 1, min(j + 3, 5)")),
        (("7", "i // 2, 5"), ("5", "min(j * 2 + 2, 7)")),
        (("6", "2 * i, 2 * i + 2"), ("12", "j // 2, j // 2 + 1")),
        (("4", "i, i"), ("0", "0")),
        (("1", "i, 3"), ("3", "1")),
    ],
)
def test_bounds(heads: tuple[str, str], expected: tuple[str, str]) -> None:
    before = loops(*heads)
    after = assert_same(before, COMMANDS["interchange"](before, ["i", "j"]))
    lines = after.text.splitlines()
    assert (lines[1].strip(), lines[2].strip()) == (
        f"for j in range({expected[0]}):",
        f"for i in range({expected[1]}):",
    )


def test_three_loops_in_every_order() -> None:
    before = loops("5", "i + 1", "j, i + 2")
    for order in permutations("ijk"):
        after = assert_same(before, COMMANDS["reorder"](before, list(order)))
        assert [line.split()[1] for line in after.text.splitlines()[1:4]] == list(order)


def test_inside_a_loop_that_moves_both() -> None:
    before = loops("4", "i, 5", "j, min(6, j + i)")
    after = assert_same(before, COMMANDS["interchange"](before, ["j", "k"]))
    text = after.text
    assert "for k in range(i, min(i + 4, 6)):\n            for j in range(max(i, k - i + 1), min(5, k + 1)):" in text


def test_a_statement_between_is_distributed() -> None:
    before = program("for i in range(6):\n s[i] = 0.0\n for j in range(i):\n  s[i] += x[i, j]", s=(6,), x=(6, 6))
    after = assert_same(before, COMMANDS["interchange"](before, ["i", "j"]))
    assert "for j in range(5):\n        for i in range(j + 1, 6):" in after.text


def test_a_dependence_in_a_triangle() -> None:
    before = program("for i in range(5):\n for j in range(i + 1):\n  x[i + 1, j] = x[i, j + 1]", x=(7, 7))
    with pytest.raises(Refused, match="a dependence would be reversed"):
        COMMANDS["interchange"](before, ["i", "j"])


def test_parallel_triangles_stay_free_of_races() -> None:
    before = COMMANDS["parallelize"](loops("5", "i + 1"), "i")
    after = assert_same(before, COMMANDS["interchange"](before, ["i", "j"]))
    assert "for j in range(5):\n        for i in parallel(j, 5):" in after.text


@pytest.mark.parametrize("heads", [("5", "0, i + 1, 2"), ("0, 6, 2", "i + 1"), ("7", "i % 3, 5"), ("5", "i, -1, -1")])
def test_what_no_bounds_say(heads: tuple[str, str]) -> None:
    with pytest.raises(Refused, match="no bounds say the same in the other order"):
        COMMANDS["interchange"](loops(*heads), ["i", "j"])


# --- at random ------------------------------------------------------------------------------------------
FORMS = (
    "{v}",
    "{v} + {c}",
    "{v} - {c}",
    "{v} * 2",
    "{v} // 2",
    "{v} // 3 + {c}",
    "{c} - {v}",
    "min({v}, {c})",
    "max({v}, {c})",
    "{v} % 2",
    "{c}",
)


def _bound(choose: random.Random, known: list[str], otherwise: str) -> str:
    if not known or choose.random() < 0.3:
        return otherwise
    return choose.choice(FORMS).format(v=choose.choice(known), c=choose.randint(0, 5))


def _random(seed: int) -> tuple[Program, list[str]]:
    choose = random.Random(seed)
    known: list[str] = []
    heads = []
    for name in "ijk"[: choose.choice((2, 2, 3))]:
        low, high = _bound(choose, known, "0"), _bound(choose, known, str(choose.randint(1, 6)))
        if choose.random() < 0.3:
            low, high = f"max({low}, {_bound(choose, known, '1')})", f"min({high}, {_bound(choose, known, '4')})"
        heads.append(f"{low}, {high}")
        known.append(name)
    order = list(known)
    choose.shuffle(order)
    return loops(*heads), order


def test_random_bounds() -> None:
    done = 0
    for seed in range(60):
        before, order = _random(seed)
        try:
            after = COMMANDS["reorder"](before, order)
        except Refused:
            continue
        assert_same(before, after, seeds=(seed,))
        done += 1
    assert done > 45
