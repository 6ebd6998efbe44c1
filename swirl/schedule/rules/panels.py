"""Products of large matrices: panels of one operand are copied, and stay near while the other one passes by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

from swirl.analysis.accesses import Access
from swirl.analysis.loop_facts import Contraction, contractions, moves, stride
from swirl.analysis.strides import LINE
from swirl.schedule.rules.hardware import CHUNKS, READ_MANY_TIMES
from swirl.schedule.rules.product import Blocking, ContractionFacts, even, innermost, trips_of
from swirl.schedule.rules.register_tiles import products_a_load
from swirl.schedule.rules.trials import Step, Trials, one_by_one, step
from swirl.transforms.rewrites.storage.local_arrays import MAX_ELEMENTS

WIDTHS = range(2 * LINE, 4 * LINE + 1)
"""Bytes of a row of a panel: processors fetch lines in pairs; wider ones leave room for fewer terms."""
NEAR_BEST = 0.85
"""Of the products a load of the best width, those of a wider one, with which the other operand passes by less often."""
MANY_ROWS = 64
"""Rows of the other operand from which on copying a panel takes little of the time: a copy loads and stores each
element once, and each row multiplies by it."""
ROWS_TRANSPOSED = 128
"""The same where rows of the panel are columns of the operand: these are turned in registers, which takes as long
again."""
MOST = 0.9
"""Share of a ragged row that is worth panels: the rest is a product of its own, without them."""


def in_panels(trials: Trials, found: Contraction) -> Blocking | None:
    """Panels along the loop over results that are neighbours in memory; None where another operand is neither
    contiguous along terms nor small, or :meth:`Panels.blocking` has none.

    Source: Goto, van de Geijn, *Anatomy of high-performance matrix multiplication*, 2008, section 4.
    """
    panels = Panels.of(trials, found)
    if panels is None or not all(map(panels.passes_well, panels.passing)):
        return None
    return panels.blocking()


@dataclass(frozen=True)
class Panels(ContractionFacts):
    """A contraction whose results are neighbours in memory along a loop, with one operand that moves with it.

    Args:
        row: the loop.
        operand: the one that moves with it, and with all loops over the terms: panels of it are copied.
        rows: the loops over results along which that one stays the same, outermost first: rows of results.
    """

    row: str
    operand: Access
    rows: tuple[str, ...]

    @staticmethod
    def of(trials: Trials, found: Contraction) -> Panels | None:
        """None where a contraction is not of this kind."""
        buffers = trials.program.buffers
        if found.target.name not in buffers:
            return None
        row = next((v for v in found.results if stride(found.target, v, found.statement, buffers) == 1), None)
        moving = [access for access in found.operands if row is not None and moves(access, row)]
        if row is None or len(moving) != 1 or moving[0].name not in buffers:
            return None
        if not all(moves(moving[0], var) for var in found.sums):
            return None
        rows = tuple(var for var in found.results if not moves(moving[0], var))
        return Panels(trials, found, trips_of(trials), row, moving[0], rows)

    @property
    def passing(self) -> list[Access]:
        """The operands that pass by."""
        return [access for access in self.found.operands if not moves(access, self.row)]

    def passes_well(self, access: Access) -> bool:
        """Whether an operand passes by in whole cache lines, or stays in the level-2 cache."""
        along_terms = any(self.stride(access, var) == 1 for var in self.found.sums)
        size = self.trials.program.buffers[access.name].nbytes if access.name in self.trials.program.buffers else 0
        return along_terms or size <= self.trials.target.l2_bytes // 4

    @property
    def around(self) -> list[str]:
        """The loops over results with which the operand moves, but for the row's."""
        return [var for var in self.found.results if var not in (*self.rows, self.row)]

    def blocking(self) -> Blocking | None:
        """Panels; None where few rows pass by, the operand stays near as it is, or panels would be few, or not whole.

        A panel has as many terms as a quarter of the level-2 cache has room for: its rows are read one after the other,
        so that they come in time, and sums are stored and loaded again after the last one only. Few rows would not make
        up for what the copy costs there: it stays in the level-1 cache.
        """
        target, terms = self.trials.target, self.found.sums
        transposed = self.stride(self.operand, self.row) != 1
        size = self.count((*terms, self.row)) * self.itemsize
        stays_cached = size <= 2 * target.l1_bytes or self.trips[self.row] * self.itemsize < WIDTHS.stop
        if self.stride(self.operand, terms[-1]) != 1 if transposed else stays_cached:
            return None
        if self.count(self.rows) < (ROWS_TRANSPOSED if transposed else MANY_ROWS):
            return None
        width = self._width()
        if width is None:
            return self._most()
        many = transposed or self.count(self.rows) >= READ_MANY_TIMES
        room = target.l2_bytes // 4 if many else 2 * target.l1_bytes // 3
        most = min(room, MAX_ELEMENTS * self.itemsize) // (width * self.itemsize)
        return self._in_order(width, most)

    def _in_order(self, width: int, most: int) -> Blocking:
        """Panels of a width that :meth:`_width` has found, with at most so many terms."""
        spread = self._spread(width)
        assert spread is not None
        outside, block = spread
        sizes, inside, terms = {self.row: width}, list(self.rows[len(outside) :]), list(self.found.sums)
        if block < self.trips[inside[0]]:
            sizes[inside[0]] = block
            outside, inside[0] = [*outside, f"{inside[0]}_outer"], f"{inside[0]}_inner"
        outside.append(f"{self.row}_outer")
        if self.count(terms) > most:
            longest = max(terms, key=lambda var: self.trips[var])
            sizes[longest] = even(self.trips[longest], max(1, most * self.trips[longest] // self.count(terms)))
            outside, terms[terms.index(longest)] = [*outside, f"{longest}_outer"], f"{longest}_inner"
        panel_bytes = min(most, self.count(self.found.sums)) * width * self.itemsize
        why = f"a panel of {panel_bytes / 1000:.3g} kB stays near for all {' and '.join(self.rows)}"
        return Blocking((*outside, *inside, f"{self.row}_inner", *terms), sizes, why)

    def _most(self) -> Blocking | None:
        """What cuts off the ragged end of a row; None where the rest is not most of it, or has no panels, either."""
        trips, widest = self.trips[self.row], (WIDTHS.stop - 1) // self.itemsize
        whole = trips - trips % widest
        if whole == trips or whole < MOST * trips:
            return None
        if replace(self, trips={**self.trips, self.row: whole}).blocking() is None:
            return None
        order = (self.row, *self.rows, *self.found.sums)
        return Blocking(order, {}, f"{trips - whole} of {self.row} are not a whole panel", cut=(self.row, whole))

    def _width(self) -> int | None:
        """Elements of a row of a panel; None where no width leaves whole panels, enough for the threads."""
        vector, target, trips = self.trials.target.simd_width, self.trials.target, self.trips[self.row]
        loads = {
            width: products_a_load(self.trips[self.rows[-1]], width // vector, target.registers)
            for width in range(vector, trips + 1, vector)
            if width * self.itemsize in WIDTHS and trips % width == 0
        }
        good = [width for width, value in loads.items() if value >= NEAR_BEST * max(loads.values())]
        # Each thread copies a panel of its own for blocks of rows: only of the widest.
        good = [
            width for width in good if self._threads(width) >= CHUNKS or (width == good[-1] and self._spread(width))
        ]
        room = 2 * target.l1_bytes // 3 // (self.count(self.found.sums) * self.itemsize)
        small = [width for width in good if width <= room]
        return max(small or good, default=None)  # of few terms, panels that stay in the level-1 cache

    def _spread(self, width: int) -> tuple[list[str], int] | None:
        """The loops over rows that are outside of panels of a width, and the iterations of the next one in a block, so
        that all threads have some; None where a panel would be for few rows."""
        outside, rows, threads = list[str](), list(self.rows), self._threads(width)
        while threads < CHUNKS and self.count(rows[1:]) >= READ_MANY_TIMES:
            threads *= self.trips[rows[0]]
            outside.append(rows.pop(0))
        trips, blocks = self.trips[rows[0]], -(-CHUNKS // threads)
        block = even(trips, max(1, trips // blocks))
        enough = blocks == 1 or (trips % block == 0 and block * self.count(rows[1:]) >= READ_MANY_TIMES)
        return (outside, block) if enough else None

    def _threads(self, width: int) -> int:
        """Panels of a width that threads share, along all loops around."""
        return self.trips[self.row] // width * self.count(self.around)


# --- copies -----------------------------------------------------------------------------------------------------
def pack_panels(trials: Trials) -> None:
    """Copy the panels of products whose loops are in the order of :class:`Panels`.

    rewrite:
        for k_outer in range(0, 512, 64):                      for k_outer in range(0, 512, 64):
            for n in range(1024):                                  w_packed[i, k] = w[k_outer + k, i]
                for k in range(64):                                for n in range(1024):
                    for i in range(256):                  →            for k in range(64):
                        y[n, k_outer + k] +=                               for i in range(256):
                            a[n, i] * w[k_outer + k, i]                        y[n, k_outer + k] +=
                                                                                   a[n, i] * w_packed[i, k]

    Hardware: rows of the copy are neighbours: they take no lines of each other in the level-1 cache, and processors
    fetch one after the other.
    """
    for found in one_by_one(lambda: _copies(trials), lambda one: one.arguments[0]):
        trials.together([found])


def _copies(trials: Trials) -> Iterator[Step]:
    """What copies each panel, before the rows that pass by."""
    buffers = trials.program.buffers
    for found in contractions(trials.nests[0], buffers):
        panels = Panels.of(trials, found)
        loops = found.statement.variables()
        if panels is None or panels.trips[panels.row] * panels.itemsize not in WIDTHS:
            continue
        before = loops[: loops.index(panels.row)]
        rows = list(takewhile(lambda var: not moves(panels.operand, var), reversed(before)))  # noqa: B023
        access, buffer = panels.operand, buffers[panels.operand.name]
        transposed = panels.stride(access, panels.row) != 1
        if panels.count(rows) < (ROWS_TRANSPOSED if transposed else MANY_ROWS) or len(rows) == len(before):
            continue
        at = before[-len(rows) - 1]
        around = next(f for f in trials.loops() if f.var == at and f.path == found.statement.path[: f.depth])
        if around.references(access.name) != {(found.statement.path, access.text)}:
            continue  # others may want its rows as they are
        options = {"order": innermost(buffer, access, panels.row)} if transposed else {}
        why = f"a panel that stays near for all {' and '.join(reversed(rows))}"
        yield step(why, "pack", access.name, at=at, **options)
