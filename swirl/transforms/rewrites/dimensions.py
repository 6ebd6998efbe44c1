"""Dimensions of buffers, as recipes count them."""

from __future__ import annotations

from collections.abc import Sequence

from swirl.errors import CommandError
from swirl.ir.nest import Program
from swirl.transforms.arguments import check_buffer


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
