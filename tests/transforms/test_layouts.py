"""Layouts: zeros around a buffer and the order of its dimensions. What is printed, exactly the same results, the same
bits compiled, what is refused, and what a net's user sees of it."""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc

import numpy as np
import pytest

from swirl.codegen.physical import physical
from swirl.errors import CommandError, LatteError, Refused
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.execute import execute
from swirl.ir.nest import Program, parse_program
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from swirl.transforms.passes.hoist import hoist
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from tests.support import assert_all_compile_to_same, assert_compiles_to_same, assert_same, program
from tests.transforms.witness import touched

set_padding, transpose = COMMANDS["set_padding"], COMMANDS["transpose"]


def convolution(rows: int = 4, columns: int = 5, taps: int = 3, stride: int = 1, pad: int = 1) -> Program:
    height, width = ((n - 1) * stride + taps - 2 * pad for n in (rows, columns))
    return program(
        f"""
for k in range(2):
    for y in range({rows}):
        for x in range({columns}):
            v[0, k, y, x] = 0.0
            for c in range(3):
                for ky in range({taps}):
                    for kx in range({taps}):
                        if {stride} * y + ky >= {pad} and {stride} * y + ky < {height + pad} \\
                                and {stride} * x + kx >= {pad} and {stride} * x + kx < {width + pad}:
                            v[0, k, y, x] += w[k, c, ky, kx] \
                                * i[0, c, {stride} * y + ky - {pad}, {stride} * x + kx - {pad}]
""",
        v=(1, 2, rows, columns),
        w=(2, 3, taps, taps),
        i=(1, 3, height, width),
    )


def row(extent: int = 5, taps: int = 3, pad: int = 1) -> Program:
    text = f"for x in range({extent}):\n for k in range({taps}):\n  if x + k >= {pad} and x + k < {extent + pad}:\n"
    return program(text + f"   y[0, x] += w[0, k] * i[0, x + k - {pad}]", y=(1, extent), w=(1, taps), i=(1, extent))


# --- printed --------------------------------------------------------------------------------------------
def test_prints_without_conditions() -> None:
    after = set_padding(row(), "i", (1, 1))
    assert after.nests[0].body_text == cleandoc("""
        for x in range(5):
            for k in range(3):
                y[0, x] += w[0, k] * i[0, x + k - 1]""")
    assert after.buffers["i"].layout == Layout(halo=((0, 0), (1, 1)))
    assert physical(after).nests[0].body_text == cleandoc("""
        for x in range(5):
            for k in range(3):
                y[0, x] += w[0, k] * i[0, x + k]""")
    assert physical(after).buffers["i"].shape == (1, 7)


def test_prints_with_the_conditions_of_a_side_without_zeros() -> None:
    assert "if x + k < 6:" in set_padding(row(), "i", (1, 0)).text
    assert "if x + k >= 1:" in set_padding(row(), "i", (0, 3)).text
    assert set_padding(row(), "i", 0).text == row().text


def test_prints_another_order() -> None:
    after = transpose(convolution(), "i", order=(1, 2, 0))
    assert after.text == convolution().text
    assert "i[0, 1 * y + ky - 1, 1 * x + kx - 1, c]" in physical(after).text
    assert transpose(transpose(convolution(), "i", 0, 1), "i", 0, 2).buffers == after.buffers
    assert transpose(transpose(convolution(), "i", 0, 2), "i", dim1=2, dim2=0).buffers == convolution().buffers


def test_conditions_of_other_buffers_stay() -> None:
    for text in (
        "for i in range(5):\n if i > 0:\n  y[i] += x[i] * w[i - 1]",  # x is not read outside
        "for i in range(5):\n if i > 0:\n  y[i - 1] += x[i - 1]",  # y would be written outside
        "for i in range(5):\n if i > 0:\n  y[i] = x[i - 1]",  # an assignment is not nothing
        "for i in range(5):\n if i > 0:\n  y[i] = max(y[i], x[i - 1])",
        "for i in range(5):\n if i > 0:\n  y[i] += x[i - 1] + w[i]",
        "for i in range(5):\n if i > 0:\n  y[i] += w[i] / x[i - 1]",
        "for i in range(5):\n if i > 0:\n  y[i] += x[i - 1]\n else:\n  y[i] += w[i]",
        "for i in range(5):\n if w[i] > 0.0:\n  y[i] += x[i]",
        "for i in range(5):\n y[i] += x[i - 1] if i > 0 else 1.0",
    ):
        before = program(text, x=(5,), w=(5,), y=(5,))
        before = before.with_buffers(**{name: Buffer(name, (5,), role="param") for name in "xwy"})
        assert assert_same(before, set_padding(before, "x", 1)).text == before.text


