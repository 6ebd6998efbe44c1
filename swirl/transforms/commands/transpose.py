"""transpose: a buffer's dimensions in another order in memory."""

from __future__ import annotations

from swirl.errors import CommandError
from swirl.ir.nest import Program
from swirl.transforms.arguments import BufferName, Dimension, DimensionOrder
from swirl.transforms.command import command
from swirl.transforms.rewrites.storage.dimensions import buffer_dim, memory_order


@command(lays_out=True)
def transpose(
    program: Program,
    buffer: BufferName,
    dim1: Dimension | None = None,
    dim2: Dimension | None = None,
    *,
    order: DimensionOrder | None = None,
) -> Program:
    """Change the order of a buffer's dimensions in memory.

    rewrite (order = (1, 2, 0); value is (N, C, H, W)):
        value[n, c, y, x] = …       →       value[n, c, y, x] = …       in memory [n][y][x][c]

    References stay logical; the last dimension of the order is the one in which neighbours are lanes of a vector.

    Args:
        buffer: name of a field (``value``, ``inputs``, ``weights``, …).
        dim1: dimension that changes places with ``dim2``; for values and gradients counted without the batch.
        dim2: the other one.
        order: or all dimensions, outermost in memory first; for values and gradients without the batch, which stays
            outermost.

    Raises:
        CommandError: no such buffer or dimension, or the order leaves one out.

    Source: Lake, section 3.3.
    """
    target = program.buffers[buffer]
    old = target.layout.order or tuple(range(len(target.shape)))
    if order is not None:
        if dim1 is not None or dim2 is not None:
            raise CommandError("transpose takes two dimensions or the order of all, not both")
        new = memory_order(program, buffer, order)
    else:
        first, second = (buffer_dim(program, buffer, dim) for dim in (dim1, dim2))  # type: ignore[arg-type]
        swapped = {first: second, second: first}
        new = tuple(swapped.get(dim, dim) for dim in old)
    return program.with_buffers(**{buffer: target.with_layout(target.layout.ordered(new))})
