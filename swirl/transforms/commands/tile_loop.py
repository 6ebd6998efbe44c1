"""tile_loop: a loop in tiles."""

from __future__ import annotations

from swirl.ir.nest import Program
from swirl.transforms.arguments import Factors, LoopName, NestName, Tail
from swirl.transforms.command import command
from swirl.transforms.rewrites.loops.tiling import tiled


@command()
def tile_loop(
    program: Program, loop_var: LoopName, factor: Factors, *, tail: Tail = "min", nest: NestName | None = None
) -> Program:
    """Strip-mine a loop into ``<loop>_outer`` and ``<loop>_inner``.

    rewrite (C = 20, factor = 16):
        for c in range(20):                 for c_outer in range(2):
            s[c]                    →           for c_inner in range(min(16, 20 - c_outer * 16)):
                                                    s[c_outer * 16 + c_inner]

    Args:
        loop_var: the loop.
        factor: iterations in a tile; or those of each of consecutive tiles, ``[12, 11, 11]`` for 34 iterations: the
            loop is then cut into parts as by ``split``, equal neighbours in one.
        tail: how a ragged end is handled: ``min`` shortens the last tile, ``mask`` guards the body with a condition,
            ``peel`` puts the remainder into a separate loop, so that tiles have constant bounds.
        nest: only in this nest (index or label).

    Raises:
        CommandError: bad factor or tail, or the tiles do not sum to the extent.
        Refused: the loop is not a plain loop of step 1.

    Source: Wolfe, *High Performance Compilers for Parallel Computing*, chapter 9 (strip-mining).
    """
    return tiled(program, loop_var, factor, tail=tail, nest=nest)
