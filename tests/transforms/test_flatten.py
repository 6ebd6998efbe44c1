"""flatten beside dimensions in blocks; and parallel loops that collapse."""

from __future__ import annotations

import pytest

from swirl.errors import Refused
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.nest import Program, parse_program
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from tests.support import assert_compiles_to_same, assert_same, program

TEXT = """
for n in range(3):
    for c in range({channels}):
        for h in range(5):
            for w in range(7):
                y[n, c, h, w] = x[n, c, h, w] * 2.0
"""


def rows(channels: int, dim: int = 1, factor: int = 8) -> Program:
    """``y`` in blocks, ``x`` plain."""
    shape = (3, channels, 5, 7)
    buffers = {"y": Buffer("net.y", shape, role="state", layout=Layout(((dim, factor),))), "x": Buffer("net.x", shape)}
    return parse_program(TEXT.format(channels=channels), buffers)


def test_pixels_of_blocks_of_channels() -> None:
    program = COMMANDS["tile"](rows(16), "y", 1, 8)
    program = COMMANDS["reorder"](program, ["h", "w", "c_inner"])
    program = COMMANDS["flatten"](program, ["h", "w"])
    assert "\n".join(program.text.splitlines()[1:]) == (
        "    for n in range(3):\n"
        "        for c_outer in range(2):\n"
        "            for hw in range(35):\n"
        "                for c_inner in range(8):\n"
        "                    y[n, c_outer * 8 + c_inner, hw] = x[n, c_outer * 8 + c_inner, hw] * 2.0"
    )
    assert program.buffers["y"].physical_shape == (3, 2, 35, 8)


@pytest.mark.parametrize("channels", [1, 7, 8, 9, 16])
def test_flattened_beside_blocks_is_flattened_without(channels: int, target: Target) -> None:
    before = rows(channels)
    plain = before.with_buffers(**{name: b.with_layout(Layout()) for name, b in before.buffers.items()})
    after = COMMANDS["flatten"](before, ["h", "w"])
    assert after.text == COMMANDS["flatten"](plain, ["h", "w"]).text
    assert_compiles_to_same(after, target)


@pytest.mark.parametrize(("dim", "loops"), [(1, ["c", "h"]), (2, ["h", "w"]), (3, ["h", "w"]), (3, ["n", "c"])])
def test_blocks_of_these_dimensions_or_later_ones_are_refused(dim: int, loops: list[str]) -> None:
    with pytest.raises(Refused, match="is not contiguous over the whole of these dimensions"):
        COMMANDS["flatten"](rows(16, dim, 5), loops)


@pytest.mark.parametrize("order", ["nch", "hcn", "cnh", "chn"])
def test_any_number_of_parallel_loops_collapse(order: str, target: Target) -> None:
    after = COMMANDS["parallelize"](rows(9), list(order))
    assert all(f"for {loop} in parallel" in after.text for loop in order)
    assert_compiles_to_same(assert_same(rows(9), after), target)


@pytest.mark.parametrize("order", ["nh", "hn", "nw"])
def test_a_sequential_loop_between_two_parallel_ones_is_refused(order: str) -> None:
    with pytest.raises(Refused, match="not directly"):
        COMMANDS["parallelize"](rows(9), list(order))


def differences(element: str) -> Program:
    return program(
        f"""
for n in range(3):
    for c in range(4):
        first: float32 = x[n, c, {element}]
        for h in range(5):
            for w in range(7):
                y[n, c, h, w] = x[n, c, h, w] - first
""",
        x=(3, 4, 5, 7),
        y=(3, 4, 5, 7),
    )


@pytest.mark.parametrize(("element", "place"), [("0, 0", 0), ("4, 6", 34), ("2, 3", 17)])
def test_one_element_has_its_place_in_the_joined_dimension(element: str, place: int, target: Target) -> None:
    before = differences(element)
    after = COMMANDS["flatten"](before, ["h", "w"])
    assert f"first: float32 = x[n, c, {place}]" in after.text
    assert_compiles_to_same(assert_same(before, after), target)


def test_an_element_that_moves_is_refused() -> None:
    with pytest.raises(Refused, match="x"):
        COMMANDS["flatten"](differences("n, 0"), ["h", "w"])


def noise(index: str) -> Program:
    scalars = {name: Buffer(f"net.{name}", (1,), "int32", "scalar") for name in ("seed", "first")}
    text = f"""
for n in range(3):
    for h in range(5):
        for w in range(7):
            y[n, h, w] = rand(seed[0], 0, 1, {index})
"""
    return parse_program(text, {"y": Buffer("net.y", (3, 5, 7), role="state"), **scalars})


def test_a_random_number_may_count_from_where_a_scalar_says(target: Target) -> None:
    before = noise("first[0] * 35 + (n * 35 + h * 7 + w)")
    after = COMMANDS["flatten"](before, ["h", "w"])
    assert "rand(seed[0], 0, 1, first[0] * 35 + (n * 35 + hw))" in after.text
    assert_compiles_to_same(assert_same(before, after), target)


@pytest.mark.parametrize("index", ["first[0] * h + (n * 35 + h * 7 + w)", "first[0] * 35 + (n * 35 + w * 7 + h)"])
def test_a_random_number_that_counts_otherwise_is_refused(index: str) -> None:
    with pytest.raises(Refused, match="does not count h, w as neighbouring dimensions"):
        COMMANDS["flatten"](noise(index), ["h", "w"])
