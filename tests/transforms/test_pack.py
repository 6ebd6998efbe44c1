"""Copies of the part of a buffer that a loop reads: what is printed, exactly the same results, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc

import numpy as np
import pytest

from swirl.errors import CommandError, Refused
from swirl.ir.nest import Program
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from swirl.transforms.passes.hoist import hoist
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from tests.support import assert_all_compile_to_same, assert_same, program
from tests.transforms.witness import touched


def convolution(rows: int = 7, columns: int = 5, stride: int = 1) -> Program:
    """A convolution of 3 × 3 taps over two channels, padded by one."""
    inner, wide = rows * stride, columns * stride
    return program(
        f"""
for n in range(2):
    for y in range({rows}):
        for x in range({columns}):
            v[n, y, x] = 0.0
            for c in range(2):
                for ky in range(3):
                    for kx in range(3):
                        if {stride} * y + ky >= 1 and {stride} * y + ky < {inner + 1} \\
                                and {stride} * x + kx >= 1 and {stride} * x + kx < {wide + 1}:
                            v[n, y, x] += w[c, ky, kx] * i[n, c, {stride} * y + ky - 1, {stride} * x + kx - 1]
""",
        v=(2, rows, columns),
        w=(2, 3, 3),
        i=(2, 2, inner, wide),
    )


def row_sums(rows: int = 6, columns: int = 5) -> Program:
    text = f"for i in range({rows}):\n for j in range({columns}):\n  for k in range(3):\n   y[i, j] += x[i, j + k]"
    return program(text, y=(rows, columns), x=(rows, columns + 2))


def pack(before: Program, buffer: str, **options: object) -> Program:
    return COMMANDS["pack"](before, buffer, **options)


def products_of_items(rows: int = 6, columns: int = 7, terms: int = 5) -> Program:
    """Of each item of x with each of z."""
    text = f"for m in range(2):\n for i in range({rows}):\n  for j in range({columns}):\n   for d in range({terms}):\n"
    return program(f"{text}    y[i, j] += x[i, d] * z[j, d]", y=(rows, columns), x=(rows, terms), z=(columns, terms))


# --- printed --------------------------------------------------------------------------------------------
def test_prints_a_row() -> None:
    assert pack(row_sums(), "x", at="i").nests[0].body_text == cleandoc("""
        for i in range(6):
            x_packed: float32[7] = empty(7)
            for x_packed_dim1 in range(7):
                x_packed[x_packed_dim1] = x[i, x_packed_dim1]
            for j in range(5):
                for k in range(3):
                    y[i, j] += x_packed[j + k]""")


def test_prints_the_items_innermost() -> None:
    after = pack(products_of_items(), "z", at="i", order=[0, -1])
    assert after.nests[0].body_text == cleandoc("""
        for m in range(2):
            for i in range(6):
                z_packed: float32[5, 7] = empty(5, 7)
                for z_packed_dim1 in range(5):
                    for z_packed_dim0 in range(7):
                        z_packed[z_packed_dim1, z_packed_dim0] = z[z_packed_dim0, z_packed_dim1]
                for j in range(7):
                    for d in range(5):
                        y[i, j] += x[i, d] * z_packed[d, j]""")


def test_prints_a_window() -> None:
    assert pack(row_sums(), "x", at="j", name="window").nests[0].body_text == cleandoc("""
        for i in range(6):
            for j in range(5):
                window: float32[3] = empty(3)
                for window_dim1 in range(3):
                    window[window_dim1] = x[i, j + window_dim1]
                for k in range(3):
                    y[i, j] += window[k]""")


def test_prints_a_tile_clipped_at_the_borders() -> None:
    after = pack(COMMANDS["tile_loop"](convolution(), "y", 4), "i", at="y_outer")
    assert after.nests[0].body_text.splitlines()[2:7] == [
        "        i_packed: float32[2, 6, 5] = empty(2, 6, 5)",
        "        for i_packed_dim1 in range(2):",
        "            for i_packed_dim2 in range(max(0, 1 - y_outer * 4), min(6, 8 - y_outer * 4)):",
        "                for i_packed_dim3 in range(5):",
        "                    i_packed[i_packed_dim1, i_packed_dim2, i_packed_dim3] = "
        "i[n, i_packed_dim1, y_outer * 4 + i_packed_dim2 - 1, i_packed_dim3]",
    ]
    assert "w[c, ky, kx] * i_packed[c, y_inner + ky, x + kx - 1]" in after.text


def test_a_single_element_at_the_border_is_not_read_outside() -> None:
    before = program("for i in range(5):\n if i > 0:\n  y[i] = x[i - 1]", y=(5,), x=(4,))
    after = assert_same(before, pack(before, "x", at="i"))
    assert after.nests[0].body_text == cleandoc("""
        for i in range(5):
            x_packed: float32[1] = empty(1)
            for x_packed_dim0 in range(max(0, 1 - i), 1):
                x_packed[x_packed_dim0] = x[i + x_packed_dim0 - 1]
            if i > 0:
                y[i] = x_packed[0]""")


# --- the same -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("loop", ["n", "y", "x", "c", "ky", "kx"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_any_loop(loop: str, stride: int) -> None:
    before = convolution(4, 3, stride)
    for buffer in "iw":
        assert_same(before, pack(before, buffer, at=loop))
    assert_same(before, pack(pack(before, "i", at=loop), "w", at="n"))


@pytest.mark.parametrize("extent", [1, 2, 7, 8, 9, 13])
def test_any_extent(extent: int) -> None:
    before = row_sums(3, extent)
    for tail in ("min", "mask", "peel"):
        tiled = COMMANDS["tile_loop"](before, "j", 4, tail=tail)
        for loop in ("i", "j_outer", "j_inner"):
            if f"for {loop} " in tiled.text:
                assert_same(before, pack(tiled, "x", at=loop))


OTHERS = {
    "several references": "for i in range(5):\n for j in range(3):\n  y[i] += x[i + j] * x[i + 2 - j] + x[7]",
    "strides": "for i in range(4):\n for j in range(2):\n  y[i] += x[2 * i + 3 * j]",
    "quotients": "for i in range(6):\n for j in range(4):\n  y[i] += x[(i + j) // 2] + x[(i + j) % 3]",
    "clipped": "for i in range(5):\n for j in range(max(0, 1 - i), min(3, 6 - i)):\n  y[i] += x[i + j - 1]",
    "a select": "for i in range(5):\n for j in range(3):\n  y[i] += x[i + j - 1] if i + j > 0 else 2.0",
    "no iteration": "for i in range(3):\n for j in range(0):\n  y[i] += x[j]\n y[i] += x[i]",
}


def packed(name: str) -> tuple[Program, list[Program]]:
    before = program(OTHERS[name], x=(11,), y=(8,))
    return before, [pack(before, "x", at=loop) for loop in ("i" if name == "no iteration" else "ij")]


@pytest.mark.parametrize("name", OTHERS)
def test_any_subscripts(name: str) -> None:
    before, made = packed(name)
    for after in made:
        assert_same(before, after)


def test_any_subscripts_compiled(target: Target) -> None:
    assert_all_compile_to_same([after for name in OTHERS for after in packed(name)[1]], target)


def items_innermost() -> list[Program]:
    return [pack(products_of_items(), "z", at=at, order=[0, -1]) for at in (None, "m", "i")]


def test_items_may_be_innermost() -> None:
    whole, *local = items_innermost()
    assert whole.buffers["z_packed"].physical_shape == (5, 7)
    for after in (whole, *local):
        assert_same(products_of_items(), after)


def test_items_may_be_innermost_compiled(target: Target) -> None:
    assert_all_compile_to_same(items_innermost(), target)


def in_lanes_and_registers(before: Program) -> Program:
    after = pack(COMMANDS["tile_loop"](before, "y", 2), "i", at="y_outer")
    after = COMMANDS["vectorize"](after, "i_packed_dim3", 8)
    after = COMMANDS["vectorize"](COMMANDS["reorder"](after, ["c", "ky", "kx", "x"]), "x", 8)
    return hoist(scalar_replace(tidy(COMMANDS["parallelize"](after, ["n", "y_outer"]))))


COLUMNS = (1, 7, 8, 9, 17)


@pytest.mark.parametrize("columns", COLUMNS)
def test_in_lanes_and_registers(columns: int) -> None:
    before = convolution(5, columns)
    assert_same(before, in_lanes_and_registers(before))


def test_in_lanes_and_registers_compiled(target: Target) -> None:
    assert_all_compile_to_same([in_lanes_and_registers(convolution(5, columns)) for columns in COLUMNS], target)


# --- refusals -------------------------------------------------------------------------------------------
REFUSALS: dict[str, tuple[Callable[[], Program], dict[str, str], str]] = {
    "written": (
        lambda: program("for i in range(4):\n y[i] = x[i]\n for j in range(3):\n  x[i + j] = y[j]", x=(7,), y=(4,)),
        {"at": "i"},
        """
        x is written here, the copy would not be
            for i in range(4):
                y[i] = x[i]
                for j in range(3):
                    x[i + j] = y[j]    ← writes it""",
    ),
    "large": (
        lambda: program("for i in range(4):\n for j in range(200000):\n  y[i] += x[i, j]", x=(4, 200000), y=(4,)),
        {"at": "i"},
        """
        a copy of 200000 elements would not fit on the stack
            for i in range(4):    ← asked to read a copy
                for j in range(200000):
                    y[i] += x[i, j]
          pack at a loop inside, or tile_loop the loops in it first""",
    ),
    "lanes": (
        lambda: COMMANDS["vectorize"](program("for i in range(16):\n y[i] = x[i]", x=(16,), y=(16,)), "i", 8),
        {"at": "i_lane"},
        """
        i_lane is a vector loop
            for i in range(0, 16, 8):
                for i_lane in vector(8):    ← asked to read a copy
                    y[i + i_lane] = x[i + i_lane]
          pack at a loop outside""",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    make, options, expected = REFUSALS[name]
    with pytest.raises(Refused) as caught:
        pack(make(), "x", **options)
    assert str(caught.value) == cleandoc(expected)


def test_the_statement_that_writes_does_write_what_is_read() -> None:
    before = REFUSALS["written"][0]()
    arrays = {name: np.ones(buffer.shape, dtype=object) for name, buffer in before.buffers.items()}
    assert ("x", (1,)) in touched(before.nests[0], arrays, {"i": 0, "j": 1})


def test_a_loop_beside_the_writes() -> None:
    before = program("for i in range(4):\n for j in range(3):\n  y[i] += x[i + j]\n x[i] = y[i]", x=(7,), y=(4,))
    assert_same(before, pack(before, "x", at="j"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"buffer": "z", "at": "i"}, "does not read 'z'"),
        ({"buffer": "y", "at": "m"}, "no loop named 'm'"),
        ({"buffer": "x", "at": "i", "name": "y"}, "cannot name the copy"),
        ({"buffer": "x", "zeros": True}, "zeros are for a copy at a loop"),
        ({"buffer": "x", "nest": 1}, "no nest 1 in "),
        ({"buffer": "x", "order": [-1]}, r"the order \(-1,\) does not have each dimension of x once"),
        ({"buffer": "x", "order": [0, 0, -1]}, "does not have each dimension of x once\n  for one, \\(0,\\)"),
        ({"buffer": "x", "order": [-2, -1]}, "x has dimensions 0 to 0, not -2"),
    ],
)
def test_bad_arguments(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        pack(row_sums(), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("nest", [1, 2])
def test_one_nest_alone_reads_the_copy(nest: int) -> None:
    """The others may write the buffer, before and after."""
    before = program(
        "for i in range(4):\n x[i] = y[i]\nfor i in range(4):\n y[i] += x[3 - i]\n"
        "for i in range(4):\n y[i] += 2.0 * x[i]\nfor i in range(4):\n x[i] = 0.0",
        x=(4,),
        y=(4,),
    )
    after = assert_same(before, pack(before, "x", nest=nest))
    assert ["x_packed" in each.arguments for each in after.nests] == [index in (nest, nest + 1) for index in range(5)]


def test_a_nest_that_reads_nothing() -> None:
    before = program("for i in range(4):\n x[i] = y[i]\nfor i in range(4):\n z[i] = y[i]", x=(4,), y=(4,), z=(4,))
    with pytest.raises(CommandError, match="no nest 1 of program reads 'x'"):
        pack(before, "x", nest=1)


def test_nothing_to_copy() -> None:
    before = program("for i in range(4):\n y[i] = x[i]\nfor j in range(4):\n y[j] += 1.0", x=(4,), y=(4,))
    with pytest.raises(CommandError, match="nothing in the loop j reads x"):
        pack(before, "x", at="j")


# --- zeros around -----------------------------------------------------------------------------------------
def test_prints_zeros_in_place_of_conditions() -> None:
    before = program(
        "for i in range(6):\n for j in range(3):\n  if i + j >= 1 and i + j < 7:\n   y[i] += w[j] * x[i + j - 1]",
        y=(6,),
        w=(3,),
        x=(6,),
    )
    after = assert_same(before, pack(COMMANDS["tile_loop"](before, "i", 3), "x", at="i_outer", zeros=True), finite=True)
    assert after.nests[0].body_text == cleandoc("""
        for i_outer in range(2):
            x_packed: float32[5] = empty(5)
            for x_packed_zero0 in range(5):
                x_packed[x_packed_zero0] = 0.0
            for x_packed_dim0 in range(max(0, 1 - i_outer * 3), min(5, 7 - i_outer * 3)):
                x_packed[x_packed_dim0] = x[i_outer * 3 + x_packed_dim0 - 1]
            for i_inner in range(3):
                for j in range(3):
                    y[i_outer * 3 + i_inner] += w[j] * x_packed[i_inner + j]""")


def with_zeros(before: Program, at: str) -> Program:
    return pack(COMMANDS["tile_loop"](before, "y", 2), "i", at=at, zeros=True)


@pytest.mark.parametrize("at", ["n", "y_outer", "x", "ky"])
@pytest.mark.parametrize("stride", [1, 2])
def test_zeros_at_any_loop(at: str, stride: int) -> None:
    before = convolution(4, 9, stride)
    after = assert_same(before, with_zeros(before, at))
    assert "if" not in after.text


def test_zeros_at_any_loop_compiled(target: Target) -> None:
    made = []
    for stride in (1, 2):
        before = convolution(4, 9, stride)
        made += [with_zeros(before, at) for at in ("x", "ky")]
        made += [COMMANDS["vectorize"](with_zeros(before, at), "x", 8, strided="gather") for at in ("n", "y_outer")]
    assert_all_compile_to_same(made, target)


def test_other_conditions_stay() -> None:
    before = program(
        "for i in range(6):\n for j in range(3):\n  if i + j > 0 and w[j] > 0.0:\n   y[i] += x[i + j - 1]",
        y=(6,),
        w=(3,),
        x=(8,),
    )
    after = assert_same(before, pack(before, "x", at="i", zeros=True), finite=True)
    assert "if w[j] > 0.0:" in after.text
    with pytest.raises(CommandError, match="for a copy at a loop"):
        pack(before, "x", zeros=True)
