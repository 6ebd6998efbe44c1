"""g++ 12 at -O3 vectorises loops that add several terms to one number, and adds wrong elements where the terms are not
in memory in this order.

swirl/codegen/sum_order.py finds such loops.
"""

from __future__ import annotations

from swirl.codegen.emit import emit
from swirl.target.targets import Target
from swirl.transforms.commands.unroll import unroll
from swirl.transforms.commands.unroll_and_jam import unroll_and_jam
from swirl.transforms.passes.scalars import scalar_replace
from tests.support import assert_compiles_to_same, merged, program


def test_sums_of_elements_from_the_last_to_the_first(target: Target) -> None:
    texts = [
        "for j in range(3):\n for k in range(j + 1):\n  for l in range(2):\n   y[j] += x[k, 3 - l]",
        "for j in range(3):\n for k in range(9):\n  for l in range(4):\n   y[j] -= x[k, 3 - l]",
        "for j in range(3):\n for k in range(9):\n  for l in range(j, j + 4):\n   y[j] += x[k, 6 - l]",
        "for j in range(3):\n for k in range(9):\n  for l in range(8):\n   y[l // 2] += x[k, 7 - l]",
        "for k in range(9):\n for i in range(2):\n  for l in range(2):\n   y[i + l] += x[k, 4 - 2 * l - i]",
        "for k in range(9):\n y[0] = y[0] + x[k, 1] + x[k, 0]",
        "for k in range(9):\n y[0] += x[k, 1] * x[k, 3]\n y[1] += x[k, 5]\n y[0] += x[k, 0] * x[k, 2]",
    ]
    texts += [
        "for k in range(40):\n u: float32 = y[0] + x[k, 1]\n y[0] = u + x[k, 0]",
        "for k in range(40):\n u: float32 = y[0] + x[k, 1]\n v: float32 = y[1] + x[k, 3]\n y[0] = u + x[k, 0]\n"
        " y[1] = v + x[k, 2]",
        "for j in range(3):\n for k in range(40):\n  u: float32 = y[j]\n  for l in range(2):\n   u += x[k, 3 - l]\n"
        "  y[j] = u",
        "for j in range(3):\n for k in range(40):\n  u: float32 = y[j] + x[k, 3]\n  y[j] = u\n  y[j] += x[k, 2]",
        "for j in range(3):\n for k in range(40):\n  for m in range(2):\n   for l in range(m + 1):\n"
        "    y[j] += x[k, 7 - 4 * m - l]",
    ]
    # Bounds that are constants only in the range of the loop around.
    for bounds in ("min(2, k + 2)", "max(0, 0 - k), 2", "3 - k // 40"):
        texts.append(f"for j in range(3):\n for k in range(40):\n  for l in range({bounds}):\n   y[j] += x[k, 3 - l]")
    programs = [scalar_replace(program(text, y=(4,), x=(40, 8))) for text in texts]
    programs += [program(text, y=(4,), x=(40, 8)) for text in texts]
    assert_compiles_to_same(merged(programs), target)


def test_sums_of_unrolled_loops(target: Target) -> None:
    text = "for j in range(4):\n for k in range(99):\n  for l in range(4):\n   y[j] += x[k, 3 - l]"
    before = program(text, y=(4,), x=(99, 4))
    unrolled = scalar_replace(unroll(before, "l", 4))
    jammed = scalar_replace(unroll_and_jam(unroll(before, "l", 2), "j", 2))
    assert "in_order()" not in emit(unrolled, target).source  # four sums
    assert "in_order()" in emit(jammed, target).source
    assert_compiles_to_same(merged([unrolled, jammed]), target)


def test_only_loops_that_add_twice_to_one_number_are_left_alone(target: Target) -> None:
    def left_alone(text: str) -> bool:
        return "in_order()" in emit(program(text, y=(99, 4), x=(99, 4)), target).source

    assert left_alone("for i in range(99):\n for l in range(2):\n  y[0, 0] += x[i, l]")
    assert left_alone("for i in range(99):\n u: float32 = y[0, 0] + x[i, 1]\n y[0, 0] = u + x[i, 0]")
    assert left_alone("for i in range(99):\n for m in range(2):\n  for l in range(m + 1):\n   y[0, 0] += x[i, m + l]")
    assert left_alone("for i in range(99):\n for l in range(min(2, i + 2)):\n  y[0, 0] += x[i, l]")
    assert not left_alone("for i in range(1):\n for l in range(i, 2):\n  y[0, i] += x[i, l]\n y[1, 0] += x[i, 0]")
    assert not left_alone("for i in range(99):\n y[0, 0] += x[i, 0]")
    assert not left_alone("for i in range(99):\n u: float32 = y[0, 0]\n y[0, 0] = u + x[i, 0]")
    assert not left_alone("for i in range(99):\n u: float32 = x[i, 0] - y[1, 0]\n y[0, 0] += u * u")
    assert not left_alone("for i in range(99):\n for l in range(2):\n  y[i, l] += x[i, l]")
    assert not left_alone("for i in range(99):\n for l in range(4):\n  y[0, l] += x[i, l]")
    assert not left_alone("for i in range(99):\n for l in range(4):\n  y[i, 0] = x[i, l]")
