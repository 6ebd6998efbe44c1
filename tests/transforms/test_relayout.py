"""untile; and reorder steps: a phase on a copy of a buffer with another layout than its owner's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from swirl.errors import CommandError
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.execute import execute, random_arrays
from swirl.ir.nest import Program, parse_program
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from swirl.transforms.relayout import copied, with_copies
from tests.support import assert_all_compile_to_same, assert_compiles_to_same, assert_same

READS = """
for n in range(2):
    for c in range({c}):
        for x in range(7):
            y[n, c, x] = x0[n, c, x] * 2.0
"""
ADDS = """
for n in range(2):
    for c in range({c}):
        for x in range(7):
            x0[n, c, x] += y[n, c, x]
"""
ZEROES = """
for n in range(2):
    for c in range({c}):
        for i in range(7):
            x0[n, c, i] = 0.0
        for x in range(6):
            for k in range(2):
                x0[n, c, x + k] += y[n, c, x]
"""
ASSIGNS_SOME = """
for n in range(2):
    for c in range({c}):
        for x in range(6):
            x0[n, c, x] = y[n, c, x]
"""
BEHIND_ITSELF = """
for n in range(2):
    for c in range({c}):
        for x in range(7):
            x0[n, c, x] = 0.0
        x0[1 - n, c, 0] += y[n, c, 0]
"""
COPIES = {READS: 1, ADDS: 2, ZEROES: 1, ASSIGNS_SOME: 2, BEHIND_ITSELF: 2}


def phase(text: str, channels: int, blocks: tuple[tuple[int, int], ...] = ()) -> Program:
    shape = (2, channels, 7)
    buffers = {"x0": Buffer("data1.value", shape, layout=Layout(blocks)), "y": Buffer("own1.value", shape)}
    return parse_program(text.format(c=channels), buffers, "own1.forward")


def on_a_copy(program: Program, owned: Program) -> Program:
    """``program`` with its own copy of ``x0``, whose owner's layout is that in ``owned``."""
    copy = copied(owned, "x0", "own1.copy.data1.value")
    program = program.with_buffers(x0=replace(program.buffers["x0"], name=copy.storage))
    return with_copies(program, copy, owned.buffers["x0"].layout, 8)


LAYOUTS = [(16, (), ((1, 8),)), (9, ((1, 8),), ()), (1, ((1, 4),), ((1, 8),)), (7, ((1, 8),), ((2, 4), (1, 4)))]
"""Channels, and the blocks of the owner and of the copy."""


def in_another_layout(text: str, channels: int, stored: tuple, wanted: tuple) -> tuple[Program, Program]:
    """A phase on what its owner stores, and on its copy."""
    before = phase(text, channels, stored)
    changed = before.with_buffers(x0=before.buffers["x0"].with_layout(Layout(wanted)))
    return before, on_a_copy(changed, before)


@pytest.mark.parametrize("text", list(COPIES), ids=["reads", "adds", "zeroes", "assigns some", "behind itself"])
@pytest.mark.parametrize(("channels", "stored", "wanted"), LAYOUTS, ids=str)
def test_computes_what_it_did(text: str, channels: int, stored: tuple, wanted: tuple) -> None:
    before, after = in_another_layout(text, channels, stored, wanted)
    assert after.buffers["x0"].layout == Layout(wanted) and after.buffers["x0_stored"] == before.buffers["x0"]
    assert len(after.nests) - len(before.nests) == COPIES[text]
    arrays = random_arrays(after, 0, "rational")
    expected = {"x0": arrays["x0_stored"].copy(), "y": arrays["y"].copy()}
    execute(before, expected, arithmetic="rational")
    execute(after, arrays, checking=True, arithmetic="rational")
    assert np.all(arrays["x0_stored"] == expected["x0"]) and np.all(arrays["y"] == expected["y"])


@pytest.mark.parametrize("layouts", LAYOUTS, ids=str)
def test_compiles_to_the_same_bits(layouts: tuple, target: Target) -> None:
    texts = [text for text in COPIES if text != ASSIGNS_SOME or layouts[1]]
    assert_all_compile_to_same([in_another_layout(text, *layouts)[1] for text in texts], target)


def test_prints() -> None:
    owned, changed = phase(READS, 16), phase(READS, 16, ((1, 8),))
    after = on_a_copy(changed, owned)
    assert after.nests[0].text.splitlines() == [
        "def own1_forward_x0_from_x0_stored(x0, x0_stored):",
        "    for x0_dim0 in parallel(2):",
        "        for x0_dim1_outer in parallel(2):",
        "            for x0_dim2 in range(7):",
        "                for x0_dim1_inner in range(0, 8, 8):",
        "                    for x0_dim1_inner_lane in vector(min(8, 8 - x0_dim1_inner)):",
        "                        x0[x0_dim0, x0_dim1_outer * 8 + x0_dim1_inner + x0_dim1_inner_lane, x0_dim2] = "
        "x0_stored[x0_dim0, x0_dim1_outer * 8 + x0_dim1_inner + x0_dim1_inner_lane, x0_dim2]",
    ]
    assert after.nests[1].text == phase(READS, 16).nests[0].text
    told = "forward: data1.value is plain: copied to a layout that is blocked by 8 in dimension 1, 0.0 MB moved"
    assert copied(owned, "x0", "x0").cost_text("forward", Layout(), Layout(((1, 8),))) == told


def test_a_copy_may_be_flattened(target: Target) -> None:
    before = phase(READS, 9, ((1, 4),))
    after = on_a_copy(COMMANDS["flatten"](phase(READS, 9), ["n", "c", "x"]), before)
    assert "x0[x0_dim0 * 63 + x0_dim1_outer * 28 + x0_dim1_inner * 7 + x0_dim2 + x0_dim2_lane]" in after.nests[0].text
    assert_compiles_to_same(after, target)


@pytest.mark.parametrize("layout", [Layout(order=(0, 2, 1)), Layout(((1, 4),), halo=((0, 0), (0, 0), (1, 1)))], ids=str)
def test_copies_in_any_layout(layout: Layout, target: Target) -> None:
    plain = phase(READS, 9)
    changed = plain.with_buffers(x0=plain.buffers["x0"].with_layout(layout))
    assert_compiles_to_same(on_a_copy(changed, plain), target)
    assert_compiles_to_same(on_a_copy(plain, changed), target)


def test_untile_changes_the_layout_alone(target: Target) -> None:
    before = phase(READS, 9, ((1, 8),))
    after = COMMANDS["untile"](before, "x0")
    assert after.text == before.text and after.buffers["x0"].layout == Layout()
    assert_compiles_to_same(assert_same(before, after), target)
    with pytest.raises(CommandError, match="no buffer named 'x1'"):
        COMMANDS["untile"](before, "x1")