FORMS = {
    "several statements": "for i in range(5):\n if i > 0:\n"
    "  t: float32 = x[i - 1] * 2.0\n  y[i] += t * w[i]\n  y[i] -= t",
    "a loop inside": "for i in range(5):\n if i >= 1 and i < 5:\n  for j in range(2):\n   y[i] += x[i - 1] * w[j]",
    "a select": "for i in range(6):\n y[i] = w[i] * (x[i - 1] if i > 0 and i < 6 else 0.0)",
    "two selects": "for i in range(6):\n y[i] = (x[i - 1] if i > 0 else 0.0) + (x[i + 1] if i < 4 else 0.0)",
    "a chain": "for i in range(6):\n for j in range(3):\n  if 1 <= i + j < 6:\n   y[i] += -x[i + j - 1] / 2.0",
    "strides": "for i in range(3):\n for j in range(3):\n"
    "  if 2 * i + j >= 1 and 2 * i + j < 6:\n   y[i] += x[2 * i + j - 1] * w[j]",
    "residues": "for i in range(9):\n for j in range(3):\n"
    "  if (i - j + 1) % 2 == 0 and i - j + 1 >= 0 and i - j + 1 < 10:\n   y[i] += x[(i - j + 1) // 2] * w[j]",
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, target: Target) -> None:
    before = program(FORMS[form], x=(5,), w=(9,), y=(9,))
    before = before.with_buffers(**{n: Buffer(n, b.shape, role="param") for n, b in before.buffers.items()})
    after = assert_same(before, set_padding(before, "x", 2))
    assert after.text.count("if") == (1 if form == "residues" else 0), after.text
    assert_compiles_to_same(after, target)


# --- the same -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("taps", "pad"), [(3, 1), (3, 2), (1, 0), (4, 1)])
def test_any_convolution(stride: int, taps: int, pad: int) -> None:
    before = convolution(3, 4, taps, stride, pad)
    after = assert_same(before, set_padding(before, "i", 0, pad, pad), finite=True)
    assert "if" not in after.text
    more = set_padding(before, "i", 1, (pad, pad + 2), pad)
    assert assert_same(before, more, finite=True).text == after.text
    assert_same(before, COMMANDS["tile"](transpose(after, "i", order=(1, 2, 0)), "i", 0, 2), finite=True)


def in_lanes_and_registers(before: Program) -> Program:
    after = set_padding(COMMANDS["tile_loop"](before, "y", 2), "i", 0, 1, 1)
    after = COMMANDS["unroll_and_jam"](after, "k", 2)
    after = COMMANDS["vectorize"](after, "x", 8)
    return hoist(scalar_replace(tidy(COMMANDS["parallelize"](after, "y_outer"))))


COLUMNS = (1, 7, 8, 9, 17)


@pytest.mark.parametrize("columns", COLUMNS)
def test_in_lanes_and_registers(columns: int) -> None:
    before = convolution(3, columns)
    assert_same(before, in_lanes_and_registers(before), finite=True)


def test_in_lanes_and_registers_compiled(target: Target) -> None:
    assert_all_compile_to_same([in_lanes_and_registers(convolution(3, columns)) for columns in COLUMNS], target)


@pytest.mark.parametrize("channels", [1, 7, 8, 9])
def test_lanes_along_another_dimension(channels: int, target: Target) -> None:
    before = program(
        f"for n in range(2):\n for c in range({channels}):\n  for y in range(3):\n   for x in range(5):\n"
        f"    o[n, c, y, x] = i[n, c, y, x] * g[c]",
        o=(2, channels, 3, 5),
        i=(2, channels, 3, 5),
        g=(1, channels)[1:],
    )
    before = before.with_buffers(g=Buffer("g", (channels,), role="param"))
    after = transpose(transpose(before, "i", order=[1, 2, 0]), "o", order=[1, 2, 0])
    after = COMMANDS["vectorize"](COMMANDS["reorder"](after, ["n", "y", "x", "c"]), "c", 8)
    assert_same(before, after)
    assert_compiles_to_same(after, target)


def test_laid_out_after_the_loops_are_lanes(target: Target) -> None:
    after = COMMANDS["vectorize"](convolution(3, 9), "x", 8)
    after = transpose(set_padding(after, "i", 1, 2, 3), "i", 0, 2)
    after = transpose(transpose(after, "v", 1, 2), "w", 0, 2)
    assert_same(convolution(3, 9), after, finite=True)
    assert_compiles_to_same(after, target)


