"""Strip-mining, which unrolling and vectorising share."""

from __future__ import annotations

import ast

from swirl.ir.affine import ranges_at, simplify, simplify_body
from swirl.ir.nest import Loop, Nest, Program, expr, loop_of, substitute
from swirl.ir.paths import Path, replace_at
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.sites import Site, loop_at


def plain_loop(nest: Nest, path: Path, node: ast.For, note: str) -> Loop:
    """The loop's head, if it is a ``range`` of step 1; a parallel, vector or unrolled loop is refused."""
    loop = loop_of(node)
    if loop.kind != "range" or loop.step != 1:
        what = f"a {loop.kind} loop" if loop.kind != "range" else f"a loop of step {loop.step}"
        raise refuse(
            f"{loop.var} is {what}",
            nest,
            path,
            note,
            way_out="give this command before the one that made it so",
        )
    return loop


def strip(program: Program, site: Site, factor: int, inner: str, kind: str) -> tuple[Program, Site, bool]:
    """Strip-mine the loop at ``site``: it keeps its name and takes steps of ``factor``; ``inner`` counts from
    0 inside.

    A ragged end becomes a shorter last strip for ``vector`` (a mask), and a separate loop after it for ``unrolled``.

    Returns:
        the program, the site of the inner loop, and whether a loop over the remainder follows the strip-mined one.
    """
    target, node = program.nests[site.nest], loop_at(program, site)
    loop = loop_of(node)
    ranges = ranges_at(target.body, site.path)
    step = loop.step
    value = simplify(expr("var + inner * step", var=loop.var, inner=inner, step=step))
    body = [substitute(statement, {loop.var: value}) for statement in node.body]
    rest: list[ast.stmt] = []
    stop = loop.stop
    count: ast.expr = ast.Constant(factor)
    if kind == "vector":
        count = expr("min(f, stop - var)", f=factor, stop=loop.stop, var=loop.var)
    else:
        extent = loop.extent
        assert extent is not None
        whole = extent // factor * factor
        if whole < extent:
            edge = simplify(expr("start + whole", start=loop.start, whole=whole * step))
            rest = [Loop(loop.var, loop.kind, edge, loop.stop, step, loop.options).node(node.body)]
            stop = edge
    inside = Loop(inner, kind, ast.Constant(0), count).node(body)
    outer = Loop(loop.var, loop.kind, loop.start, stop, step * factor, loop.options).node([inside])
    new = simplify_body([outer], ranges) + rest
    result = program.with_nest(site.nest, target.with_body(replace_at(target.body, site.path, new)))
    return result, Site(site.nest, (*site.path, ("body", 0))), bool(rest)
