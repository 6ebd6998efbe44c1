"""A subscript that a local holds may be any element: it was counted as the first one."""

from __future__ import annotations

from swirl.analysis.work import program_work
from swirl.ir.buffers import Buffer
from swirl.ir.nest import parse_program

TEXT = """
for i in range(8):
    t: int32 = chosen[i]
    y[i] = x[t] + z[t, i]
"""


def test_all_elements_may_be_touched() -> None:
    shapes = {"x": (50,), "y": (8,), "z": (50, 8)}
    buffers = {name: Buffer(name, shape) for name, shape in shapes.items()}
    made = parse_program(TEXT, {**buffers, "chosen": Buffer("chosen", (8,), "int32")})
    found = {touched.buffer: (touched.bytes, touched.exact) for touched in program_work(made).touched}
    assert found == {"x": (200, False), "y": (32, True), "z": (1600, False), "chosen": (32, True)}
