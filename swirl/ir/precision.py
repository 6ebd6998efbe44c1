"""Programs in another precision."""

from __future__ import annotations

from dataclasses import replace

from swirl.ir.nest import Program, expr, make_nest, substitute


def in_double(program: Program) -> Program:
    """The same program in double precision."""
    buffers = {
        name: replace(buffer, dtype="float64") if buffer.dtype == "float32" else buffer
        for name, buffer in program.buffers.items()
    }
    nests = [
        make_nest(nest.label, [substitute(s, {"float32": expr("float64")}) for s in nest.body], buffers)
        for nest in program.nests
    ]
    return replace(program, nests=tuple(nests), buffers=buffers)
