"""The default schedule of one nest: lanes, register tiles, threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, takewhile
from math import prod

from swirl.analysis.accesses import Access, parsed
from swirl.analysis.dependences import NotProved
from swirl.analysis.loop_facts import NEAR, LoopFacts, contractions, moves, perfect_chain, stride
from swirl.analysis.statements import statements_of
from swirl.ir.nest import Loop, names_in
from swirl.ir.types import has_doubles
from swirl.schedule.rules.blocking import blocking, in_blocks
from swirl.schedule.rules.copies import WRITTEN_OUT, Copies
from swirl.schedule.rules.nesting import outside
from swirl.schedule.rules.packing import pack
from swirl.schedule.rules.panels import pack_panels
from swirl.schedule.rules.prefetch_and_stream import fetch_results, fetch_rows, fetch_strided, store_far
from swirl.schedule.rules.product import CHUNKS
from swirl.schedule.rules.register_transpose import transposing_steps
from swirl.schedule.rules.trials import Step, Trials, step
from swirl.transforms.rewrites.sums.argmax_lanes import finds_winners

WORTH_SHARING = 2**14
"""Statements that run from which on threads share a loop."""
PIECE = 256
"""Vectors of a piece of a long row that a thread gets."""
SPARSE = 4
"""A vector's lanes beside those of it that are used, from which on loading them one by one does not pay."""
LITTLE = 4
"""Bytes that are read, beside those of private copies, from which on the copies cost little."""
SEVERAL = 8
"""Bytes that only one thread reads, beside those that all of them read, from which on these cost little."""
MOVED = 2
"""Loops that are tried as the outermost one: the longest."""
COMPARED = 10
"""Iterations of a maximum whose place is kept that take as long as comparing lanes does."""


