"""Commands on layouts: tile a buffer's dimension."""

from __future__ import annotations

import ast

from swirl.errors import CommandError, LayoutError
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, loop_of, loops, references, subscripts
from swirl.transforms.base import check_buffer, check_factor, command, find_loops, loop_at
from swirl.transforms.split import tile_loop


def batch_dims(buffer: Buffer) -> int:
    """The number of leading dimensions that recipes do not count: the batch of values and gradients."""
    return 1 if buffer.role in ("value", "grad") else 0


def buffer_dim(program: Program, buffer: str, dim: int) -> int:
    """The buffer's dimension that a recipe's ``dim`` means: values and gradients count without the batch."""
    check_buffer(program, buffer)
    target = program.buffers[buffer]
    offset = batch_dims(target)
    if not isinstance(dim, int) or not 0 <= dim < len(target.shape) - offset:
        raise CommandError(
            f"{buffer} has dimensions 0 to {len(target.shape) - offset - 1}, not {dim!r}",
            way_out=f"its shape is {target.shape[offset:]}" + (" without the batch" if offset else ""),
        )
    return dim + offset


@command()
def tile(program: Program, buffer: str, dim: int, factor: int) -> Program:
    """Block a dimension of a buffer in memory, and strip-mine the loops that run over it.

    rewrite (dim of c, factor = 16; in memory [n][c // 16][y][c % 16]):
        for c in range(20):                 for c_outer in range(2):
            value[n, c, y] = …      →           for c_inner in range(min(16, 20 - c_outer * 16)):
                                                    value[n, c_outer * 16 + c_inner, y] = …

    References stay logical; the ragged end is padded with zeros in memory.

    Args:
        buffer: name of a field (``value``, ``inputs``, ``weights``, …).
        dim: dimension; for values and gradients counted without the batch.
        factor: elements in a block.

    Raises:
        CommandError: no such buffer or dimension.  LayoutError: the dimension is blocked otherwise.

    Source: Lake, section 3.3.
    """
    check_factor(factor)
    axis = buffer_dim(program, buffer, dim)
    target = program.buffers[buffer]
    blocked = dict(target.layout.blocks).get(axis)
    if blocked is not None and blocked != factor:
        raise LayoutError(f"dimension {dim} of {buffer} is blocked by {blocked} already, not {factor}")
    if blocked is None:
        program = program.with_buffers(**{buffer: target.with_layout(target.layout.tiled(axis, factor))})
    for var in _loops_over(program, buffer, axis):
        for site in find_loops(program, var):
            loop = loop_of(loop_at(program, site))
            if loop.kind == "range" and loop.step == 1:
                program = tile_loop(program, var, factor, nest=site.nest)
                break
    return program


def _loops_over(program: Program, buffer: str, axis: int) -> list[str]:
    """Variables of loops that stand as the plain subscript of the dimension."""
    variables = {loop_of(node).var for nest in program.nests for _, node in loops(nest.body)}
    found = {}
    for nest in program.nests:
        for ref in references(nest.function):
            if ast.unparse(ref.value) == buffer:
                index = ast.unparse(subscripts(ref)[axis])
                if index in variables:
                    found[index] = True
    return list(found)
