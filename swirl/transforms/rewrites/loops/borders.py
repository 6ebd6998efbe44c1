"""Where a loop's windows are clipped: what a recipe asks before it splits a loop at the borders."""

from __future__ import annotations

import ast
from collections.abc import Callable

from swirl.errors import CommandError
from swirl.ir.affine import ranges_at, simplify_body
from swirl.ir.nest import Program, constant, loop_of
from swirl.ir.printing import unparse
from swirl.transforms.rewrites.loops.decided_guards import drop_decided_guards
from swirl.transforms.rewrites.sites import Site, find_loops, loop_at


def interior(program: Program, loop_var: str, *, nest: int | str | None = None, occurrence: int = 0) -> tuple[int, int]:
    """The part of a loop's range, around its middle, in which every ``min``, ``max`` and condition on the loop goes one
    way: the loop that ``split`` makes of it contains none of them.

    The whole range, if none of these depends on the loop, or that part is less than half of it.

    >>> interior(program, "y")          # for k in range(max(0, 1 - y), min(3, 57 - y)), y in range(56)
    (1, 55)

    Args:
        program: with the loop.
        loop_var: the loop, of constant bounds.
        nest: only in this nest (index or label).
        occurrence: which of several loops of that name, counted from 0 in order of appearance.

    Raises:
        CommandError: no such loop, or its bounds are not constant.
    """
    site = find_loops(program, loop_var, nest)[-1 - occurrence]
    node = loop_at(program, site)
    loop = loop_of(node)
    start, stop = constant(loop.start), constant(loop.stop)
    if start is None or stop is None or loop.step != 1 or start >= stop:
        raise CommandError(
            f"the bounds of {loop.var} are not constant, or its step is not 1",
            way_out="ask before tiling and vectorising",
        )
    center = (start + stop - 1) // 2
    # Two values, as a single one decides more than its neighbours: max(0, 1 - y) may be either for y = 1.
    starts = [(low, low + 1) for low in (center, center - 1) if start <= low and low + 1 < stop]
    low, high = min(starts, key=lambda ends: len(_within(program, site, node, *ends)), default=(start, start))
    middle = _within(program, site, node, low, high)
    low = _farthest(low, start, lambda first: _within(program, site, node, first, high) == middle)
    high = _farthest(high, stop - 1, lambda last: _within(program, site, node, low, last) == middle)
    return (low, high + 1) if 2 * (high + 1 - low) >= stop - start else (start, stop)


def _farthest(known: int, end: int, holds: Callable[[int], bool]) -> int:
    """The number nearest to ``end`` at which something holds that holds at ``known``.

    Where it holds, it does at all numbers from there to ``known``: of a wider range less is decided. The steps from the
    end on grow, as borders are narrow.
    """
    way = 1 if end <= known else -1
    fails, found, step = end - way, end, 1
    while found != known and not holds(found):
        fails, found, step = found, found + way * min(step, abs(known - found)), 2 * step
    while abs(found - fails) > 1:
        middle = (fails + found) // 2
        fails, found = (fails, middle) if holds(middle) else (middle, found)
    return found


def _within(program: Program, site: Site, node: ast.For, low: int, high: int) -> str:
    """The loop's body as text, simplified for a range of its variable."""
    target, loop = program.nests[site.nest], loop_of(node)
    ranges = ranges_at(target.body, site.path) | {loop.var: (low, high)}
    body = simplify_body(drop_decided_guards(node.body, ranges), ranges)
    return "\n".join(unparse(statement) for statement in body)
