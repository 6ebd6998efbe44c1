"""store_local: the nest it prints, the same results, what it refuses."""

from __future__ import annotations

import pytest

from swirl.errors import CommandError, Refused
from swirl.ir.nest import Program
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from tests.support import assert_compiles_to_same, assert_same, program

STORE, DISTRIBUTE = COMMANDS["store_local"], COMMANDS["distribute"]

DENSE = program(
    "for n in range(3):\n for k in range(5):\n"
    "  h: float32 = b[k]\n  for i in range(7):\n   h += w[k, i] * x[n, i]\n  y[n, k] = max(h, 0.5)",
    b=(5,),
    w=(5, 7),
    x=(3, 7),
    y=(3, 5),
)
# Loops that start and step elsewhere, a condition around the declaration, a local array, and its name once more.
ODD = program(
    "for i in range(2, 11, 3):\n for j in range(4):\n  if x[i, j] > 0.0:\n"
    "   t: float32[2] = empty(2)\n   t[0] = x[i, j]\n   t[1] = t[0] * t[0]\n   y[i, j] = t[1] - t[0]\n"
    "for i in range(11):\n t: float32 = x[i, 0]\n z[i] = t * t",
    x=(11, 4),
    y=(11, 4),
    z=(11,),
)


def apart(before: Program) -> Program:
    return DISTRIBUTE(DISTRIBUTE(STORE(before, "h"), "k"), "n")


def test_prints() -> None:
    after = assert_same(DENSE, STORE(DENSE, "h"))
    assert [nest.body_text for nest in after.nests] == [
        "for n in range(3):\n    for k in range(5):\n        h[n, k] = b[k]\n        for i in range(7):\n"
        "            h[n, k] += w[k, i] * x[n, i]\n        y[n, k] = max(h[n, k], 0.5)"
    ]
    assert (after.buffers["h"].shape, after.buffers["h"].role) == ((3, 5), "temporary")
    assert [nest.body_text.count("for") for nest in apart(DENSE).nests] == [2, 3, 2]
    assert_same(DENSE, apart(DENSE))


def test_is_the_inverse_of_contract() -> None:
    kept = COMMANDS["contract"](STORE(DENSE, "h"), "h")
    assert kept.nests[0].body_text.count("h[") == 0
    assert_same(DENSE, kept)


def test_of_odd_loops_and_each_local_of_a_name() -> None:
    after = assert_same(ODD, STORE(ODD, "t"))
    assert {name: buffer.shape for name, buffer in after.buffers.items() if name not in ODD.buffers} == {
        "t_1": (3, 4, 2),
        "t": (11,),
    }
    only = assert_same(ODD, STORE(ODD, ["t"], nest=1))
    assert only.buffers.keys() - ODD.buffers.keys() == {"t_1"}
    assert only.nests[0] == ODD.nests[0]


def test_a_name_that_another_loop_has() -> None:
    before = program(
        "for i in range(5):\n t: float32 = x[i]\n y[i] = t\nfor t in range(5):\n y[t] += x[t]", x=(5,), y=(5,)
    )
    after = assert_same(before, STORE(before, "t"))
    assert after.buffers.keys() - before.buffers.keys() == {"t_1"}


def test_compiles_to_the_same_bits(target: Target) -> None:
    assert_compiles_to_same(apart(DENSE), target)
    assert_compiles_to_same(STORE(ODD, "t"), target)


def test_refusals() -> None:
    moving = program("for i in range(5):\n for j in range(i):\n  t: float32 = x[j]\n  y[i, j] = t", x=(5,), y=(5, 5))
    with pytest.raises(Refused, match="the bounds of j are not constant"):
        COMMANDS["store_local"](moving, "t")
    parallel = COMMANDS["parallelize"](DENSE, "n")
    with pytest.raises(Refused, match=r"n is a parallel loop(.|\n)*give this command before the one that made it so"):
        COMMANDS["store_local"](parallel, "h")
    alone = program("for i in range(5):\n t: float32 = x[i]\n y[i] = t", x=(5,), y=(5,))
    with pytest.raises(Refused, match="no loop is around the declaration of t"):
        COMMANDS["store_local"](COMMANDS["scalar_expand"](alone, "t"), "t")
    huge = program("for i in range(70000):\n for j in range(70000):\n  t: float32 = x[0]\n  y[0] = t", x=(1,), y=(1,))
    with pytest.raises(Refused, match="a buffer of 4,900,000,000 elements is too large"):
        COMMANDS["store_local"](huge, "t")
    with pytest.raises(CommandError, match="no local named 'g' in program\n  the locals are h"):
        COMMANDS["store_local"](DENSE, "g")
    with pytest.raises(CommandError, match="store_local takes the names of locals, not an empty list"):
        COMMANDS["store_local"](DENSE, [])
