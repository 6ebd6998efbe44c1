"""AutoMCL's schedules as they touch memory, word by word, and the misses of an ideal cache: fully associative, it gives
up the line whose next use is farthest (Frigo et al., *Cache-oblivious algorithms*, section 2; Belady, 1966)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import product
from math import prod

from swirl.tune.automcl.complexity import (
    CONV,
    DNMM,
    DPMM,
    LIKE,
    LPMM,
    RPMM,
    TMM,
    TTMM,
    ConvTile,
    Tile,
)

Lines = Callable[[int, int], int]
"""Row and column of an element → its line."""


def misses(trace: Sequence[int], lines: int) -> int:
    """Of a cache of so many lines; the trace has the line of each access."""
    uses: list[int] = [0] * len(trace)
    following: dict[int, int] = {}
    for place in range(len(trace) - 1, -1, -1):
        uses[place] = following.get(trace[place], len(trace))
        following[trace[place]] = place
    held: dict[int, int] = {}  # line → its next use
    farthest: list[tuple[int, int]] = []
    count = 0
    for place, line in enumerate(trace):
        if line not in held:
            count += 1
            if len(held) >= lines:
                while True:
                    use, other = heappop(farthest)
                    if held.get(other) == -use:  # not the entry of an earlier use
                        del held[other]
                        break
        held[line] = uses[place]
        heappush(farthest, (-uses[place], line))
    return count


class Memory:
    """Arrays one after the other, each from a word of its own on.

    Args:
        line: words of a line.
        gap: words before each array: 0 begins with a line.
    """

    def __init__(self, line: int, gap: int = 0):
        self.line, self.gap, self._next = line, gap, 0

    def array(self, *shape: int) -> Array:
        """The next array."""
        start = -(-self._next // self.line) * self.line + self.gap
        self._next = start + prod(shape)
        return Array(start, shape, self.line)


class Array:
    """An array in rows.

    Args:
        start: its first word.
        shape: its extents.
        line: words of a line.
    """

    def __init__(self, start: int, shape: Sequence[int], line: int):
        self._start, self._shape, self._line = start, tuple(shape), line

    def at(self, *index: int) -> int:
        """The line of an element."""
        place = 0
        for extent, number in zip(self._shape, index, strict=True):
            place = place * extent + number
        return (self._start + place) // self._line

    def turned(self, row: int, column: int) -> int:
        """The line of the element of the other order."""
        return self.at(column, row)


def _tiles(extent: int, size: int) -> Iterator[range]:
    for start in range(0, extent, size):
        yield range(start, min(extent, start + size))


def product_trace(schedule: str, t: Tile, gap: int = 0) -> list[int]:
    """What a product touches, in the order of table 1 and of TVM's schedules."""
    schedule = LIKE.get(schedule, schedule)
    memory = Memory(t.line, gap)
    d, w, c = memory.array(t.m, t.k), memory.array(t.n, t.k), memory.array(t.m, t.n)
    if schedule == DNMM:
        return _summed_last(t, memory, d, w, c)
    trace: list[int] = []
    right, left = w.at, d.at
    if schedule == TTMM:
        turned = memory.array(t.k, t.n)
        for ks, xs in product(_tiles(t.k, t.kt), _tiles(t.n, t.nt)):
            for k, x in product(ks, xs):
                trace += [w.at(x, k), turned.at(k, x)]
        right = turned.turned
    if schedule in (LPMM, DPMM):
        left = _panels(trace, memory, d, t.m, t.k, t.mt)
    if schedule in (RPMM, DPMM):
        right = _panels(trace, memory, w, t.n, t.k, t.nt)
    plain = schedule in (TMM, TTMM)
    sums = memory.array(t.mt, t.nt)
    for ys, xs in product(_tiles(t.m, t.mt), _tiles(t.n, t.nt)):
        for ks in _tiles(t.k, t.kt):
            for k, y, x in product(ks, ys, xs):
                trace += [left(y, k), right(x, k), c.at(y, x) if plain else sums.at(y - ys.start, x - xs.start)]
        for y, x in product(ys, xs) if not plain else ():
            trace += [sums.at(y - ys.start, x - xs.start), c.at(y, x)]
    return trace


