"""tidy: conditions that statements share become bounds of the loop around them."""

from __future__ import annotations

import pytest

from swirl.ir.nest import Program
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from swirl.transforms.passes.tidy import tidy
from tests.support import assert_compiles_to_same, assert_same, program

PIECES = """
for ky in range(3):
    for y in range(4):
        if y + ky >= 1 and y + ky < 5 and ky >= 1:
            z[ky, 0] += x[y + ky - 1, 0]
        for i in range(1, 3):
            if y + ky >= 1 and y + ky < 5:
                z[ky, i] += x[y + ky - 1, i]
        if y + ky < 5 and y + ky >= 1:
            z[ky, 3] += x[y + ky - 1, 3]
"""


def pieces(text: str) -> Program:
    return program(text, z=(3, 4), x=(4, 4))


def test_a_condition_that_all_pieces_have_becomes_bounds(target: Target) -> None:
    before = pieces(PIECES)
    after = assert_same(before, tidy(before))
    assert "for y in range(max(0, 1 - ky), min(4, 5 - ky)):" in after.text
    assert after.text.count("if ") == 1  # that of the first piece alone
    assert_compiles_to_same(after, target)


@pytest.mark.parametrize(
    "change",
    [
        ("if y + ky < 5 and y + ky >= 1:\n            z[ky, 3]", "z[ky, 3]"),  # a piece without it
        ("z[ky, 3] += x[y + ky - 1, 3]", "z[ky, 3] += x[y + ky - 1, 3]\n        else:\n            z[ky, 3] = 1.0"),
        ("y + ky < 5 and y + ky >= 1", "x[y, 0] > 0.0"),  # another one
    ],
)
def test_what_not_all_pieces_have_stays(change: tuple[str, str]) -> None:
    text = PIECES.replace(*change).replace("x[y + ky - 1, 3]", "x[y, 3]")
    before = pieces(text)
    after = assert_same(before, tidy(before))
    assert "for y in range(4):" in after.text


def test_pieces_that_declare_one_name_stay_apart(target: Target) -> None:
    piece = "  if y + k >= 1:\n   t: float32 = x[y, k] * {}\n   z[k, y] += t * t\n"
    before = pieces("for k in range(3):\n for y in range(4):\n" + piece.format("2.0") + piece.format("3.0"))
    after = assert_same(before, tidy(before))
    assert after.text.count("if ") == 2
    assert_compiles_to_same(after, target)


def test_a_condition_on_data_that_a_piece_changes_is_asked_again(target: Target) -> None:
    text = "for y in range(4):\n if x[0, 0] > 0.0:\n  x[0, 0] = -1.0\n if x[0, 0] > 0.0:\n  z[0, y] = 1.0"
    before = pieces(text)
    after = assert_same(before, tidy(before))
    assert after.text.count("if x[0, 0] > 0.0:") == 2
    assert_compiles_to_same(after, target)


@pytest.mark.parametrize(("places", "left"), [([0], 1), ([0, 2], 3)])
def test_loops_of_one_iteration_go_with_what_they_declare(places: list[int], left: int, target: Target) -> None:
    """Unless others of the block declare the same name."""
    loop = " for i in range({0}, 4, 8):\n  t: float32 = x[i, k]\n  z[k, i] += t * t\n"
    before = pieces(f"for k in range(3):\n{''.join(map(loop.format, places))}")
    after = assert_same(before, tidy(before))
    assert after.text.count("for ") == left
    assert_compiles_to_same(after, target)


def test_elements_are_kept_over_loops_of_one_iteration(target: Target) -> None:
    """What sets them, outside of such a loop, needs no store: the gradient of a window of one channel had one."""
    loops = " for i in range(1):\n  for y in range(4):\n   z[k + i, 0] += x[y, k + i]\n"
    before = pieces(f"for k in range(3):\n z[k, 0] = 0.0\n{loops}")
    after = assert_same(before, COMMANDS["scalar_replace"](before, "z"))
    assert after.text.count("z[") == 1
    assert_compiles_to_same(after, target)
