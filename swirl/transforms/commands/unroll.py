"""unroll: copies of a loop's body, one after the other."""

from __future__ import annotations

from swirl.ir.nest import Program
from swirl.transforms.arguments import Factors, LoopName, NestName, ZeroOrOne
from swirl.transforms.command import command
from swirl.transforms.rewrites.loops.copies import unrolled


@command()
def unroll(
    program: Program, loop_var: LoopName, factor: Factors, unroll_type: ZeroOrOne = 0, *, nest: NestName | None = None
) -> Program:
    """Copy a loop's body ``factor`` times, one copy after the other. A reduction gets one partial result for each copy.

    rewrite (factor = 4):
        for w in range(64):                 for w in range(0, 64, 4):
            s[w]                    →           for w_unrolled in unrolled(4):
                                                    s[w + w_unrolled]

    Args:
        loop_var: the loop; after ``vectorize`` this is the loop over whole vectors.
        factor: number of copies; a remainder becomes a separate loop after it. Or the numbers for consecutive tiles,
            ``[6, 6, 5]`` for 17 iterations: the loop is then cut into parts as by ``split``, equal neighbours in one,
            and each is unrolled by its own factor.
        unroll_type: 0 gives a reduction one partial result for each copy, 1 lets the copies share one.
        nest: only in this nest (index or label).

    Raises:
        CommandError: bad factor, or the tiles do not sum to the loop's extent.
        Refused: the loop's bounds are not constant, or it is not a plain loop.

    Source: Lake, section 2.2.
    """
    return unrolled(program, loop_var, factor, nest, jam=False, unroll_type=unroll_type)
