"""Copies of loops of one nest: register tiles, sums that do not wait for each other, whole rows."""

from __future__ import annotations

from collections.abc import Collection
from math import gcd, lcm, prod

from swirl.analysis.accesses import parsed
from swirl.analysis.loop_facts import Contraction, LoopFacts, contractions, correlations, facts, residues, stride
from swirl.analysis.statements import Statement, statements_of
from swirl.ir.nest import names_in
from swirl.schedule.rules.register_tiles import register_tiles
from swirl.schedule.rules.trials import Trials

IN_FLIGHT = 4
"""Sums that do not wait for each other: a multiply-add takes four cycles; one a cycle begins, as each loads two
operands and processors load two a cycle."""
LONG = 8
"""Iterations of a loop that are enough for a register tile: no side of one is much longer, as its sums are in
registers."""
WRITTEN_OUT = 8
"""Terms of a sum that are written out at the most, of all loops together: with the copies of a register tile, the body
has as many instructions as processors keep decoded."""
ALONE = (1, 1)
"""Iterations of a loop that has no copies, and how many of them a tile is to have a multiple of."""
FILLED = range(2, 5)
"""Distances of lanes at which what is between them is written together with them: a few shuffles of vectors do that."""


class Copies:
    """Writes the commands that copy loops around lanes.

    Args:
        trials: of the nest.
    """

    def __init__(self, trials: Trials):
        self.trials = trials

    def make(self, lanes: LoopFacts, row: str, vectors: int, single: int = 0) -> None:
        """Copies of loops around that share what is loaded, whose sums do not wait for each other, or that write the
        elements of a row in turns.

        Args:
            lanes: the loop, as it was before it became lanes.
            row: the loop that counts their vectors.
            vectors: of a row.
            single: vectors at its borders, each a loop of its own that shares the copies of other loops alone.
        """
        self._share(lanes, row, vectors, single)
        self._fill_rows(lanes)

    def _share(self, lanes: LoopFacts, row: str, vectors: int, single: int) -> None:
        if any(_copies(statement) > 1 for statement in lanes.inside):
            return  # another sum in the nest has made them, of the loops around both
        inside = {id(statement.node) for statement in lanes.inside}
        products = [c for c in contractions(lanes.nest, lanes.buffers) if id(c.statement.node) in inside]
        window = [c for c in correlations(lanes.nest, lanes.buffers) if id(c.statement.node) in inside]
        if products:
            shared = self._register_tile(lanes, products[0], row, vectors, single)
        else:
            sums = [each for each in window if lanes.var in each.sums]
            shared = bool(sums) and self._window_tile(lanes, sums[0])
        if not shared and lanes.repeats:
            if vectors >= IN_FLIGHT:
                self.trials.apply("sums that do not wait for each other", "unroll", row, IN_FLIGHT)
        elif not (shared or products):
            inner = [f for f in facts(lanes.nest, lanes.buffers) if lanes.contains(f)]
            picked = any(use.stride is None for f in inner for use in f.uses)
            why = "more of each row that data choose" if picked else "sums that do not wait for each other"
            count = max(number for number in range(1, IN_FLIGHT + 1) if vectors % number == 0)
            if not picked and not any(f.repeats for f in inner):
                return
            if count > 1:
                self.trials.apply(why, "unroll_and_jam", row, count)
            adding = [s for s in lanes.inside if any(access.kind == "add" for access in s.accesses)]
            if adding:
                self._write_out(adding[-1], lanes)

    def _fill_rows(self, lanes: LoopFacts) -> None:
        """Copies of a loop that writes what is between the lanes' elements: whole registers of the row are stored. Not
        of products, whose tile has the registers."""
        if contractions(lanes.nest, lanes.buffers):
            return
        for statement in lanes.inside:
            for access in (access for access in statement.accesses if access.kind == "write"):
                distance = stride(access, lanes.var, statement, lanes.buffers)
                for loop in statement.loops:
                    fills = loop.extent == distance and stride(access, loop.var, statement, lanes.buffers) == 1
                    if fills and distance in FILLED and loop.var != lanes.var:
                        self.trials.apply("it writes what is between the lanes", "unroll_and_jam", loop.var, distance)
                        return

    def _register_tile(self, lanes: LoopFacts, found: Contraction, row: str, vectors: int, single: int) -> bool:
        """Copies of two loops over the results: one whose iterations share a vector that is loaded, and the lanes, or
        one that shares another operand. Not for what long rows are multiplied by as a whole: it is loaded once.

        Returns:
            whether there is a loop to copy.
        """
        moving = {a.text: stride(a, lanes.var, found.statement, lanes.buffers) != 0 for a in found.operands}
        chosen: list[str] = []
        along_vectors: list[str] = []
        for text in sorted(moving, key=lambda text: not moving[text]):
            if not moving[text] and vectors > 1 and lanes.var not in found.sums:
                chosen, along_vectors = [*chosen[:1], row], [row]
            elif moving[text] or vectors < IN_FLIGHT:
                same = self._same_along(text, found, {lanes.var, row, *chosen})
                chosen += same
                along_vectors += [] if moving[text] else same
        every = {loop.var: loop for loop in self.trials.loops()}
        copied = [every[var] for var in chosen[:2] if var in every]
        whole = {loop.var: self._whole_blocks(loop, found.statement) for loop in copied}
        sides = {
            loop.var: (vectors if loop.var == row else whole[loop.var], _period(loop, found.statement))
            for loop in copied
        }
        size: tuple[int, int] | None = None
        # Copies along vectors are innermost: all of them use a broadcast while it is in its register.
        for loop in sorted(copied, key=lambda loop: (loop.var in along_vectors, loop.depth)):
            if size is None:
                (rows, row_period), (columns, column_period) = [*sides.values(), ALONE][:2]
                periods = row_period, column_period
                sizes = register_tiles(rows, columns, self.trials.target.registers, single, periods)
                size = self.trials.first("tile", sizes, text=_tile_text) or ALONE
            if not self._copy(loop, size[copied.index(loop)], _tile_text(size)):
                sides[loop.var], size = ALONE, None
        self._write_out(found.statement, lanes, sides)
        return bool(copied)

    def _whole_blocks(self, loop: LoopFacts, statement: Statement) -> int:
        """The iterations of a loop over blocks of which the last one is ragged, and then a loop of its own; of other
        loops, all."""
        blocks = any(loop.var in names_in(other.stop) for other in statement.loops)
        cuts = self.trials.borders(loop.var) if blocks and loop.trips > 2 else []
        why = "the ragged block is separate from the whole ones"
        return cuts[0] if len(cuts) == 1 and self.trials.apply(why, "split", loop.var, cuts) else loop.trips

    def _window_tile(self, lanes: LoopFacts, found: Contraction) -> bool:
        """Copies of two short loops over results that share the vectors that stay the same along them; whether there
        are any."""
        vectors = [a for a in found.operands if stride(a, lanes.var, found.statement, lanes.buffers) != 0]
        shared = [text for text in (access.text for access in vectors) if self._same_along(text, found, set())]
        chosen: list[str] = []
        for text in shared[:1] * 2:
            chosen += self._same_along(text, found, {lanes.var, *chosen})
        every = {loop.var: loop for loop in self.trials.loops()}
        copied = [every[var] for var in chosen if var in every]
        if not copied or prod(loop.trips for loop in copied) * 2 > self.trials.target.registers + 2:
            return False
        why = f"copies of {' and '.join(chosen)} share what they read of {shared[0]}"
        made = [self._copy(loop, loop.trips, why) for loop in sorted(copied, key=lambda loop: loop.depth)]
        return any(made)

    def _write_out(self, statement: Statement, lanes: LoopFacts, copied: Collection[str] = ()) -> None:
        """Short loops over the terms of a sum are written out, if they are innermost, move the lanes' borders, or
        choose among the copies of other loops: conditions and subscripts are then constants."""
        adds = [access for access in statement.accesses if access.kind == "add"]
        own = {name for access in adds for index in access.own for name in names_in(index)}
        guards = [names_in(parsed(guard)) for guard in statement.guards if adds]
        borders = {name for names in guards if lanes.var in names for name in names}
        choosing = {name for names in residues(statement) if adds and names.keys() & set(copied) for name in names}
        written = 1
        for loop in reversed(statement.loops):
            terms = loop.extent or 0
            if loop.var in (*own, lanes.var) or terms < 2 or terms * written > WRITTEN_OUT:
                continue
            if loop.var in borders:
                why = "it moves the borders of the lanes, which are then constants"
            elif loop.var in choosing:
                why = "each of its terms is for some of the copies"
            elif loop is statement.loops[-1] and own:
                why = "few terms, added to the same sums"
            else:
                continue
            if self.trials.apply(why, "unroll", loop.var, terms, unroll_type=1):
                written *= terms

    def _copy(self, loop: LoopFacts, count: int, why: str) -> bool:
        """Jammed copies of a loop; where borders clip its ends, those are loops of their own, and the others need no
        conditions. Whether there are any."""
        if count < 2:
            return False
        parts, rest = [loop.var], loop.trips % count or count
        clipped = any(loop.var in names_in(parsed(guard)) for s in loop.inside for guard in s.guards)
        if clipped and loop.trips >= 2 * count + rest and self.trials.borders(loop.var):
            before = set(self.trials.s.loops(self.trials.phase))
            why_cut = "conditions at the borders are for the ends alone"
            if self.trials.apply(why_cut, "split", loop.var, [count, loop.trips - rest]):
                parts += [name for name in self.trials.s.loops(self.trials.phase) if name not in before]
        copied = [self.trials.apply(why, "unroll_and_jam", part, count) for part in parts]
        return any(copied)

    def _same_along(self, text: str, found: Contraction, taken: set[str]) -> list[str]:
        """The loop over the results along which an operand stays the same: of the long ones the innermost; or none."""
        trips = {loop.var: loop.trips for loop in self.trials.loops()}
        access = next(access for access in found.operands if access.text == text)
        buffers = self.trials.program.buffers
        # Sums that have a register tile are not copied again with another one.
        tiled = [s for s in statements_of(self.trials.nests[0]) if _copies(s) > 1]
        taken = {*taken, *(loop.var for statement in tiled for loop in statement.loops)}
        same = [
            var
            for var in found.results
            if var not in taken and trips.get(var, 1) > 1 and stride(access, var, found.statement, buffers) == 0
        ]
        return [max(same, key=lambda var: (min(trips[var], LONG), found.results.index(var)))] if same else []


def _tile_text(size: tuple[int, int]) -> str:
    """What a register tile is, and why."""
    p, q = size
    return f"a register tile of {p} × {q} sums: {p * q} products for {p + q} loads"


def _copies(statement: Statement) -> int:
    """Copies of a sum that have elements of their own."""
    moving = {name for a in statement.accesses if a.kind == "add" for index in a.indices for name in names_in(index)}
    return prod(loop.extent or 1 for loop in statement.loops if loop.kind == "unrolled" and loop.var in moving)


def _period(loop: LoopFacts, statement: Statement) -> int:
    """Iterations of a loop after which the remainders in a statement's conditions are the same again."""
    periods = [each[loop.var] for each in residues(statement) if loop.var in each]
    return lcm(*(period // gcd(period, loop.loop.step) for period in periods))
