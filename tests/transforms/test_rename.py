"""rename: the nest it prints, the same results, what it refuses; and ``occurrence``, which it shares with reverse."""

from __future__ import annotations

import pytest

from swirl.errors import CommandError
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from tests.support import assert_compiles_to_same, assert_same, program

TWO = program(
    "for i in range(5):\n x[i] = a[i]\nfor i in range(1, 5):\n for j in range(i):\n  y[i] += x[j]",
    x=(5,),
    y=(5,),
    a=(5,),
)


def test_prints() -> None:
    after = assert_same(TWO, COMMANDS["rename"](TWO, "i", "row", nest=1))
    assert [nest.body_text for nest in after.nests] == [
        "for i in range(5):\n    x[i] = a[i]",
        "for row in range(1, 5):\n    for j in range(row):\n        y[row] += x[j]",
    ]


def test_one_of_several() -> None:
    for occurrence, heads in ((0, "ri"), (-1, "ir")):
        after = assert_same(TWO, COMMANDS["rename"](TWO, "i", "r", occurrence=occurrence))
        assert "".join(nest.body_text[4] for nest in after.nests) == heads
    assert COMMANDS["rename"](TWO, "i", "i") == TWO


def test_compiles_to_the_same_bits(target: Target) -> None:
    assert_compiles_to_same(COMMANDS["rename"](TWO, "i", "row"), target)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("j", "j is used already where i runs"),
        ("x", "x is used already where i runs"),
        ("2", "a loop is named by an identifier, not '2'"),
        (None, "name must be a string, not None"),  # as in a recipe
        ("for", "a loop is named by an identifier, not 'for'"),
        ("min", "a loop is named by an identifier, not 'min'"),
    ],
)
def test_names_that_are_none(name: str, message: str) -> None:
    with pytest.raises(CommandError) as caught:
        COMMANDS["rename"](TWO, "i", name)
    assert caught.value.message == message


def test_no_such_occurrence() -> None:
    with pytest.raises(CommandError, match="there are 2 loops 'i', counted from 0: no 2"):
        COMMANDS["rename"](TWO, "i", "r", occurrence=2)
