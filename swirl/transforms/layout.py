"""Commands on layouts: a buffer's dimensions in blocks, in another order, and with zeros around them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from swirl.errors import CommandError, LayoutError
from swirl.ir.nest import Program, loop_of, loops, references, subscripts
from swirl.transforms.base import (
    Assumption,
    check_buffer,
    check_factor,
    check_size,
    checked,
    command,
    find_loops,
    loop_at,
)
from swirl.transforms.halo import without_dead_guards
from swirl.transforms.split import tile_loop


def buffer_dim(program: Program, buffer: str, dim: int) -> int:
    """The buffer's dimension that a recipe's ``dim`` means: values and gradients count without the batch."""
    check_buffer(program, buffer)
    target = program.buffers[buffer]
    offset = target.batch_dims
    if not isinstance(dim, int) or not 0 <= dim < len(target.shape) - offset:
        raise CommandError(
            f"{buffer} has dimensions 0 to {len(target.shape) - offset - 1}, not {dim!r}",
            way_out=f"its shape is {target.shape[offset:]}" + (" without the batch" if offset else ""),
        )
    return dim + offset


@command()
def tile(program: Program, buffer: str, dim: int, factor: int, *, reorder: bool = True) -> Program:
    """Block a dimension of a buffer in memory, and strip-mine the loops that run over it.

    rewrite (dim of c, factor = 16; in memory [n][c // 16][y][c % 16]):
        for c in range(20):                 for c_outer in range(2):
            value[n, c, y] = …      →           for c_inner in range(min(16, 20 - c_outer * 16)):
                                                    value[n, c_outer * 16 + c_inner, y] = …

    References stay logical; the ragged end is padded with zeros in memory. In a recipe, another layer's buffer that
    lies otherwise is copied first (and a gradient copied back): ``net.explain`` lists what that moves.

    Args:
        buffer: name of a field (``value``, ``inputs``, ``weights``, …).
        dim: dimension; for values and gradients counted without the batch.
        factor: elements in a block.
        reorder: False refuses to copy another layer's buffer.

    Raises:
        CommandError: no such buffer or dimension.  LayoutError: the dimension is blocked otherwise, or the buffer is
            another layer's and must not be copied.

    Source: Lake, section 3.3.
    """
    del reorder  # a program has no layers: the schedule's affair
    check_factor(factor)
    axis = buffer_dim(program, buffer, dim)
    target = program.buffers[buffer]
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
                program = tile_loop(program, var, factor, nest=index)
    return program


@command()
def transpose(program: Program, buffer: str, dim1: int | None = None, dim2: int | None = None, *,
              order: Sequence[int] | None = None) -> Program:  # fmt: skip
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
    check_buffer(program, buffer)
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


def memory_order(program: Program, buffer: str, order: Sequence[int] | None) -> tuple[int, ...]:
    """All dimensions of a buffer in the order that a recipe gives, which leaves out the batch; by default as they are
    numbered."""
    rank = len(program.buffers[buffer].shape)
    if order is None:
        return tuple(range(rank))
    if isinstance(order, str) or not isinstance(order, Sequence):
        raise CommandError(f"an order is a list of dimensions, not {order!r}")
    dims = [buffer_dim(program, buffer, dim) for dim in order]
    new = (*(dim for dim in range(rank) if dim < program.buffers[buffer].batch_dims), *dims)
    if sorted(new) != list(range(rank)):
        raise CommandError(f"the order {tuple(order)} has not each dimension of {buffer} once",
                           way_out=f"for one, {tuple(reversed(range(len(new))))}")  # fmt: skip
    return new


@command(assumes=Assumption("what is multiplied with zeros beyond a border is finite"))
def set_padding(program: Program, buffer: str, *pairs: tuple[int, int] | int) -> Program:
    """Put zeros around a buffer in memory (a halo), and drop the conditions that keep reads from going there.

    rewrite (pairs = (0, 0), (1, 1)):
        for x in range(56):                         for x in range(56):
            for k in range(3):                          for k in range(3):
                if x + k >= 1 and x + k < 57:   →           y[c, x] += w[k] * i[c, x + k - 1]
                    y[c, x] += w[k] * i[c, x + k - 1]

    A condition goes where what it keeps from running would only add products with zeros of the halo. Their other
    factors are taken to be finite: weights and gradients that are infinite make NaN at borders. Nothing writes the
    halo; getters, setters and views show the data without it.

    Args:
        buffer: name of a field (``inputs``, ``grad``, …), or of a copy made by ``pack``.
        pairs: (zeros before, zeros after) for each dimension, or one number for both; for values and gradients without
            the batch.

    Raises:
        CommandError: no such buffer, or bad pairs.
        Refused: a condition would be needless if the zeros, on a side where there are some, were more.

    Source: Lake, section 3.2.
    """
    check_buffer(program, buffer)
    target = program.buffers[buffer]
    batch = target.batch_dims
    halo = ((0, 0),) * batch + tuple(_pair(pair) for pair in pairs)
    if len(halo) != len(target.shape):
        raise CommandError(
            f"{buffer} has {len(target.shape) - batch} dimensions to pad, not {len(pairs)}",
            way_out=f"its shape is {target.shape[batch:]}" + (" without the batch" if batch else ""),
        )
    result = program.with_buffers(**{buffer: target.with_layout(target.layout.padded(halo))})
    halo = result.buffers[buffer].layout.halo or halo
    for index, nest in enumerate(program.nests):
        if buffer in nest.arguments:
            result = result.with_nest(index, without_dead_guards(result, nest, buffer, halo))
    return checked(program, result)


def _pair(pair: object) -> tuple[int, int]:
    sides = pair if isinstance(pair, (tuple, list)) else (pair, pair)
    if len(sides) != 2 or any(isinstance(side, bool) or not isinstance(side, int) or side < 0 for side in sides):
        raise CommandError(f"padding is (zeros before, zeros after), or one number for both, not {pair!r}")
    return sides[0], sides[1]


@command()
def untile(program: Program, buffer: str, *, reorder: bool = True) -> Program:
    """Lay a buffer out without blocks; loops stay as they are.

    rewrite (value in blocks of 16 channels; in memory [n][c // 16][y][c % 16]):
        value[n, c, y] = …          →       value[n, c, y] = …      (in memory [n][c][y])

    In a recipe, another layer's buffer that lies in blocks is copied first (and a gradient copied back), as by
    ``tile``.

    Args:
        buffer: name of a field (``value``, ``inputs``, ``weights``, …).
        reorder: False refuses to copy another layer's buffer.

    Raises:
        CommandError: no such buffer.  LayoutError: the buffer is another layer's and must not be copied.
    """
    del reorder
    check_buffer(program, buffer)
    target = program.buffers[buffer]
    return program.with_buffers(**{buffer: target.with_layout(replace(target.layout, blocks=()))})


def _loops_over(program: Program, buffer: str, axis: int, nest: int) -> list[str]:
    """Variables of a nest's loops that stand as the plain subscript of the dimension."""
    target = program.nests[nest]
    variables = {loop_of(node).var for _, node in loops(target.body)}
    indices = [
        ast.unparse(subscripts(ref)[axis])
        for ref in references(target.function)
        if ast.unparse(ref.value) == buffer
    ]
    return [index for index in dict.fromkeys(indices) if index in variables]
