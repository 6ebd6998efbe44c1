"""tile: a dimension of a buffer in blocks."""

from __future__ import annotations

from swirl.errors import LayoutError
from swirl.ir.nest import Program, loop_of, references, subscripts, variable_of
from swirl.ir.paths import loops
from swirl.ir.printing import unparse
from swirl.transforms.arguments import BufferName, Dimension, Positive
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.checked import check_size
from swirl.transforms.rewrites.loops.tiling import tiled
from swirl.transforms.rewrites.sites import find_loops, loop_at


@command(lays_out=True)
def tile(program: Program, buffer: BufferName, dim: Dimension, factor: Positive, *, reorder: bool = True) -> Program:
    """Block a dimension of a buffer in memory, and strip-mine the loops that run over it.

    rewrite (dim of c, factor = 16; in memory [n][c // 16][y][c % 16]):
        for c in range(20):                 for c_outer in range(2):
            value[n, c, y] = …      →           for c_inner in range(min(16, 20 - c_outer * 16)):
                                                    value[n, c_outer * 16 + c_inner, y] = …

    References stay logical; the ragged end is padded with zeros in memory. In a recipe, another layer's buffer with
    another layout is copied first (and a gradient copied back): ``net.explain`` lists what that moves.

    Args:
        buffer: name of a field (``value``, ``inputs``, ``weights``, …).
        dim: dimension; for values and gradients counted without the batch.
        factor: elements in a block.
        reorder: False refuses to copy another layer's buffer.

    Raises:
        CommandError: no such buffer or dimension. LayoutError: the dimension has other blocks, or the buffer is another
            layer's and must not be copied.

    Source: Lake, section 3.3.
    """
    del reorder  # a program has no layers: the schedule handles them
    target = program.buffers[buffer]
    axis = target.batch_dims + dim
    blocked = dict(target.layout.blocks).get(axis)
    if blocked is not None and blocked != factor:
        raise LayoutError(f"dimension {dim} of {buffer} is blocked by {blocked} already, not {factor}")
    if blocked is None:
        program = program.with_buffers(**{buffer: target.with_layout(target.layout.tiled(axis, factor))})
        check_size(buffer, program.buffers[buffer])
    for index in range(len(program.nests)):
        for var in _loops_over(program, buffer, axis, index):
            heads = [loop_of(loop_at(program, site)) for site in find_loops(program, var, index)]
            if any(head.kind == "range" and head.step == 1 for head in heads):
                program = tiled(program, var, factor, nest=index)
    return program


def _loops_over(program: Program, buffer: str, axis: int, nest: int) -> list[str]:
    """Variables of a nest's loops that are the plain subscript of the dimension."""
    target = program.nests[nest]
    variables = {variable_of(node) for _, node in loops(target.body)}
    indices = [unparse(subscripts(ref)[axis]) for ref in references(target.function) if unparse(ref.value) == buffer]
    return [index for index in dict.fromkeys(indices) if index in variables]
