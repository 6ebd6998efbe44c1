"""Lanes that are rows apart in memory, where neighbours of the rows are other iterations' lanes: whole rows are loaded,
and turned in registers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from swirl.analysis.loop_facts import NEAR, LoopFacts, perfect_chain, stride
from swirl.schedule.rules.trials import Step, step
from swirl.target.targets import Target

LEAST_ROW = 4
"""Elements of a row, from which on it is loaded whole: the shortest vectors, of 16 bytes, have as many."""
ROWS = 2
"""Vectors of rows that pass by at once, where they come from memory: what is written of them is whole cache lines, and
processors fetch so many rows ahead."""


def transposing_steps(lanes: LoopFacts, every: Mapping[str, LoopFacts], target: Target) -> list[Step]:
    """What gives lanes that are rows apart copies of the loop along these rows; nothing where there is none.

    Args:
        lanes: the loop that may become lanes.
        every: the loops of the nest, by their variables.
        target: what is compiled for.
    """
    if not target.isa_flags:
        return []  # g++ would not
    far = [use for use in lanes.uses if use.stride not in (0, 1)]
    if any(use.stride is None or use.access.kind != "read" for use in far):
        return []
    if not any(use.stride > NEAR for use in far if use.stride is not None):
        return []
    for row in every.values():
        strides = {stride(use.access, row.var, use.statement, lanes.buffers) for use in far}
        names = _nested(lanes, row)
        if names and strides == {1} and row.trips >= LEAST_ROW and not any(every[name].repeats for name in names):
            return _transpose_steps(lanes, row, names, target)
    return []


def _transpose_steps(lanes: LoopFacts, row: LoopFacts, names: list[str], target: Target) -> list[Step]:
    """What turns rows.

    Args:
        lanes: the loop that becomes lanes.
        row: the one along the rows.
        names: of the loops around both and these, outer before inner.
        target: what is compiled for.
    """
    why = f"rows along {row.var} are loaded whole, and turned in registers"
    over, along = (lanes, row) if _further(lanes, row) else (row, lanes)
    order, inner = [name for name in names if name not in (over.var, along.var)], over.var
    steps, width, size = [], target.simd_width, ROWS * target.simd_width
    if (
        max(lanes.buffers[use.access.name].nbytes for use in lanes.uses if use.access.name in lanes.buffers)
        <= target.l2_bytes
    ):
        order = [*order, along.var, over.var]
    elif over.trips > size and over.trips % size == 0:
        steps, inner = [step(why, "tile_loop", over.var, size)], f"{over.var}_inner"
        order = [*order, f"{over.var}_outer", along.var, inner]
    else:
        order = [*order, over.var, along.var]
    if order != names:
        steps.append(step(why, "reorder", order))
    names_of = {over.var: inner, along.var: along.var}
    return [
        *steps,
        step(why, "vectorize", names_of[lanes.var], width, strided="gather"),
        step(why, "unroll_and_jam", names_of[row.var], min(width, row.trips)),
    ]


def _nested(lanes: LoopFacts, row: LoopFacts) -> list[str]:
    """The perfectly nested plain loops from the outer one of two to the innermost; none if the other is not in there,
    or loops are inside that are none of these."""
    outer = min(lanes, row, key=lambda loop: loop.depth)
    chain = list(takewhile(lambda loop: loop.kind == "range", perfect_chain(lanes.nest, outer.path)))
    names = [loop.var for loop in chain]
    alone = all(len(s.loops) == outer.depth - 1 + len(chain) for s in outer.inside)
    return names if lanes.var != row.var and {lanes.var, row.var} <= set(names) and alone else []


def _further(lanes: LoopFacts, row: LoopFacts) -> bool:
    """Whether the rows that lanes read are at least as far apart as those that they are in themselves."""
    along = [(stride(use.access, row.var, use.statement, lanes.buffers) or 0) for use in lanes.uses if use.stride == 1]
    strides = [use.stride or 0 for use in lanes.uses if use.stride not in (0, 1)]
    return max(strides) >= max(along, default=0)
