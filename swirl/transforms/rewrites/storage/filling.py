"""Whether a loop's iterations fill an array before they read it."""

from __future__ import annotations

from swirl.analysis.accesses import Access
from swirl.analysis.statements import Statement
from swirl.ir.buffers import Buffer
from swirl.ir.nest import constant
from swirl.ir.printing import unparse


def fills(touching: list[tuple[Statement, Access]], kept: list[int], storage: Buffer, depth: int) -> bool:
    """Whether the first of the statements assigns every element that the loop touches before another one reads it.

    Args:
        touching: the statements in the loop that touch the buffer, with how, in textual order.
        kept: the dimensions in which the loop touches more than one element.
        storage: the buffer.
        depth: of the loop's body in the nest.
    """
    first, access = touching[0]
    own = [loop for loop, at_ in zip(first.loops, first.loop_depths, strict=True) if at_ >= depth]
    depths = [at_ for at_ in first.loop_depths if at_ >= depth]
    whole = {loop.var: loop.extent for loop in own if constant(loop.start) == 0 and loop.step == 1}
    indices = [unparse(access.indices[d]) for d in kept]

    def following(statement: Statement, other: Access) -> bool:
        """Whether the element is filled: all are that the loops around both have filled by then."""
        if other.kind == "write":
            return True
        common = [statement.path[: at_ + 1] == first.path[: at_ + 1] for at_ in depths]
        around = {loop.var for loop, both in zip(own, common, strict=True) if both}
        same = [text == unparse(other.indices[d]) for text, d in zip(indices, kept, strict=True) if text in around]
        return statement is not first and all(same)

    return (
        access.kind == "write"
        and not first.guards
        and len(set(indices)) == len(indices)
        and all(whole.get(text) == storage.shape[d] for text, d in zip(indices, kept, strict=True))
        and all(loop.extent for loop in own)
        and all(following(*other) for other in touching[1:])
    )
