"""The size of a register tile: copies of two loops over the results of a contraction."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import itemgetter

OTHERS = 7
"""Tiles that a search may take instead of the best one."""
WAITING = 8
"""Sums that processors add to while one waits for its product: two a cycle, for four cycles."""
ENDS = 0.3
"""Of the time of a register tile, what a ragged end takes besides its products: it loads and stores sums of its own."""


def register_tile(
    rows: int, vectors: int, registers: int, single: int = 0, periods: tuple[int, int] = (1, 1)
) -> tuple[int, int]:
    """Copies ``(p, q)`` of a loop of rows and of one of vectors, for the most products a load.

    p·q sums, q vectors and a broadcast are in registers. Copies that a ragged end leaves without work count, and the
    loop of its own that it is; so do ``single`` vectors beside the others, of which p sums wait for each other's
    products. p and q are multiples of ``periods``, if there is such a tile: a copy has the same condition in each
    iteration then.
    """
    return next(register_tiles(rows, vectors, registers, single, periods))


def register_tiles(
    rows: int, vectors: int, registers: int, single: int = 0, periods: tuple[int, int] = (1, 1)
) -> Iterator[tuple[int, int]]:
    """The best register tile, that of :func:`register_tile`, then :data:`OTHERS` in order of their products a load."""
    known = _tiles(rows, vectors, registers, single, periods)
    if not known and periods != (1, 1):
        known = _tiles(rows, vectors, registers, single, (1, 1))
    _, best = max(known, key=itemgetter(0), default=(0.0, (1, 1)))
    yield best
    ranked = (size for _, size in sorted(known, key=itemgetter(0), reverse=True) if size != best)
    yield from islice(ranked, OTHERS)


def products_a_load(rows: int, vectors: int, registers: int) -> float:
    """Products for each load of the best register tile, less what ragged ends cost."""
    return max(map(itemgetter(0), _tiles(rows, vectors, registers, 0, (1, 1))), default=0.0)


def _tiles(
    rows: int, vectors: int, registers: int, single: int, periods: tuple[int, int]
) -> list[tuple[float, tuple[int, int]]]:
    """The products a load of each tile that the registers hold, and its size."""

    def filled(extent: int, copies: int) -> float:
        tiles = -(-extent // copies)
        return extent / (tiles * copies) * (1 if extent % copies == 0 else 1 - ENDS / tiles)

    found = []
    for q in range(periods[1], min(vectors, registers // 2) + 1, periods[1]):
        columns = filled(vectors, q)
        for p in range(periods[0], rows + 1, periods[0]):
            if p * q + q + 1 > registers:
                break
            alone = vectors / (vectors + single * max(1, WAITING / p))
            found.append((p * q / (p + q) * filled(rows, p) * columns * alone, (p, q)))
    return found
