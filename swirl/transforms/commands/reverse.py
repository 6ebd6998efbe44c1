"""reverse: a loop backwards."""

from __future__ import annotations

import ast

from swirl.analysis.dependences import NotProved, carried
from swirl.ir.affine import ranges_at, simplify, simplify_body
from swirl.ir.nest import Loop, Program, expr, loop_of, substitute, with_inner
from swirl.ir.paths import replace_at
from swirl.transforms.arguments import LoopName, NestName
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.checks.ways_out import nest_of, step, tried
from swirl.transforms.rewrites.sites import Site, loop_at, rewrite_each


# --- reverse --------------------------------------------------------------------------------------------
@command()
def reverse(program: Program, loop_var: LoopName, *, nest: NestName | None = None) -> Program:
    """Run a loop backwards: a second pass begins with what the first one left in the cache.

    rewrite:
        for n in range(N):                  for n in range(N):
            s[n]                    →           s[N - 1 - n]

    The loop still counts upwards, so every other command applies to it.

    Args:
        loop_var: the loop, plain; where its step is not 1, its bounds are constant.
        nest: only in this nest (index or label).

    Raises:
        CommandError: no such loop.
        Refused: an iteration needs what an earlier one made, or the loop is not a plain loop.

    Source: Wolfe, *High Performance Compilers for Parallel Computing*, chapter 9 (loop reversal).
    """

    def rewrite(before: Program, site: Site) -> Program:
        target, node = before.nests[site.nest], loop_at(before, site)
        loop, note = loop_of(node), "asked to run backwards"
        if loop.kind != "range":
            raise refuse(
                f"{loop.var} is a {loop.kind} loop",
                target,
                site.path,
                note,
                way_out="give this command before the one that made it so",
            )
        if loop.step != 1 and loop.extent is None:
            raise refuse(
                f"{loop.var} has a step of {loop.step} and bounds that are not constant", target, site.path, note
            )
        try:
            conflict = carried(target.body, site.path, reductions=False)
        except NotProved:
            raise refuse("not proved within the time allowed", target, site.path, note) from None
        if conflict is not None:
            raise refuse(
                "a dependence would be reversed",
                target,
                site.path,
                note,
                witness=conflict,
                way_out=tried(
                    before,
                    (
                        step("distribute", loop.var, nest=nest_of(before, site)),
                        step("reverse", loop.var, nest=nest_of(before, site)),
                    ),
                ),
            )
        last = expr("stop - 1", stop=loop.stop) if loop.step == 1 else _last(loop)
        value = simplify(expr("last - (v - start)", last=last, v=loop.var, start=loop.start))
        body = [substitute(statement, {loop.var: value}) for statement in node.body]
        new = simplify_body([with_inner(node, body)], ranges_at(target.body, site.path))
        return before.with_nest(site.nest, target.with_body(replace_at(target.body, site.path, new)))

    return rewrite_each(program, loop_var, nest, rewrite)


def _last(loop: Loop) -> ast.expr:
    """The last value of a loop with constant bounds."""
    assert loop.extent is not None
    return simplify(expr("start + steps", start=loop.start, steps=max(0, loop.extent - 1) * loop.step))
