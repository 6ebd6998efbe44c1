"""Programs in another precision."""

from __future__ import annotations

from dataclasses import replace

from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, expr, make_nest, substitute


def in_double(program: Program) -> Program:
    """The same program in double precision."""
    buffers = {name: held_in_double(buffer) for name, buffer in program.buffers.items()}
    nests = [
        make_nest(nest.label, [substitute(s, {"float32": expr("float64")}) for s in nest.body], buffers)
        for nest in program.nests
    ]
    return replace(program, nests=tuple(nests), buffers=buffers)


def held_in_double(buffer: Buffer) -> Buffer:
    """The buffer of such a program: itself, or one of double precision in the place of single."""
    return replace(buffer, dtype="float64") if buffer.dtype == "float32" else buffer
