"""Dimensions of buffers, as recipes count them."""

from __future__ import annotations

from collections.abc import Sequence

from swirl.errors import CommandError
from swirl.ir.nest import Program
from swirl.transforms.arguments import check_dimension


def buffer_dim(program: Program, buffer: str, dim: int) -> int:
    """The buffer's dimension that a recipe's ``dim`` means: values and gradients count without the batch."""
    check_dimension(program, buffer, dim)
    return program.buffers[buffer].batch_dims + dim


BATCH = -1
"""The batch, in the order of dimensions of a copy: where it is left out, it is the outermost."""


def memory_order(
    program: Program, buffer: str, order: Sequence[int] | None, *, with_batch: bool = False
) -> tuple[int, ...]:
    """All dimensions of a buffer in the order that a recipe gives, by default as they are numbered. The batch is the
    outermost, or with ``with_batch`` where the order has :data:`BATCH`."""
    rank, batch_dims = len(program.buffers[buffer].shape), program.buffers[buffer].batch_dims
    if order is None:
        return tuple(range(rank))
    batch_in_order = with_batch and batch_dims == 1 and BATCH in order
    new = [0 if batch_in_order and dim == BATCH else buffer_dim(program, buffer, dim) for dim in order]
    if not batch_in_order:
        new = [*range(batch_dims), *new]
    if sorted(new) != list(range(rank)):
        raise CommandError(
            f"the order {tuple(order)} does not have each dimension of {buffer} once",
            way_out=f"for one, {tuple(reversed(range(rank - batch_dims)))}",
        )
    return tuple(new)