@pytest.mark.parametrize("at", [None, "y", "ky"])
def test_packed_copies(at: str | None, target: Target) -> None:
    before = convolution(3, 5)
    after = COMMANDS["pack"](set_padding(before, "i", 0, 1, 1), "i", at=at, order=(1, 2, 0))
    assert_same(before, after)
    if at is None:
        assert after.buffers["i_packed"].layout == Layout(halo=((0, 0), (0, 0), (1, 1), (1, 1)), order=(0, 2, 3, 1))
    assert_compiles_to_same(after, target)
    own = set_padding(COMMANDS["pack"](before, "i"), "i_packed", 0, 0, 1, 1)  # a reader's copy with zeros of its own
    assert_same(before, own)
    assert "if" not in own.text


# --- layouts --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "layout",
    [
        Layout(halo=((0, 0), (2, 1), (0, 3))),
        Layout(order=(2, 0, 1)),
        Layout(((1, 4),), ((0, 1), (1, 1), (0, 0)), (0, 2, 1)),
        Layout(((2, 2), (0, 3)), order=(1, 2, 0)),
    ],
)
def test_packing_and_unpacking(layout: Layout) -> None:
    logical = np.arange(2 * 5 * 3, dtype=np.float32).reshape(2, 5, 3) + 1
    stored = layout.pack(logical)
    assert stored.shape == layout.physical_shape(logical.shape) and stored.sum() == logical.sum()
    np.testing.assert_array_equal(layout.unpack(stored, logical.shape), logical)
    view = layout.view(stored, logical.shape)
    if layout.blocks:
        assert view is None
    else:
        assert view is not None and np.shares_memory(view, stored)
        np.testing.assert_array_equal(view, logical)


def test_the_halo_is_checked_when_executed() -> None:
    buffers = {"x": Buffer("x", (4,), layout=Layout(halo=((1, 2),))), "y": Buffer("y", (7,))}
    arrays = {"x": np.ones(4, np.float32), "y": np.zeros(7, np.float32)}
    for checking in (False, True):
        execute(parse_program("for i in range(7): y[i] = x[i - 1]", buffers), arrays, checking=checking)
        np.testing.assert_array_equal(arrays["y"], [0, 1, 1, 1, 1, 0, 0])
        for text in ("for i in range(1): y[i] = x[i - 2]", "for i in range(1): x[i + 4] = 1.0"):
            with pytest.raises(LatteError, match="outside its shape"):
                execute(parse_program(text, buffers), arrays, checking=checking)


# --- refusals -------------------------------------------------------------------------------------------
def test_too_few_zeros() -> None:
    with pytest.raises(Refused) as caught:
        set_padding(row(5, 5, 2), "i", (2, 1))
    assert str(caught.value) == cleandoc("""
        the halo of i is too small
            for x in range(5):
                for k in range(5):
                    if x + k < 7:    ← its condition would be needless with a larger one
                        y[0, x] += w[0, k] * i[0, x + k - 2]
          x=4, k=4 reads i[0, x + k - 2], which is i[0, 6]
          set_padding('i', (2, 2)) is enough; a side of 0 keeps its conditions""")
    before = program(
        "for x in range(5):\n for k in range(5):\n  y[0, x] += w[0, k] * i[0, x + k - 2]", y=(1, 5), w=(1, 5), i=(1, 5)
    )
    arrays = {name: np.ones((1, 9), dtype=object) for name in before.buffers}
    assert ("i", (0, 6)) in touched(before.nests[0], arrays, {"x": 4, "k": 4})
    assert_same(row(5, 5, 2), set_padding(row(5, 5, 2), "i", (2, 2)))


@pytest.mark.parametrize(
    ("rewrite", "message"),
    [
        (lambda p: set_padding(p, "z", 1), "no buffer named 'z'"),
        (lambda p: set_padding(p, "i", 1, 1), "i has 3 dimensions to pad, not 2"),
        (lambda p: set_padding(p, "i", 1, (1, 2, 3), 1), "padding is"),
        (lambda p: set_padding(p, "i", 1, -1, 1), "padding is"),
        (lambda p: set_padding(p, "i", 1, True, 1), "padding is"),
        (lambda p: transpose(p, "z", 0, 1), "no buffer named 'z'"),
        (lambda p: transpose(p, "i", 0, 3), "has dimensions 0 to 2, not 3"),
        (lambda p: transpose(p, "i", 0), "has dimensions 0 to 2, not None"),
        (lambda p: transpose(p, "i", 0, 1, order=(0, 1, 2)), "not both"),
        (lambda p: transpose(p, "i", order=(0, 1, 1)), "does not have each dimension of i once"),
        (lambda p: transpose(p, "i", order=(0, 1)), "does not have each dimension of i once"),
        (lambda p: transpose(p, "i", order="210"), "an order is a list of dimensions"),
        (lambda p: COMMANDS["pack"](p, "i", order=(0, 1)), "does not have each dimension of i once"),
    ],
)
def test_bad_arguments(rewrite: Callable[[Program], Program], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        rewrite(convolution())
