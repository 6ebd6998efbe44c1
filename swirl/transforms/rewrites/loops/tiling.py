"""A loop in tiles: one loop over them, one inside."""

from __future__ import annotations

import ast
from collections.abc import Callable

from swirl.ir.affine import ranges_at, simplify, simplify_body
from swirl.ir.nest import Loop, Program, constant, expr, for_loop, stmts, substitute
from swirl.ir.paths import replace_at
from swirl.transforms.arguments import Factors, Tail
from swirl.transforms.rewrites.loops.strips import plain_loop
from swirl.transforms.rewrites.loops.tile_sizes import in_parts
from swirl.transforms.rewrites.sites import Site, inner_name, loop_at, rewrite_each

_TILED = "asked to be tiled"


def tiled(
    program: Program, loop_var: str, factor: Factors, *, tail: Tail = "min", nest: int | str | None = None
) -> Program:
    """The loops called ``loop_var``, each in tiles.

    Args:
        loop_var, factor, tail, nest: as ``tile_loop`` takes them.

    Raises:
        CommandError: the tiles do not sum to the extent.
        Refused: the loop is not a plain loop of step 1.
    """

    def rewrite(before: Program, site: Site, size: int) -> Program:
        target, node = before.nests[site.nest], loop_at(before, site)
        loop = plain_loop(target, site.path, node, _TILED)
        new = _tiled(loop, node.body, size, tail, lambda base: inner_name(before, site, base))
        ranges = ranges_at(target.body, site.path)
        return before.with_nest(
            site.nest, target.with_body(replace_at(target.body, site.path, simplify_body(new, ranges)))
        )

    return rewrite_each(program, loop_var, nest, lambda before, site: in_parts(before, site, factor, _TILED, rewrite))


def _tiled(loop: Loop, body: list[ast.stmt], factor: int, tail: Tail, name: Callable[[str], str]) -> list[ast.stmt]:
    outer, inner = name(f"{loop.var}_outer"), name(f"{loop.var}_inner")
    start, extent = loop.start, simplify(expr("b - a", a=loop.start, b=loop.stop))
    known = constant(extent)
    value = simplify(expr("start + outer * factor + inner", start=start, outer=outer, factor=factor, inner=inner))
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