class NestSchedule:
    """Writes the commands of one nest.

    Args:
        trials: of the nest.
    """

    def __init__(self, trials: Trials):
        self.trials, self.width = trials, trials.target.simd_width
        self.copies = Copies(trials)

    def loops(self) -> list[LoopFacts]:
        """The loops of the nest as they are now, outer before inner."""
        return self.copies.loops()

    def write(self) -> None:
        """Apply the commands."""
        work = sum(found.work for found in self.loops() if found.depth == 1)
        lanes = self.may_be_vectors()
        if not (lanes and self.row(work)):
            self.add_up_in_parts()
            if lanes:
                pack_panels(self.trials)
            self.sum_inside()
            self.keep_sums()
            if lanes:
                pack(self.trials)
                self.vectorize()
            self.share(work)
            fetch_rows(self.trials)
            fetch_results(self.trials)
            fetch_strided(self.trials)
        store_far(self.trials)

    def may_be_vectors(self) -> bool:
        """Whether the target has vectors of every type in the nest: intrinsics are of single precision."""
        (nest,), buffers = self.trials.nests, self.trials.program.buffers
        return not (has_doubles(nest, buffers) and self.trials.target.isa_flags)

    # --- one long row ---------------------------------------------------------------------------------------
    def row(self, work: int) -> bool:
        """A nest that is one long loop of independent iterations, or a few such rows: threads share their pieces, lanes
        run along each."""
        loops = self.loops()
        if work < WORTH_SHARING or any(loop.repeats for loop in loops):
            return False
        *around, row = loops
        if not self._rows(around, row):
            return False
        rows = prod(loop.trips for loop in around)
        size = min(PIECE, -(-row.trips // (-(-CHUNKS // rows) * self.width))) * self.width
        pieces = _in_pieces([loop.var for loop in around], row.var, row.trips, size)
        return self.trials.together([*pieces, step(*_lanes(row, f"{row.var}_inner", self.width))])

    def _rows(self, around: Sequence[LoopFacts], row: LoopFacts) -> bool:
        """Whether loops are around a row alone, which are fewer than the threads want, and lanes along it suit all."""
        nested = len(perfect_chain(self.trials.nests[0])) == len(around) + 1
        few = prod(loop.trips for loop in around) < CHUNKS
        return not around or (nested and few and row.contiguous == row.weight)

    # --- lanes ----------------------------------------------------------------------------------------------
    def vectorize(self) -> None:
        """Of each innermost loop and those around it, the one along which most data are contiguous becomes lanes."""
        refused: set[str] = set()
        while (leaf := self._scalar_leaf(refused)) is not None:
            around = [f for f in self.loops() if f.contains(leaf) or f.path == leaf.path]
            candidates = sorted(filter(self._may_be_lanes, around), key=self._rank)
            if candidates and _scatters(candidates[0]) and any(map(self._transpose_in_registers, around)):
                continue
            if not any(self._become_lanes(found) or self._nest(found) for found in candidates):
                refused.add(leaf.var)
                self.trials.note_refusal("vectorize", (candidates[0] if candidates else leaf).var, self.width)

    def sum_inside(self) -> None:
        """Short loops that add to the same element are inside of those that move from element to element, where that
        one is kept in a local."""
        (nest,), buffers = self.trials.nests, self.trials.program.buffers
        chosen = [found.statement for found in contractions(nest, buffers) if in_blocks(found)]
        adding = [s for s in statements_of(nest) if s.guards and s not in chosen]
        for statement in adding:
            moving = {n for a in statement.accesses if a.kind == "add" for index in a.own for n in names_in(index)}
            for short, run in groupby(statement.loops, lambda loop: 2 <= (loop.extent or 0) <= WRITTEN_OUT):
                names = [loop.var for loop in run]
                order = sorted(names, key=lambda name: name not in moving)
                if short and moving and order != names:
                    self.trials.apply("terms of the same sums are inside", "reorder", order)

    def keep_sums(self) -> None:
        """Sums under conditions on the loops are kept in locals: lanes that a border leaves out need not store."""
        adding = [s for s in statements_of(self.trials.nests[0]) if s.guards]
        names = dict.fromkeys(a.name for s in adding for a in s.accesses if a.kind == "add")
        for name in names:
            if name in self.trials.program.buffers:
                self.trials.apply("sums stay in registers, whatever the borders leave out", "scalar_replace", name)

    def _become_lanes(self, found: LoopFacts) -> bool:
        if self._inside_of_borders(found) or self._transpose_in_registers(found):
            return True
        lanes = step(*_lanes(found, found.var, self.width), **({"strided": "gather"} if found.non_contiguous else {}))
        order = self._inside(found)
        reordering = [step(f"{found.var} is innermost but for sums", "reorder", order)] if order else []
        if reordering and not self._keeps_blocking(reordering):
            reordering = []
        if not (reordering and self.trials.together([*reordering, lanes])) and not self.trials.together([lanes]):
            return False
        self.copies.make(found, found.var, -(-found.trips // self.width))
        return True

    def _nest(self, found: LoopFacts) -> bool:
        """Whether loops inside of one, which may become lanes then, have gone outside."""
        steps, var = outside(found, self.loops())
        if not steps or not self.trials.scratch().together([*steps, step(*_lanes(found, var, self.width))]):
            return False
        self.trials.together(steps)
        self.trials.give_own_names({var})
        return True

    def _transpose_in_registers(self, found: LoopFacts) -> bool:
        """Whether a loop has become lanes that are rows apart, which are loaded whole and turned in registers."""
        if not found.gathered or _scatters(found):
            return False
        steps = transposing_steps(found, {loop.var: loop for loop in self.loops()}, self.trials.target)
        return bool(steps) and self.trials.together(steps)

    def _inside_of_borders(self, found: LoopFacts) -> bool:
        """Whether a loop that borders clip has become lanes, with the clipped vectors apart from the others: not where
        masks cost nothing."""
        clipped = any(found.var in names_in(parsed(guard)) for s in found.inside for guard in s.guards)
        if self.trials.target.has_masks or not clipped or found.trips < 3 * self.width:
            return False
        why, trial, outer = "only vectors at the borders need masks", self.trials.scratch(), f"{found.var}_outer"
        steps = [step(why, "tile_loop", found.var, self.width)]
        if not trial.together(steps) or not (cuts := trial.borders(outer)):
            return False
        steps.append(step(why, "split", outer, cuts))
        if not trial.together(steps[1:]):
            return False
        every = NestSchedule(trial).loops()
        pieces = [(f, g) for g in every if g.var == f"{found.var}_inner" for f in every if f.contains(g)]
        pieces = [(f, g) for f, g in pieces if f.depth == found.depth == g.depth - 1]
        if not pieces:
            return False
        middle, lanes = max(pieces, key=lambda pair: pair[0].trips)
        if not self.trials.together([*steps, step(*_lanes(lanes, lanes.var, self.width))]):
            return False
        self.copies.make(lanes, middle.var, middle.trips, len(pieces) - 1)
        return True

    def _keeps_blocking(self, steps: list[Step]) -> bool:
        """Whether operands of products are where they were chosen to be, after these steps as well."""
        if any(map(in_blocks, contractions(self.trials.nests[0], self.trials.program.buffers))):
            return False
        trial = self.trials.scratch()
        after = contractions(trial.nests[0], trial.program.buffers) if trial.together(steps) else []
        return all(blocking(trial, found) is None for found in after)

    def _scalar_leaf(self, refused: set[str]) -> LoopFacts | None:
        """An innermost loop that is not in lanes, whatever copies and loops of one iteration are inside of it; short
        ones last, so that the lanes around them are chosen for what most of the work is."""
        every = [f for f in self.loops() if f.loop.kind != "unrolled" and (f.loop.kind != "range" or f.trips > 1)]
        plain = [found for found in every if found.loop.kind == "range"]
        leaves = (f for f in plain if f.var not in refused and not any(map(f.contains, every)))
        return min(leaves, key=self._short, default=None)

    def _short(self, found: LoopFacts) -> bool:
        """Whether a loop does not fill half of a vector."""
        return found.trips * 2 <= self.width

    def _may_be_lanes(self, found: LoopFacts) -> bool:
        if found.loop.kind != "range" or found.trips == 1:
            return False
        gathers_few = found.gathered > 0 and found.trips * SPARSE <= self.width
        pays = found.contiguous + found.strided > 0 and found.gathered * 2 <= found.weight and not gathers_few
        if found.trips < COMPARED and finds_winners(found.nest, found.path):
            return False
        return pays and not any(found.contains(other) and other.loop.kind == "vector" for other in self.loops())

    def _rank(self, found: LoopFacts) -> tuple[bool, float, bool, int, float, int, int, int]:
        """Least for the best lanes: long, with few gathers, without sums, along the most bytes, with gathers, not
        scatters; innermost. Of short loops, before what a few loads of vectors have, the one that fills the most of a
        vector."""
        short = self._short(found)
        left = (self.width // found.trips).bit_length() if short else 0
        non_contiguous, gathered = (round(part / found.weight, 1) for part in (found.non_contiguous, found.gathered))
        scatters = sum(use.weight for use in found.uses if use.access.kind == "write" and use.stride not in (0, 1))
        first = gathered if short else non_contiguous
        return short, first, found.repeats, left, non_contiguous, -found.contiguous, scatters, -found.depth

    def _inside(self, lanes: LoopFacts) -> list[str]:
        """The order of loops in which those directly inside of the lanes that sum nothing are outside of them; empty if
        there is nothing to move."""
        chain = perfect_chain(lanes.nest, lanes.path)
        inside = [f for f in self.loops() if lanes.contains(f)]
        outside = [f.var for f in inside if not f.repeats]
        if not outside or len(chain) != len(inside) + 1:
            return []
        return [*outside, lanes.var, *(f.var for f in inside if f.repeats)]

    # --- threads --------------------------------------------------------------------------------------------
    def add_up_in_parts(self) -> None:
        """Where all iterations add to the same elements, parts of them get elements of their own, which threads share
        later."""
        for found in self.loops():
            if found.depth > 1 or found.trips < 2 or found.work < WORTH_SHARING or not found.sums:
                continue
            if not self._pass_by(found) and NestSchedule(self.trials.scratch())._shared(found, 1):
                continue
            why = f"parts of {found.var} add up for themselves"
            private = [step(why, "privatize", name, found.var) for name in found.sums]
            if private and self.trials.scratch().together([*private, step("", "parallelize", found.var)]):
                self.trials.together(private)

    def _pass_by(self, found: LoopFacts) -> bool:
        """Whether terms of a product pass by along an outermost loop, that threads may share: what they add to is
        little, beside what they read. Otherwise they would wait for each other after each part of the terms; and that
        is not long, where the threads share results whose terms are their own, but for little."""
        products = [one for one in contractions(found.nest, found.buffers) if found.var in one.sums and in_blocks(one)]
        if len(products) != 1 or found.trips < CHUNKS:
            return False
        operands = {a.name: a for a in products[0].operands if a.name in found.buffers}
        read = sum(found.buffers[name].nbytes for name in operands)
        if found.trips * sum(found.buffers[name].nbytes for name in found.sums) * LITTLE > read:
            return False
        shared = [f for f in self.loops() if found.contains(f) and f.var in products[0].results and f.trips >= CHUNKS]
        return not any(_mostly_moves(found, operands.values(), each.var) for each in shared)

    def share(self, work: int) -> None:
        """Threads share the outermost loops whose iterations are independent.

        Args:
            work: of the nest: statements that run, before they were made lanes.
        """
        now = sum(found.work for found in self.loops() if found.depth == 1)
        lanes = max(1, work // max(1, now))
        for found in self.loops():
            if found.depth == 1 and found.work * lanes >= WORTH_SHARING and not self._shared(found, lanes):
                inside = [found, *filter(found.contains, self.loops())]
                plain = [other for other in inside if other.loop.kind == "range"]
                if plain:
                    self.trials.note_refusal("parallelize", max(plain, key=lambda other: other.trips).var)

    def _shared(self, found: LoopFacts, lanes: int) -> bool:
        """Whether the threads share a loop, or loops inside of it."""
        chain = list(takewhile(lambda loop: loop.kind == "range", perfect_chain(found.nest, found.path)))
        for names in _outermost(chain):
            if self._shared_in_pieces(found, chain[: len(names)]) or self._parallel(chain, names):
                return True
        for loop in sorted(self._may_move(chain), key=lambda loop: -(loop.extent or 0))[:MOVED]:
            if (loop.extent or 2) > 1:
                first = step(
                    f"{loop.var} is outermost for the threads", "reorder", [loop.var, *_other_vars(chain, loop)]
                )
                shared = step(f"{loop.extent} independent iterations", "parallelize", loop.var)
                if self.trials.together([first, shared]):
                    return True
        every = [f for f in self.loops() if found.contains(f) and f.work * lanes >= WORTH_SHARING]
        depth = found.depth + len(chain) - 1
        inner = {f.var for f in every if f.depth <= depth and f.trips > 1}
        tails = (chain[start:] for start, loop in enumerate(chain) if loop.var in inner)
        if any(self._parallel(tail, names) for tail in tails for names in _outermost(tail)):
            return True
        return sum(self._shared(f, lanes) for f in every if f.depth == depth + 1) > 0  # all of them

    def _shared_in_pieces(self, found: LoopFacts, shared: Sequence[Loop]) -> bool:
        """Whether threads share outer loops and pieces of the last of them: of several loops, as each iteration finds
        its place in all of them anew, which costs more than a few vectors do."""
        *outer, last = shared
        if not outer or not last.extent or any(loop.extent is None for loop in outer):
            return False  # a border may leave nothing of the last one
        around = prod(loop.extent or 1 for loop in outer)
        each = max(1, found.work // (around * last.extent))
        most = min(PIECE // each, last.extent // -(-CHUNKS // around))
        if most < 2:
            return False
        size = _piece(last.extent, most)
        return self.trials.together(_in_pieces([loop.var for loop in outer], last.var, last.extent, size))

    def _may_move(self, chain: Sequence[Loop]) -> Sequence[Loop]:
        """The loops that may become the outermost of a chain: none if others of these names are shared already, or if
        the order was chosen for the caches."""
        shared = {found.var for found in self.loops() if found.loop.kind == "parallel"}
        (nest,), buffers = self.trials.nests, self.trials.program.buffers
        fixed = shared & {loop.var for loop in chain} or any(map(in_blocks, contractions(nest, buffers)))
        return () if fixed else chain[1:]

    def _parallel(self, chain: Sequence[Loop], names: Sequence[str]) -> bool:
        """Whether threads share the outermost loops of a chain, ``names``."""
        why = f"{_count(chain, names)} independent iterations"
        return self.trials.apply(why, "parallelize", names[0] if len(names) == 1 else list(names))


def _scatters(found: LoopFacts) -> bool:
    """Whether neighbouring iterations write elements that are far apart, also of local arrays."""
    written = ((a, s) for s in found.inside for a in s.accesses if a.kind != "read" and a.own)
    distances = (stride(access, found.var, statement, found.buffers) for access, statement in written)
    return any(each is None or each > NEAR for each in distances)


def _mostly_moves(found: LoopFacts, operands: Iterable[Access], var: str) -> bool:
    """Whether most of what one iteration reads moves with a loop inside; False where that is not proved."""
    read = dict.fromkeys((False, True), 0)
    try:
        for access in operands:
            read[moves(access, var)] += found.touched(access.name)
    except NotProved:
        return False
    return read[False] * SEVERAL <= read[True]


def _lanes(found: LoopFacts, var: str, width: int) -> tuple[str, str, str, int]:
    """The reason, the command and its arguments that make a loop lanes."""
    gathered = f", {found.non_contiguous / found.weight:.0%} gathered" if found.non_contiguous else ""
    return (
        f"along {var} {found.contiguous / found.weight:.0%} of the accesses are contiguous{gathered}",
        "vectorize",
        var,
        width,
    )


def _outermost(chain: Sequence[Loop]) -> Iterator[list[str]]:
    """The outermost loops: as many as give the threads enough to do, then fewer."""
    count, total = 0, 1
    while count < len(chain) and total < CHUNKS:
        total *= chain[count].extent or 1
        count += 1
    for taken in range(count, 0, -1):
        if any(loop.extent != 1 for loop in chain[:taken]):
            yield [loop.var for loop in chain[:taken]]


def _in_pieces(outer: Sequence[str], var: str, trips: int, size: int) -> list[Step]:
    """What lets threads share outer loops, if there are any, and pieces of the one inside."""
    return [
        step(f"{-(-trips // size)} pieces for the threads", "tile_loop", var, size),
        step("independent pieces", "parallelize", [*outer, f"{var}_outer"] if outer else f"{var}_outer"),
    ]


def _piece(extent: int, most: int) -> int:
    """Iterations of a piece: at the most so many, and fewer, down to half, if that leaves no rest."""
    return next((size for size in range(most, (most - 1) // 2, -1) if extent % size == 0), most)


def _count(chain: Sequence[Loop], names: Sequence[str]) -> str:
    """Iterations of the outermost loops of a chain, where that is a number."""
    count = 1
    for loop in chain[: len(names)]:
        if loop.extent is None:
            return "many"
        count *= loop.extent
    return str(count)


def _other_vars(chain: Sequence[Loop], loop: Loop) -> list[str]:
    return [other.var for other in chain if other is not loop]
