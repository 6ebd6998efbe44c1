"""untile: a buffer without blocks."""

from __future__ import annotations

from dataclasses import replace

from swirl.ir.nest import Program
from swirl.transforms.arguments import BufferName
from swirl.transforms.command import command


@command(lays_out=True)
def untile(program: Program, buffer: BufferName, *, reorder: bool = True) -> Program:
    """Lay a buffer out without blocks; loops stay as they are.

    rewrite (value in blocks of 16 channels; in memory [n][c // 16][y][c % 16]):
        value[n, c, y] = …          →       value[n, c, y] = …      (in memory [n][c][y])

    In a recipe, another layer's blocked buffer is copied first (and a gradient copied back), as by ``tile``.

    Args:
        buffer: name of a field (``value``, ``inputs``, ``weights``, …).
        reorder: False refuses to copy another layer's buffer.

    Raises:
        CommandError: no such buffer.  LayoutError: the buffer is another layer's and must not be copied.
    """
    del reorder
    target = program.buffers[buffer]
    return program.with_buffers(**{buffer: target.with_layout(replace(target.layout, blocks=()))})
