"""Combinations of tiles for extents that one tile does not divide: 17 = 6 + 6 + 5, 34 = 12 + 11 + 11."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, pairwise, takewhile

from swirl.errors import CommandError
from swirl.ir.affine import ranges_at, simplify_body
from swirl.ir.nest import Loop, Nest, Program, constant, expr, loop_of, substitute, variable_of
from swirl.ir.paths import loops, replace_at
from swirl.transforms.arguments import Factors, check_positive
from swirl.transforms.rewrites.blocks import block_at
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.loops.decided_guards import drop_decided_guards
from swirl.transforms.rewrites.sites import Site, inner_name, loop_at, take_mark


def combination(extent: int, factors: int | Iterable[int]) -> list[int]:
    """Tile sizes that sum to ``extent``, largest first: the fewest tiles, as even as possible.

    Fewer tiles load what the tiles share less often; the smallest tile leaves most of the floating-point units idle.

    >>> combination(17, 6), combination(34, 12), combination(13, 14), combination(20, [4, 7])
    ([6, 6, 5], [12, 11, 11], [13], [4, 4, 4, 4, 4])

    Args:
        extent: iterations of the loop.
        factors: the sizes allowed; one number allows every size up to it.

    Raises:
        CommandError: no such sizes sum to the extent.

    Source: Tollenaere (TTiLE), sections 3.4.3 and 5.3.
    """
    check_positive(extent, "extent")
    if not isinstance(factors, Iterable) or isinstance(factors, str):
        count = -(-extent // check_positive(factors, "the largest tile"))
        size, larger = divmod(extent, count)
        return [size + 1] * larger + [size] * (count - larger)
    allowed = list(factors)
    if not allowed:
        raise CommandError("no tiles to choose from", way_out="s.combination(17, 6) allows every size up to 6")
    sizes = sorted({size for size in allowed if check_positive(size, "a tile") <= extent}, reverse=True)
    # Beyond the square of the largest tile, leading tiles of that size leave the fewest: the rest is searched.
    whole = max(0, (extent - sizes[0] ** 2) // sizes[0]) if sizes else 0
    rest = extent - whole * sizes[0] if sizes else extent
    best = _fewest(rest, sizes)
    if best is None:
        raise CommandError(
            f"no tiles of {', '.join(map(str, sorted(set(allowed))))} sum to {extent}",
            way_out="allow smaller tiles as well",
        )
    # The same number, without the small sizes, then without the large ones.
    kept = sizes
    for number in range(1, len(sizes)):
        if _as_few(rest, sizes[:number], len(best)):
            kept = sizes[:number]
            break
    while _as_few(rest, kept[1:], len(best)):
        kept = kept[1:]
    return sorted([sizes[0]] * whole + (_fewest(rest, kept) or best), reverse=True)


def _as_few(extent: int, sizes: Sequence[int], count: int) -> bool:
    found = _fewest(extent, sizes)
    return found is not None and len(found) == count


def _fewest(extent: int, sizes: Sequence[int]) -> list[int] | None:
    """The fewest of ``sizes`` that sum to ``extent``; None where none do."""
    last: dict[int, int] = {0: 0}  # what can be reached → the tile that reached it first
    front = [0]
    while extent not in last and front:
        reached = []
        for total in front:
            for size in sizes:
                if total + size <= extent and total + size not in last:
                    last[total + size] = size
                    reached.append(total + size)
        front = reached
    if extent not in last:
        return None
    result = []
    while extent:
        result.append(last[extent])
        extent -= last[extent]
    return result


def in_parts(
    program: Program, site: Site, factors: Factors, note: str, rewrite: Callable[[Program, Site, int], Program]
) -> Program:
    """``rewrite(program, site, factor)`` of the loop at ``site``, or of each of its parts.

    A list of factors cuts the loop into one part for each run of equal factors, named as ``split`` names them.

    Raises:
        CommandError: the factors do not sum to the loop's extent.  Refused: its bounds are not constant.
    """
    if isinstance(factors, int):
        return rewrite(program, site, factors)
    loop = loop_of(loop_at(program, site))
    if loop.kind != "range" or loop.extent is None:
        what = (
            f"{loop.var} is a {loop.kind} loop"
            if loop.kind != "range"
            else (f"the bounds of {loop.var} are not constant")
        )
        raise refuse(
            what,
            program.nests[site.nest],
            site.path,
            note,
            way_out="a combination of tiles needs a plain loop of constant extent",
        )
    if sum(factors) != loop.extent:
        shown = " + ".join(map(str, factors))
        fits = " + ".join(map(str, combination(loop.extent, max(factors))))
        raise CommandError(
            f"{shown} = {sum(factors)} iterations, and {loop.var} has {loop.extent}",
            way_out=f"{fits} = {loop.extent}; s.combination({loop.extent}, {max(factors)}) finds it",
        )
    runs = [(factor, len(list(run))) for factor, run in groupby(factors)]
    steps = [0]
    for factor, count in runs:
        steps.append(steps[-1] + factor * count)
    marks = [f"part {number} of {site}" for number in range(len(runs))]
    program = cut(program, site, steps[1:-1], marks)
    for (factor, _), mark in zip(runs, marks, strict=True):
        if any(getattr(head, "mark", None) == mark for _, head in loops(program.nests[site.nest].body)):
            program = rewrite(program, take_mark(program, mark), factor)  # else its conditions never hold
    return program


def cut(program: Program, site: Site, after: Sequence[int], marks: Sequence[str | None]) -> Program:
    """The loop at ``site``, of constant bounds, cut into consecutive loops after so many iterations.

    The first part keeps the loop's name ``y``, the others are ``y_1``, ``y_2``, …, in each part of another loop that
    was cut before: a command on ``y_1`` means all of them. Conditions that are constant in a part vanish, and so do
    ``min`` and ``max`` that one argument always wins. Every part gets one of ``marks``.
    """
    target, node = program.nests[site.nest], loop_at(program, site)
    loop = loop_of(node)
    start, stop = constant(loop.start), constant(loop.stop)
    assert start is not None and stop is not None
    edges = [start, *(start + count * loop.step for count in after), stop]
    taken = _names_near(target, site, loop.var)
    ranges = ranges_at(target.body, site.path)
    parts: list[ast.stmt] = []
    for index, (low, high) in enumerate(pairwise(edges)):
        var = loop.var if index == 0 else inner_name(program, site, f"{loop.var}_{index}", taken)
        taken.add(var)
        body = [substitute(statement, {loop.var: expr(var)}) for statement in node.body]
        head = Loop(var, loop.kind, expr(low), expr(high), loop.step, loop.options, marks[index])
        parts += simplify_body([head.node(body)], ranges)
    return program.with_nest(
        site.nest, target.with_body(drop_decided_guards(replace_at(target.body, site.path, parts)))
    )


def _names_near(nest: Nest, site: Site, var: str) -> set[str]:
    """The names of loops beside the one at ``site``: its parts are others. Those that belong to another loop of the
    same name, the one before them, may be parts of it: they have the same names."""
    block, place = block_at(nest, site.path), site.path[-1][1]
    beside = block[:place], block[place + 1 :]
    before, after = ([variable_of(node) for node in part if isinstance(node, ast.For)] for part in beside)
    own = takewhile(lambda name: name != var, after)
    return {var, *own} if var in before else {var, *before, *own}
