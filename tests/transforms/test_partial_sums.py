"""partial_sums: nests printed, exactly the same results, the same bits from its C++, its precision, its refusals."""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from swirl.codegen.emit import emit
from swirl.errors import CommandError, Refused
from swirl.ir.nest import Program
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from swirl.transforms.passes.hoist import hoist
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from tests.codegen.conftest import run_source
from tests.support import assert_compiles_to_same, assert_same, merged, program

EXTENTS = (1, 2, 3, 7, 8, 9, 17)
partial_sums: Callable[..., Program] = COMMANDS["partial_sums"]


def two(e: int) -> Program:
    """Two sums, one of which is subtracted, one under a condition; and a statement that is not a sum over n."""
    return program(
        f"""
for c in range(2):
    for n in range(5):
        for i in range({e}):
            s[c] -= 0.5 * x[n, c, i]
            y[n, c] += x[n, c, i]
            z[c, i] += x[n, c, i]
            if x[n, c, i] > 0.0:
                t[c] += x[n, c, i] * x[n, c, i]
        last[c] = max(last[c], x[n, c, 0])
        count[c] += 1.0
""",
        s=(2,),
        t=(2,),
        x=(5, 2, e),
        y=(5, 2),
        z=(2, e),
        last=(2,),
        count=(2,),
    )


def test_prints(snapshot: SnapshotAssertion) -> None:
    before = two(17)
    assert snapshot == assert_same(before, partial_sums(before, "n")).text


def test_prints_of_lanes_and_copies(snapshot: SnapshotAssertion) -> None:
    """The sums of lanes and copies get their parts, the lanes are combined once."""
    before = rows(17)
    vectors = COMMANDS["unroll"](COMMANDS["vectorize"](before, "i", 4), "i", 2)
    assert snapshot == assert_same(before, partial_sums(vectors, "n")).text


def rows(e: int) -> Program:
    return program(
        f"for c in range(2):\n for n in range(5):\n  for i in range({e}):\n   s[c] += x[n, c, i]", s=(2,), x=(5, 2, e)
    )


def columns(e: int) -> Program:
    """Each lane has a sum."""
    return program(
        f"for c in range(9):\n for n in range(5):\n  for i in range({e}):\n   s[c] += x[n, i, c]", s=(9,), x=(5, e, 9)
    )


def variants(e: int) -> list[tuple[Program, Program]]:
    """Programs before and after, among other commands."""
    run = COMMANDS
    several, one = two(e), rows(e)
    vectors = run["vectorize"](one, "i", 8)
    return [
        (several, partial_sums(several, "n")),
        (several, partial_sums(run["tile_loop"](several, "n", 2), "n_outer")),
        (columns(e), partial_sums(run["vectorize"](columns(e), "c", 8), "n")),
        (one, partial_sums(run["unroll"](one, "i", 3), "n")),
        (one, partial_sums(vectors, "n")),
        (one, partial_sums(run["unroll"](vectors, "i", 2), "n")),
        (one, run["parallelize"](run["vectorize"](partial_sums(one, "n"), "i", 8), "c")),
    ]


def test_computes_exactly_the_same() -> None:
    for extent in EXTENTS:
        for before, after in variants(extent):
            assert_same(before, after)


def test_compiles_to_the_same_bits(target: Target) -> None:
    made = [after for extent in (1, 7, 8, 9, 17) for _, after in variants(extent)]
    assert_compiles_to_same(merged([hoist(scalar_replace(tidy(p))) for p in made]), target)


def test_a_long_sum_keeps_its_digits(target: Target) -> None:
    """3 million numbers near 1: added in order, the sum has lost its last digits long before the end.

    A term goes through at most ``M / (4 · lanes)`` additions in its part, 4 over the copies, ``N`` over the parts and
    ``log2(lanes)`` over the lanes; each may lose a rounding of the sum of absolute values.
    """
    n, e = 64, 49_729
    x = np.random.default_rng(1).uniform(0.5, 1.5, (n, 1, e)).astype(np.float32)
    before = program(
        f"for c in range(1):\n for n in range({n}):\n  for i in range({e}):\n   s[c] += x[n, c, i]", s=(1,), x=x.shape
    )
    after = COMMANDS["unroll"](COMMANDS["vectorize"](before, "i", target.simd_width), "i", 4)
    after = partial_sums(after, "n")
    arrays = {"x": x, "s": np.zeros(1, np.float32)}
    found = run_source(emit(hoist(scalar_replace(tidy(after))), target), arrays, target)["s"][0]
    additions = e / (4 * target.simd_width) + 4 + n + 4 + 1
    exact = x.astype(np.float64).sum()
    assert abs(found - exact) <= additions * 2.0**-24 * exact


REFUSALS: dict[str, tuple[str, str]] = {
    "nothing inside": (
        "for n in range(4):\n    s[0] += x[n, 0]",
        """
        no loop inside n adds to something that stays the same
            for n in range(4):    ← asked for partial sums
                s[0] += x[n, 0]
          name the loop around the one that adds up""",
    ),
    "used meanwhile": (
        "for n in range(4):\n    for i in range(3):\n        s[0] += x[n, i]\n    y[n] = s[0]",
        """
        no loop inside n adds to something that stays the same
            for n in range(4):    ← asked for partial sums
                for i in range(3):
                    s[0] += x[n, i]
                y[n] = s[0]
          name the loop around the one that adds up""",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    text, message = REFUSALS[name]
    with pytest.raises(Refused) as caught:
        partial_sums(program(text, s=(1,), x=(4, 3), y=(4,)), "n")
    assert str(caught.value) == cleandoc(message)


def test_a_parallel_loop() -> None:
    with pytest.raises(Refused, match="c is a parallel loop"):
        partial_sums(COMMANDS["parallelize"](two(3), "c"), "c")


def test_an_unknown_loop() -> None:
    with pytest.raises(CommandError, match="no loop"):
        partial_sums(two(3), "k")
