"""unroll_and_jam: copies of a loop's body, the loops inside joined."""

from __future__ import annotations

from swirl.ir.nest import Program
from swirl.transforms.arguments import Factors, LoopName, NestName, ZeroOrOne
from swirl.transforms.command import command
from swirl.transforms.rewrites.loops.copies import unrolled


@command()
def unroll_and_jam(
    program: Program, loop_var: LoopName, factor: Factors, unroll_type: ZeroOrOne = 0, *, nest: NestName | None = None
) -> Program:
    """Copy a loop's body ``factor`` times and join the loops inside: a register tile.

    rewrite (factor = 14):
        for x in range(56):                 for x in range(0, 56, 14):
            a: float32 = 0.0        →           a: float32[14] = empty(14)
            for c in range(C):                  for x_unrolled in unrolled(14): a[x_unrolled] = 0.0
                a += …                          for c in range(C):
            v[x] = a                                for x_unrolled in unrolled(14): a[x_unrolled] += …
                                                for x_unrolled in unrolled(14): v[x + x_unrolled] =
                                                a[x_unrolled]

    A condition on the loop around an inner one moves into that, to each copy's statements: ``if x < 3: for c: s``
    becomes ``for c: if x < 3: s``. One on data is evaluated before, and kept in a local for each copy.

    Args:
        loop_var: the loop, of constant bounds.
        factor: number of copies, or those of each of consecutive tiles, ``[5, 5, 4]`` for 14 iterations.
        unroll_type: 0 gives a reduction one partial result for each copy, 1 lets the copies share one.
        nest: only in this nest (index or label).

    Raises:
        CommandError: bad factor, or the tiles do not sum to the loop's extent.
        Refused: the loop's bounds are not constant, or it is not a plain loop; the jam would reverse a dependence; or
            the bounds of a loop inside move with it.

    Source: Callahan, Carr, Kennedy, PLDI 1990; Lake, section 2.2; for combinations Tollenaere (TTiLE), section 3.4.3.
    """
    return unrolled(program, loop_var, factor, nest, jam=True, unroll_type=unroll_type)
