"""Commands that cut a loop's range: tile_loop and split; and strip-mining, which unrolling and vectorising
share."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from itertools import pairwise

from swirl.errors import CommandError
from swirl.ir.affine import ranges_at, simplify, simplify_body
from swirl.ir.nest import (
    Loop,
    Nest,
    Path,
    Program,
    constant,
    enclosing,
    expr,
    for_loop,
    loop_of,
    replace_at,
    stmts,
    substitute,
)
from swirl.transforms.base import (
    Site,
    command,
    inner_name,
    loop_at,
    refuse,
    rewrite_each,
)
from swirl.transforms.parts import Factors, check_factors, cut, in_parts
from swirl.transforms.ways import Step, nest_of, step, tried

TAILS = ("min", "mask", "peel")
_TILED = "asked to be tiled"


@command()
def tile_loop(
    program: Program, loop_var: str, factor: Factors, *, tail: str = "min", nest: int | str | None = None
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
            ``peel`` puts the rest into a loop of its own, so that tiles have constant bounds.
        nest: only in this nest (index or label).

    Raises:
        CommandError: bad factor or tail, or the tiles do not sum to the extent.
        Refused: the loop is no plain loop of step 1.

    Source: Wolfe, *High Performance Compilers for Parallel Computing*, chapter 9 (strip-mining).
    """
    factors = check_factors(factor)
    if tail not in TAILS:
        raise CommandError(f"tail must be one of {', '.join(TAILS)}, not {tail!r}")

    def rewrite(before: Program, site: Site, size: int) -> Program:
        target, node = before.nests[site.nest], loop_at(before, site)
        loop = plain_loop(target, site.path, node, _TILED)
        new = _tiled(loop, node.body, size, tail, lambda base: inner_name(before, site, base))
        ranges = ranges_at(target.body, site.path)
        return before.with_nest(
            site.nest, target.with_body(replace_at(target.body, site.path, simplify_body(new, ranges)))
        )

    return rewrite_each(program, loop_var, nest, lambda before, site: in_parts(before, site, factors, _TILED, rewrite))


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


def _tiled(
    loop: Loop, body: list[ast.stmt], factor: int, tail: str, name: Callable[[str], str]
) -> list[ast.stmt]:
    outer, inner = name(f"{loop.var}_outer"), name(f"{loop.var}_inner")
    start, extent = loop.start, simplify(expr("b - a", a=loop.start, b=loop.stop))
    known = constant(extent)
    value = simplify(
        expr("start + outer * factor + inner", start=start, outer=outer, factor=factor, inner=inner)
    )
    inside = [substitute(statement, {loop.var: value}) for statement in body]
    if known is not None and known % factor == 0:
        return [for_loop(outer, known // factor, [for_loop(inner, factor, inside)])]
    if tail == "peel":
        # A loop may have no iterations; where its extent is known to be more, simplification drops the max.
        tiles = simplify(expr("max(0, e // f)", e=extent, f=factor))
        edge = simplify(expr("max(a, a + e // f * f)", a=start, e=extent, f=factor))
        whole = [] if constant(tiles) == 0 else [for_loop(outer, tiles, [for_loop(inner, factor, inside)])]
        return [*whole, for_loop(loop.var, loop.stop, body, start=edge)]
    count = simplify(expr("(e + f - 1) // f", e=extent, f=factor))
    if tail == "mask":
        guard = stmts("if outer * f + inner < e: pass", outer=outer, f=factor, inner=inner, e=extent)[0]
        assert isinstance(guard, ast.If)
        guard.body = inside
        return [for_loop(outer, count, [for_loop(inner, factor, [guard])])]
    last = expr("min(f, e - outer * f)", f=factor, e=extent, outer=outer)
    return [for_loop(outer, count, [for_loop(inner, last, inside)])]


@command()
def split(program: Program, loop_var: str, at: Sequence[int], *, nest: int | str | None = None) -> Program:
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

    if not isinstance(at, (list, tuple)) or not all(type(cut) is int for cut in at):
        raise CommandError(f"cuts are given as a list of whole numbers, not as {at!r}")

    def rewrite(before: Program, site: Site) -> Program:
        target, node = before.nests[site.nest], loop_at(before, site)
        loop = plain_loop(target, site.path, node, "asked to be split")
        start, stop = constant(loop.start), constant(loop.stop)
        if start is None or stop is None:
            raise refuse(f"the bounds of {loop.var} are not constant", target, site.path, "asked to be split",
                         way_out=tried(before, *_outermost(before, site, at)))  # fmt: skip
        edges = [start, *at, stop]
        if any(low >= high for low, high in pairwise(edges)):
            raise CommandError(f"cuts must increase and lie inside ({start}, {stop}), not {list(at)}")
        return cut(before, site, [value - start for value in at], [None] * (len(edges) - 1))

    return rewrite_each(program, loop_var, nest, rewrite)


def _outermost(program: Program, site: Site, at: Sequence[int]) -> list[tuple[Step, Step]]:
    """Interchanges after which the loop at ``site`` may have constant bounds, each with the split."""
    var, only = loop_of(loop_at(program, site)).var, nest_of(program, site)
    around = enclosing(program.nests[site.nest].body, site.path)
    outer = [loop_of(node).var for node in around if isinstance(node, ast.For)]
    return [(step("interchange", [other, var], nest=only), step("split", var, list(at), nest=only)) for other in outer]


def strip(program: Program, site: Site, factor: int, inner: str, kind: str) -> tuple[Program, Site, bool]:
    """Strip-mine the loop at ``site``: it keeps its name and takes steps of ``factor``; ``inner`` counts from
    0 inside.

    A ragged end becomes a shorter last strip for ``vector`` (a mask), and a loop of its own, behind, for
    ``unrolled``.

    Returns:
        the program, the site of the inner loop, and whether there is a rest loop right behind the strip-mined
        one.
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
