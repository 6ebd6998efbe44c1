"""Non-temporal stores: what is printed, that nothing changes, which instructions come out, what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import cleandoc

import pytest

from swirl.codegen.emit import emit, listing
from swirl.errors import CommandError, Refused
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.nest import Program, parse_program
from swirl.ir.validate import validate
from swirl.target.targets import TARGETS, Target
from swirl.transforms import COMMANDS
from swirl.transforms.passes.hoist import hoist
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from tests.codegen.test_machine_code import disassembled, target_named
from tests.support import assert_all_compile_to_same, assert_compiles_to_same, assert_same, program
from tests.transforms.witness import assert_witness

EXTENTS = (1, 2, 7, 8, 15, 16, 17, 24, 31, 32, 40, 56)


def scaled(extent: int, lanes: int = 16, dtype: str = "float32") -> Program:
    """Rows of a given length, in parallel, each a loop of vectors."""
    buffers = {"y": Buffer("net.y", (3, extent), dtype), "x": Buffer("net.x", (3, extent), dtype)}
    text = f"for j in range(3):\n for i in range({extent}):\n  y[j, i] = x[j, i] * 2 + x[j, 0]"
    before = validate(parse_program(text, buffers))
    return COMMANDS["vectorize"](COMMANDS["parallelize"](before, "j"), "i", lanes)


def streamed(before: Program, *arguments: str) -> Program:
    return COMMANDS["stream"](before, *arguments)


def text_of(after: Program) -> str:
    return "\n".join(nest.body_text for nest in after.nests)


def test_prints() -> None:
    assert text_of(streamed(scaled(40), "y")) == cleandoc("""
        for j in parallel(3):
            for i in range(0, 40, 16):
                for i_lane in vector(min(16, 40 - i)):
                    y[j, i + i_lane] = stream(x[j, i + i_lane] * 2 + x[j, 0])""")


def test_twice_is_once() -> None:
    once = streamed(scaled(40), "y")
    assert streamed(once, "y").text == once.text


def test_only_in_the_loop_that_is_named() -> None:
    before = program("for i in range(32):\n y[i] = x[i]\nfor k in range(32):\n y[k] = x[k] + 1.0", y=(32,), x=(32,))
    for var in "ik":
        before = COMMANDS["vectorize"](before, var, 16)
    after = streamed(before, "y", "k")
    assert [nest.text.count("stream(") for nest in after.nests] == [0, 1]
    assert assert_same(before, after)


@pytest.mark.parametrize("extent", EXTENTS)
def test_computes_exactly_the_same(extent: int) -> None:
    before = scaled(extent)
    assert_same(before, streamed(before, "y"))


@pytest.mark.parametrize("lanes", [8, 16, 32])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_compiles_to_the_same_bits(lanes: int, dtype: str, target: Target) -> None:
    extents = EXTENTS if lanes == 16 else (8, 40, 64)
    assert_all_compile_to_same([streamed(scaled(extent, lanes, dtype), "y") for extent in extents], target)


def test_rows_in_blocks(target: Target) -> None:
    """A place in memory that is aligned although the index is not a multiple of the lanes."""
    buffers = {name: Buffer(f"net.{name}", (2, 19, 3), role="state", layout=Layout(((1, 16),))) for name in ("y", "x")}
    text = "for n in range(2):\n for c in range(19):\n  for h in range(3):\n   y[n, c, h] = x[n, c, h] + 1.0"
    before = COMMANDS["tile_loop"](validate(parse_program(text, buffers)), "c", 16)
    before = COMMANDS["vectorize"](COMMANDS["interchange"](before, ["c_inner", "h"]), "c_inner", 16)
    after = tidy(streamed(before, "y"))
    assert_compiles_to_same(after, target)
    if target.name == "avx512":
        assert "stream_lanes(&y[n][c_outer][h][0]" in emit(after, target).source  # the last block is masked


def test_inside_other_loops(target: Target) -> None:
    """A parallel loop in a sequential one: the next turn reads what other threads have stored."""
    before = program(
        """
for t in range(4):
    for j in parallel(5):
        for i in range(0, 40, 16):
            for v in vector(min(16, 40 - i)):
                y[t, j, i + v] = stream(x[j, i + v] * 2.0)
    for j in parallel(5):
        for i in range(0, 40, 16):
            for v in vector(min(16, 40 - i)):
                x[j, i + v] = y[t, 4 - j, i + v] + 1.0
""",
        x=(5, 40),
        y=(4, 5, 40),
    )
    assert_compiles_to_same(before, target)


def test_a_store_that_becomes_a_register_stays_non_temporal(target: Target) -> None:
    before = program(
        """
for j in range(3):
    for k in range(4):
        for v in vector(16):
            y[j, v] = stream(x[k, v] * 2.0)
