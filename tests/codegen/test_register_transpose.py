"""Lanes that are rows apart, in copies that read neighbours: rows are loaded whole, and turned in registers."""

from __future__ import annotations

import pytest

from swirl.codegen.emit import listing
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, parse_program
from swirl.ir.validate import validate
from swirl.target.targets import TARGETS
from swirl.transforms import COMMANDS
from tests.support import assert_all_compile_to_same

SHAPES = {
    "a": (37, 45),
    "b": (45, 37),
    "c": (3, 37, 46),
    "d": (3, 46, 37),
    "m": (37, 45),
    "p": (45, 37),
    "r": (40, 37),
    "s": (37,),
    "t": (37, 90),
}
IN_COLUMNS = {
    "a copy": ("for k in range({k}):\n    for i in range({i}):\n        b[k, i] = a[i, k]", True),
    "from a place on": (
        "for n in range(3):\n    for k in range({k}):\n        for i in range({less}):\n"
        "            d[n, k + 1, i] += c[n, i + 2, k + 1] * s[i]",
        True,
    ),
    "read twice": (
        "for k in range({k}):\n    for i in range({i}):\n        b[k, i] = a[i, k] * a[i, k] + c[1, i, k]",
        True,
    ),
    "whole numbers": ("for k in range({k}):\n    for i in range({i}):\n        p[k, i] = m[i, k]", True),
    "rows that may be empty": (
        "for n in range(40):\n    for k in range({k}):\n        for i in range(min(n, {i})):\n"
        "            r[n, i] = a[i, k] * 2.0",
        False,
    ),
    "with a column that is chosen": (
        "for k in range({k}):\n    for i in range({i}):\n        b[k, i] = a[i, k] if s[i] > 0.0 else s[i]",
        False,
    ),
    "under a condition": (
        "for k in range({k}):\n    for i in range({i}):\n        if i + k > 3:\n            b[k, i] = a[i, k]",
        False,
    ),
    "backwards": ("for k in range({k}):\n    for i in range({i}):\n        b[k, i] = a[i, 44 - k]", False),
    "two apart": ("for k in range({k}):\n    for i in range({i}):\n        b[k, i] = t[i, k * 2]", False),
    "of what is stored": ("for k in range({k}):\n    for i in range({i}):\n        a[i, k] = a[i, k] + 1.0", False),
}


def in_columns(text: str, columns: int, rows: int, copies: int, width: int) -> Program:
    types = {"m": "int32", "p": "int32"}
    buffers = {name: Buffer(f"net.{name}", shape, types.get(name, "float32")) for name, shape in SHAPES.items()}
    before = validate(parse_program(text.format(k=columns, i=rows, less=rows - 3), buffers))
    lanes = COMMANDS["vectorize"].function(before, "i", width, strided="gather")
    return COMMANDS["unroll_and_jam"].function(lanes, "k", copies)


@pytest.mark.parametrize("target", ["avx512", "avx2"])
@pytest.mark.parametrize(("columns", "rows", "copies"), [(32, 32, 0), (45, 37, 0), (44, 37, 5), (21, 18, 7), (6, 5, 3)])
def test_copies_take_lanes_from_rows(columns: int, rows: int, copies: int, target: str) -> None:
    """With a rest of the copies and of the lanes, and where one register is not full."""
    width = TARGETS[target].simd_width
    copies = copies or width
    programs = {kind: in_columns(text, columns, rows, copies, width) for kind, (text, _) in IN_COLUMNS.items()}
    assert_all_compile_to_same(list(programs.values()), TARGETS[target])
    for kind, program in programs.items():
        assert ("load_turned<" in listing(program, TARGETS[target])) is IN_COLUMNS[kind][1], kind
