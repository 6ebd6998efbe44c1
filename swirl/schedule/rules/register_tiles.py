"""The size of a register tile: copies of two loops over the results of a contraction."""

WAITING = 8
"""Sums that processors add to while one waits for its product: two a cycle, for four cycles."""
ENDS = 0.3
"""Of the time of a register tile, what a ragged end takes besides its products."""


def register_tile(
    rows: int, vectors: int, registers: int, single: int = 0, periods: tuple[int, int] = (1, 1)
) -> tuple[int, int]:
    """Copies ``(p, q)`` of a loop of rows and of one of vectors, for the most products a load.

    p·q sums, q vectors and a broadcast are in registers. Copies that a ragged end leaves without work count, and the
    loop of its own that it is; so do ``single`` vectors beside the others, of which p sums wait for each other's
    products. p and q are multiples of ``periods``, if there is such a tile: a copy has the same condition in each
    iteration then.
    """
    found, tile = _best(rows, vectors, registers, single, periods)
    return tile if found or periods == (1, 1) else register_tile(rows, vectors, registers, single)


def products_a_load(rows: int, vectors: int, registers: int) -> float:
    """Products for each load of the best register tile, less what ragged ends cost."""
    return _best(rows, vectors, registers, 0, (1, 1))[0]


def _best(
    rows: int, vectors: int, registers: int, single: int, periods: tuple[int, int]
) -> tuple[float, tuple[int, int]]:
    """The best tile's products a load, and its size."""

    def filled(extent: int, copies: int) -> float:
        tiles = -(-extent // copies)
        return extent / (tiles * copies) * (1 if extent % copies == 0 else 1 - ENDS / tiles)

    best, choice = 0.0, (1, 1)
    for q in range(periods[1], min(vectors, registers // 2) + 1, periods[1]):
        for p in range(periods[0], rows + 1, periods[0]):
            if p * q + q + 1 > registers:
                break
            alone = vectors / (vectors + single * max(1, WAITING / p))
            value = p * q / (p + q) * filled(rows, p) * filled(vectors, q) * alone
            if value > best:
                best, choice = value, (p, q)
    return best, choice