""",
        y=(3, 16),
        x=(4, 16),
    )
    after = assert_same(before, hoist(scalar_replace(tidy(before))))
    assert text_of(after) == cleandoc("""
        for j in range(3):
            y_t: float32[16] = empty(16)
            for k in range(4):
                for v in vector(16):
                    y_t[v] = x[k, v] * 2.0
            for v in vector(16):
                y[j, v] = stream(y_t[v])""")
    assert_compiles_to_same(after, target)


# --- instructions ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["avx512", "avx2"])
def test_instructions(name: str) -> None:
    target = target_named(name)
    whole = streamed(scaled(64, target.simd_width), "y")
    instructions = [text for _, text in disassembled(whole, target)]
    assert sum("vmovntps" in text for text in instructions) >= 1
    assert any("sfence" in text for text in instructions)
    assert "stream_lanes" not in emit(whole, target).source


def test_rows_of_halves_are_streamed_too() -> None:
    """Every second row of 56 begins in the middle of a cache line."""
    target = target_named("avx512")
    instructions = [text for _, text in disassembled(streamed(scaled(56), "y"), target)]
    assert any("vmovntps" in text and "ymm" in text for text in instructions)


def test_the_fence_stands_before_the_barrier() -> None:
    source = emit(streamed(scaled(64), "y"), TARGETS["avx512"]).source
    assert re.search(r"omp for schedule\(static\) nowait.*_mm_sfence\(\);\s*#pragma omp barrier", source, re.DOTALL)
    shown = listing(streamed(scaled(64), "y"), TARGETS["avx512"])
    assert re.search(r"omp parallel\n.*omp for schedule\(static\) nowait.*_mm_sfence\(\);\s*}", shown, re.DOTALL)
    assert "fence" not in emit(streamed(scaled(64), "y"), TARGETS["portable"]).source


# --- refusals -------------------------------------------------------------------------------------------
REFUSALS: dict[str, tuple[str, str]] = {
    "one at a time": (
        "for i in range(8):\n y[i] = x[i]",
        """
        y[i] is stored one element at a time
            for i in range(8):
                y[i] = x[i]    ← asked to be stored past the caches
          vectorize('i'), then stream('y')""",
    ),
    "an update": (
        "for v in vector(8):\n y[v] += x[v]",
        """
        y[v] is updated: it is read before it is written
            for v in vector(8):
                y[v] += x[v]    ← asked to be stored past the caches""",
    ),
    "not neighbours": (
        "for v in vector(8):\n y[2 * v] = x[v]",
        """
        lanes of y[2 * v] are not neighbours in memory
            for v in vector(8):
                y[2 * v] = x[v]    ← asked to be stored past the caches
          the lanes must be those of the dimension that is innermost in memory""",
    ),
    "some lanes": (
        "for v in vector(8):\n if x[v] > 0.0:\n  y[v] = x[v]",
        """
        y[v] is stored by some lanes only
            for v in vector(8):
                if x[v] > 0.0:
                    y[v] = x[v]    ← asked to be stored past the caches
          store both cases by a select""",
    ),
    "read back": (
        "for i in range(0, 16, 8):\n for v in vector(8):\n  y[i + v + 8] = x[i + v]\n  x[i + v] = y[i + v]",
        """
        y[i + v + 8] is touched again: it would have to come back from memory
            for i in range(0, 16, 8):
                for v in vector(8):
                    y[i + v + 8] = x[i + v]    ← asked to be stored past the caches
                    x[i + v] = y[i + v]
          i=0 writes y[8], which i=8 reads""",
    ),
    "stored again": (
        "for k in range(3):\n for v in vector(8):\n  y[v] = x[k + v]",
        """
        y[v] is touched again: it would have to come back from memory
            for k in range(3):
                for v in vector(8):
                    y[v] = x[k + v]    ← asked to be stored past the caches
          k=0 and k=1 both write y[v]
          scalar_replace('y'), then stream('y')""",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    text, expected = REFUSALS[name]
    before = program(text, y=(24,), x=(24,))
    with pytest.raises(Refused) as caught:
        streamed(before, "y")
    assert str(caught.value).startswith(cleandoc(expected))
    if caught.value.witness is not None:
        assert_witness(before, caught.value)


@pytest.mark.parametrize(
    ("rewrite", "message"),
    [
        (lambda p: streamed(p, "z"), "no buffer named 'z'"),
        (lambda p: streamed(p, "x"), "nothing in program stores x"),
        (lambda p: streamed(p, "y", "k"), "no loop named 'k'"),
        (lambda p: COMMANDS["stream"](p, "y", nest="other"), "no nest 'other' in program"),
    ],
)
def test_bad_arguments(rewrite: Callable[[Program], Program], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        rewrite(scaled(40))


def test_truth_values_have_no_such_stores() -> None:
    buffers = {"y": Buffer("net.y", (16,), "bool"), "x": Buffer("net.x", (16,))}
    before = parse_program("for v in vector(16):\n y[v] = x[v] > 0.0", buffers)
    with pytest.raises(CommandError, match="truth values"):
        streamed(before, "y")
