"""split: a loop's range cut into parts."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import pairwise

from swirl.errors import CommandError
from swirl.ir.nest import Program, constant, loop_of, variable_of
from swirl.ir.paths import enclosing
from swirl.transforms.arguments import Cuts, LoopName, NestName
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.checks.ways_out import Step, nest_of, step, tried
from swirl.transforms.rewrites.loops.strips import plain_loop
from swirl.transforms.rewrites.loops.tile_sizes import cut
from swirl.transforms.rewrites.sites import Site, loop_at, rewrite_each


@command()
def split(program: Program, loop_var: LoopName, at: Cuts, *, nest: NestName | None = None) -> Program:
    """Cut a loop's range into consecutive parts, each schedulable by itself; conditions constant in a part
    vanish.

    rewrite (at = [1, 55]):
        for y in range(56):                 for y in range(1): s
            s                       →       for y_1 in range(1, 55): s
                                            for y_2 in range(55, 56): s

    Args:
        loop_var: the loop.
        at: where to cut, increasing values of the loop variable inside its range.
        nest: only in this nest (index or label).

    Raises:
        CommandError: cuts outside the range or not increasing.  Refused: the loop's bounds are not constant.

    Source: Wolfe, *High Performance Compilers for Parallel Computing*, chapter 9 (index set splitting).
    """

    def rewrite(before: Program, site: Site) -> Program:
        target, node = before.nests[site.nest], loop_at(before, site)
        loop = plain_loop(target, site.path, node, "asked to be split")
        start, stop = constant(loop.start), constant(loop.stop)
        if start is None or stop is None:
            raise refuse(
                f"the bounds of {loop.var} are not constant",
                target,
                site.path,
                "asked to be split",
                way_out=tried(before, *_outermost(before, site, at)),
            )
        edges = [start, *at, stop]
        if any(low >= high for low, high in pairwise(edges)):
            raise CommandError(f"cuts must increase and be inside ({start}, {stop}), not {list(at)}")
        return cut(before, site, [value - start for value in at], [None] * (len(edges) - 1))

    return rewrite_each(program, loop_var, nest, rewrite)


def _outermost(program: Program, site: Site, at: Sequence[int]) -> list[tuple[Step, Step]]:
    """Interchanges after which the loop at ``site`` may have constant bounds, each with the split."""
    var, only = loop_of(loop_at(program, site)).var, nest_of(program, site)
    around = enclosing(program.nests[site.nest].body, site.path)
    outer = [variable_of(node) for node in around if isinstance(node, ast.For)]
    return [(step("interchange", [other, var], nest=only), step("split", var, list(at), nest=only)) for other in outer]
