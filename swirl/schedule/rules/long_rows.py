"""Nests that are one long row of independent iterations, or a few such rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from swirl.analysis.loop_facts import LoopFacts, perfect_chain
from swirl.schedule.rules.hardware import CHUNKS, WORTH_SHARING
from swirl.schedule.rules.lanes import lanes_step
from swirl.schedule.rules.threads import PIECE, in_pieces
from swirl.schedule.rules.trials import Trials


def share_rows(trials: Trials) -> bool:
    """Of a nest that is one long loop of independent iterations, or a few such rows, threads share pieces, and lanes
    run along each; whether it is such a nest.

    rewrite:
        for x in range(1048576):                for x_outer in parallel(0, 1048576, 4096):
            y[x] = max(a[x], 0)            →        for x in vector(4096):
                                                        y[x_outer + x] = max(a[x_outer + x], 0)

    Hardware: each element is touched once; memory is read and written from one end of a piece to the other.
    """
    loops = trials.loops()
    if trials.work < WORTH_SHARING or any(loop.repeats for loop in loops):
        return False
    *around, row = loops
    if not _are_rows(trials, around, row):
        return False
    rows = prod(loop.trips for loop in around)
    size = min(PIECE, -(-row.trips // (-(-CHUNKS // rows) * trials.target.simd_width))) * trials.target.simd_width
    pieces = in_pieces([loop.var for loop in around], row.var, row.trips, size)
    return trials.together([*pieces, lanes_step(row, f"{row.var}_inner", trials.target.simd_width)])


def _are_rows(trials: Trials, around: Sequence[LoopFacts], row: LoopFacts) -> bool:
    """Whether loops are around a row alone, which are fewer than the threads want, and lanes along it suit all."""
    nested = len(perfect_chain(trials.nests[0])) == len(around) + 1
    few = prod(loop.trips for loop in around) < CHUNKS
    return not around or (nested and few and row.contiguous == row.weight)
