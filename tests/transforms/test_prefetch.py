"""Software prefetches: their places, that nothing changes, which instructions come out, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc

import pytest

from swirl.codegen.physical import physical
from swirl.errors import CommandError, Refused
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.nest import Program, parse_program
from swirl.ir.validate import validate
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from swirl.transforms.passes.hoist import hoist
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from tests.codegen.test_machine_code import disassembled, target_named
from tests.support import assert_all_compile_to_same, assert_compiles_to_same, assert_same, program


def rows(extent: int, lanes: int = 16) -> Program:
    text = f"for j in range(3):\n for i in range({extent}):\n  y[j, i] = x[j, i] * 2.0 + x[j, i + 1]"
    before = program(text, y=(3, extent), x=(3, extent + 1))
    return COMMANDS["vectorize"](COMMANDS["parallelize"](before, "j"), "i", lanes)


def convolution(extent: int = 7) -> Program:
    before = program(
        f"""
for n in range(2):
    for k in range(6):
        for y in range({extent}):
            for x in range({extent}):
                for c in range(5):
                    for ky in range(3):
                        for kx in range(3):
                            value[n, k, y, x] += w[k, c, ky, kx] * inputs[n, c, y + ky, x + kx]
""",
        value=(2, 6, extent, extent),
        w=(6, 5, 3, 3),
        inputs=(2, 5, extent + 2, extent + 2),
    )
    return COMMANDS["vectorize"](COMMANDS["unroll_and_jam"](before, "k", 3), "x", 8)


def prefetched(before: Program, *arguments: object) -> Program:
    return COMMANDS["prefetch"](before, *arguments)


def text_of(after: Program) -> str:
    return "\n".join(nest.body_text for nest in after.nests)


def test_prints_one_prefetch_for_the_lanes_and_for_neighbouring_elements() -> None:
    assert text_of(prefetched(rows(40), "x", "i", 4, 2)) == cleandoc("""
        for j in parallel(3):
            for i in range(0, 40, 16):
                prefetch(x, (j, i + 65), 2)
                for i_lane in vector(min(16, 40 - i)):
                    y[j, i + i_lane] = x[j, i + i_lane] * 2.0 + x[j, i + i_lane + 1]""")


def test_prints_a_line_a_step() -> None:
    assert text_of(prefetched(rows(40), "y", "j")) == cleandoc("""
        for j in parallel(3):
            for i_line in range(0, 40, 16):
                prefetch(y, (j + 1, i_line), 1)
            for i in range(0, 40, 16):
                for i_lane in vector(min(16, 40 - i)):
                    y[j, i + i_lane] = x[j, i + i_lane] * 2.0 + x[j, i + i_lane + 1]""")


def test_loops_that_do_not_move_the_element_fetch_nothing_again() -> None:
    shown = text_of(prefetched(prefetched(convolution(), "inputs", "c"), "w", "k"))
    assert "for ky_line in range(3):\n                        prefetch(inputs, (n, c + 1, y + ky_line, x), 1)" in shown
    assert "prefetch(w, (k + k_unrolled_line + 3, c_line, 0, 0), 1)" in shown
    assert shown.count("prefetch(") == 2


def test_twice_is_once_and_reset_takes_them_out() -> None:
    before = convolution()
    once = prefetched(before, "inputs", "c", 2)
    assert prefetched(once, "inputs", "c", 2).text == once.text
    assert COMMANDS["reset_prefetch"](once).text == before.text


@pytest.mark.parametrize("extent", [1, 7, 15, 16, 17, 33])
def test_computes_exactly_the_same(extent: int) -> None:
    before = rows(extent)
    after = prefetched(before, "x", "i", 3)
    assert_same(before, prefetched(after, "y", "j", 100, 0) if extent >= 16 else after)


@pytest.mark.parametrize("extent", [2, 3, 7, 9])
def test_convolution_computes_exactly_the_same(extent: int) -> None:
    before = convolution(extent)
    after = prefetched(prefetched(before, "inputs", "c", 2), "w", "k")
    assert_same(before, hoist(scalar_replace(tidy(after))))


def test_compiles_to_the_same_bits(target: Target) -> None:
    made = [prefetched(prefetched(rows(extent), "x", "i", 3), "y", "j", 9, 3) for extent in (16, 17, 40)]
    made.append(hoist(scalar_replace(tidy(prefetched(prefetched(convolution(), "inputs", "c", 2), "w", "k")))))
    assert_all_compile_to_same(made, target)


def test_blocks(target: Target) -> None:
    buffers = {name: Buffer(f"net.{name}", (2, 19, 3), role="state", layout=Layout(((1, 16),))) for name in ("y", "x")}
    text = "for n in range(2):\n for c in range(19):\n  for h in range(3):\n   y[n, c, h] = x[n, c, h] + 1.0"
    before = COMMANDS["tile_loop"](validate(parse_program(text, buffers)), "c", 16)
    before = COMMANDS["vectorize"](COMMANDS["interchange"](before, ["c_inner", "h"]), "c_inner", 16)
    after = prefetched(before, "x", "c_outer")
    assert "prefetch(x, (n, c_outer + 1, h_line, 0), 1)" in physical(after).text
    assert_same(before, after)
    assert_compiles_to_same(after, target)


@pytest.mark.parametrize(("level", "name"), list(enumerate(("prefetchnta", "prefetcht0", "prefetcht1", "prefetcht2"))))
def test_instructions(level: int, name: str) -> None:
    target = target_named("avx512")
    instructions = [text for _, text in disassembled(prefetched(rows(64), "x", "i", 4, level), target)]
    assert any(name in text for text in instructions)


# --- refusals -------------------------------------------------------------------------------------------
def test_less_than_a_line() -> None:
    before = program("for j in range(3):\n for i in range(8):\n  y[j] += x[j, i]", y=(3,), x=(3, 8))
    with pytest.raises(Refused) as caught:
        prefetched(before, "x", "i")
    assert str(caught.value) == cleandoc("""
        x[j, i] moves by 4 bytes an iteration of i
            for j in range(3):
                for i in range(8):    ← asked to prefetch
                    y[j] += x[j, i]
          tile_loop('i', 16), then prefetch('x', 'i_outer', 1, 1)""")


def test_does_not_move() -> None:
    before = program("for j in range(3):\n for i in range(8):\n  y[j] += x[j, i]", y=(3,), x=(3, 8))
    with pytest.raises(Refused, match=r"y\[j\] does not move with i"):
        prefetched(before, "y", "i")


def test_found_by_way_of_data() -> None:
    buffers = {"y": Buffer("y", (8,)), "x": Buffer("x", (40, 16)), "place": Buffer("place", (8,), "int32")}
    before = parse_program("for i in range(8):\n y[i] = x[place[i], 0]", buffers)
    with pytest.raises(Refused, match=r"the place of x\[place\[i\], 0\] depends on data"):
        prefetched(before, "x", "i")


def test_lanes_cannot_prefetch() -> None:
    with pytest.raises(Refused, match="i_lane is a vector loop"):
        prefetched(rows(40), "x", "i_lane")
    before = program("for i in range(8):\n for j in range(16):\n  y[i, j] = x[i, j]", y=(8, 16), x=(8, 16))
    after = prefetched(before, "x", "i")
    for name in ("vectorize", "flatten"):
        with pytest.raises(Refused, match="prefetch"):
            COMMANDS[name](after, "i" if name == "vectorize" else ["i", "j"])


@pytest.mark.parametrize(
    ("rewrite", "message"),
    [
        (lambda p: prefetched(p, "z", "i"), "no buffer named 'z'"),
        (lambda p: prefetched(p, "x", "k"), "no loop named 'k'"),
        (lambda p: prefetched(p, "x", "i", 0), "distance must be a whole number of at least 1, not 0"),
        (lambda p: prefetched(p, "x", "i", 1, 4), "level must be one of 0, 1, 2, 3, not 4"),
    ],
)
def test_bad_arguments(rewrite: Callable[[Program], Program], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        rewrite(rows(40))