def _panels(trace: list[int], memory: Memory, source: Array, rows: int, sums: int, size: int) -> Lines:
    """A copy in panels of rows: what making it touches, and where its elements are."""
    copy = memory.array(-(-rows // size), sums, size)
    for some in _tiles(rows, size):
        for k, row in product(range(sums), some):
            trace += [source.at(row, k), copy.at(row // size, k, row % size)]
    return lambda row, k: copy.at(row // size, k, row % size)


def _summed_last(t: Tile, memory: Memory, d: Array, w: Array, c: Array) -> list[int]:
    """DNMM: K_t sums of each element of C, which are added up after each tile."""
    trace: list[int] = []
    parts = memory.array(t.m, t.n, t.kt)
    for ys, xs in product(_tiles(t.m, t.mt), _tiles(t.n, t.nt)):
        for ks in _tiles(t.k, t.kt):
            for y, x, k in product(ys, xs, ks):
                trace += [d.at(y, k), w.at(x, k), parts.at(y, x, k - ks.start)]
        for y, x in product(ys, xs):
            trace += [*(parts.at(y, x, k) for k in range(t.kt)), c.at(y, x)]
    return trace


def convolution_trace(schedule: str, t: ConvTile, gap: int = 0) -> list[int]:
    """What CONV or CONVOpt touches: zeros around the source, the copy of the weights, sums of a tile, and the result in
    blocks, then in rows."""
    memory, trace = Memory(t.line, gap), list[int]()
    high, wide = t.dh + 2 * t.ph, t.dw + 2 * t.pw
    source, padded = memory.array(t.b, t.ic, t.dh, t.dw), memory.array(t.b, t.ic, high, wide)
    weights = memory.array(t.oc, t.ic, t.kh, t.kw)
    filters, channels, _ = t.chunks
    copy = memory.array(filters, channels, t.kh, t.kw, t.ict, t.oct)
    sums = memory.array(t.b, filters, t.oh, -(-t.ow // t.owt), t.owt, t.oct)
    blocked, result = memory.array(t.b, filters, t.oh, t.ow, t.oct), memory.array(t.b, t.oc, t.oh, t.ow)
    for b, c, y, x in product(range(t.b), range(t.ic), range(high), range(wide)):
        if 0 <= y - t.ph < t.dh and 0 <= x - t.pw < t.dw:
            trace.append(source.at(b, c, y - t.ph, x - t.pw))
        trace.append(padded.at(b, c, y, x))
    chunks, taps_y, taps_x, block = map(range, (channels, t.kh, t.kw, t.ict))
    for ko in range(filters):
        if schedule == CONV:
            order = [(co, ky, kx, ci) for ky, co, kx, ci in product(taps_y, chunks, taps_x, block)]
        else:
            order = list(product(chunks, taps_y, taps_x, block))
        for co, ky, kx, ci in order:
            for ki in range(t.oct):
                trace += [weights.at(ko * t.oct + ki, co * t.ict + ci, ky, kx), copy.at(ko, co, ky, kx, ci, ki)]
    for b, ko, y, (number, xs) in product(range(t.b), range(filters), range(t.oh), enumerate(_tiles(t.ow, t.owt))):
        for co, ky, kx, ci, x, ki in product(*map(range, (channels, t.kh, t.kw, t.ict)), xs, range(t.oct)):
            read = padded.at(b, co * t.ict + ci, y * t.s1 + ky * t.d1, x * t.s2 + kx * t.d2)
            trace += [read, copy.at(ko, co, ky, kx, ci, ki), sums.at(b, ko, y, number, x - xs.start, ki)]
        for x, ki in product(xs, range(t.oct)):
            trace += [sums.at(b, ko, y, number, x - xs.start, ki), blocked.at(b, ko, y, x, ki)]
    for b, ko, y, xs in product(range(t.b), range(filters), range(t.oh), _tiles(t.ow, t.owt)):
        for x, ki in product(xs, range(t.oct)):
            trace += [blocked.at(b, ko, y, x, ki), result.at(b, ko * t.oct + ki, y, x)]
    return trace
