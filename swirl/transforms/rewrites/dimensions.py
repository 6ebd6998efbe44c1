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


def memory_order(program: Program, buffer: str, order: Sequence[int] | None) -> tuple[int, ...]:
    """All dimensions of a buffer in the order that a recipe gives, which leaves out the batch; by default as they are
    numbered."""
    rank = len(program.buffers[buffer].shape)
    if order is None:
        return tuple(range(rank))
    dims = [buffer_dim(program, buffer, dim) for dim in order]
    new = (*(dim for dim in range(rank) if dim < program.buffers[buffer].batch_dims), *dims)
    if sorted(new) != list(range(rank)):
        raise CommandError(
            f"the order {tuple(order)} does not have each dimension of {buffer} once",
            way_out=f"for one, {tuple(reversed(range(len(new))))}",
        )
    return new
