"""distribute(…, recompute=True): each loop computes the locals that it reads by itself."""

from __future__ import annotations

import pytest

from swirl.errors import Refused
from swirl.ir.nest import Program
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from tests.support import assert_compiles_to_same, assert_same, program

DISTRIBUTE = COMMANDS["distribute"]


def shared(body: str) -> Program:
    lines = "".join(f"  {line}\n" for line in body.splitlines())
    text = f"for i in range(5):\n for d in range(7):\n{lines}"
    return program(text, g=(5, 7), a=(5,), b=(7,), x=(7,), y=(5,))


def test_locals_are_computed_before_each_statement_that_reads_them(target: Target) -> None:
    before = shared("t: float32 = g[i, d] / 64.0\nu: float32 = t * 2.0\na[i] += t * x[d]\nb[d] += u * y[i] + t")
    after = assert_same(before, DISTRIBUTE(before, "d", recompute=True))
    assert after.text.partition("\n")[2] == (
        "    for i in range(5):\n"
        "        for d in range(7):\n"
        "            t: float32 = g[i, d] / 64.0\n"
        "            a[i] += t * x[d]\n"
        "        for d in range(7):\n"
        "            t_1: float32 = g[i, d] / 64.0\n"
        "            u: float32 = t_1 * 2.0\n"
        "            b[d] += u * y[i] + t_1"
    )
    assert_compiles_to_same(after, target)


def test_what_an_inner_loop_reads_is_before_it(target: Target) -> None:
    before = shared("t: float32 = g[i, d] * 2.0\nfor k in range(5):\n b[d] += t * y[k]\na[i] += t if t > 0.0 else x[d]")
    after = assert_same(before, DISTRIBUTE(before, "d", recompute=True))
    assert after.text.count("for d in") == 2 and after.text.count("float32 = g[i, d] * 2.0") == 2
    assert_compiles_to_same(after, target)


def test_a_block_may_have_a_local_of_the_same_name() -> None:
    before = shared("for k in range(5):\n t: float32 = y[k]\n a[i] += t\nt: float32 = g[i, d]\na[i] += t\nb[d] += t")
    after = assert_same(before, DISTRIBUTE(before, "d", recompute=True))
    assert after.text.count("float32 = g[i, d]") == 2


@pytest.mark.parametrize(
    "body",
    [
        "t: float32 = b[d] * 2.0\na[i] += t * x[d]\nb[d] += t",  # it reads what is changed after it
        "t: float32 = g[i, d]\nt *= 2.0\na[i] += t\nb[d] += t",  # it is set twice
        "t: float32 = 0.0\nfor k in range(5):\n t += y[k] * g[k, d]\na[i] += t\nb[d] += t",
        "t: float32[2] = empty(2)\nt[0] = g[i, d]\nt[1] = x[d]\na[i] += t[0]\nb[d] += t[1]",
    ],
)
def test_locals_that_change_keep_their_statements_together(body: str) -> None:
    with pytest.raises(Refused, match="a local connects the statements of the body"):
        DISTRIBUTE(shared(body), "d", recompute=True)


def test_some_locals_are_computed_again_and_others_stay() -> None:
    before = shared("t: float32 = g[i, d]\nu: float32 = x[d]\nu += t\nu *= t\na[i] += u\nb[d] += t")
    after = assert_same(before, DISTRIBUTE(before, "d", recompute=True))
    assert after.text.count("for d in") == 2
    assert after.text.count("u: float32 = x[d]") == 1


def test_dependences_still_count() -> None:
    before = shared("t: float32 = g[i, d]\na[i] = t * x[d]\nb[d] += t * a[i]")
    with pytest.raises(Refused, match="a dependence would be reversed"):
        DISTRIBUTE(before, "d", recompute=True)
