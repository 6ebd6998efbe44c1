"""Threads: they share the outermost loops whose iterations are independent, or get sums of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from math import prod

from swirl.analysis.accesses import Access
from swirl.analysis.dependences import NotProved
from swirl.analysis.loop_facts import LoopFacts, contractions, moves, perfect_chain
from swirl.ir.nest import Loop
from swirl.schedule.rules.blocking import in_blocks
from swirl.schedule.rules.hardware import CHUNKS, WORTH_SHARING
from swirl.schedule.rules.trials import Step, Trials, step

PIECE = 256
"""Vectors of a piece of a long row that a thread gets: 16 KB with AVX-512, four pages, along which processors fetch
ahead; few enough that a row of a level-2 cache's size has some for each thread."""
LITTLE = 4
"""Bytes that are read, beside those of private copies, from which on the copies cost little: each of these is set to
zero, added to, and read again in the end."""
SEVERAL = 8
"""Bytes that only one thread reads, beside those that all of them read, from which on these cost little."""
MOVED = 2
"""Loops that are tried as the outermost one: the longest."""


def add_up_in_parts(trials: Trials) -> None:
    """Where all iterations of an outermost loop add to the same elements, parts of them get elements of their own,
    which threads share later.

    rewrite:
        for n in range(64):                        for n in range(64):
            for x in range(4096):                      s_private[n] = 0.0
                s += a[n, x]                   →       for x in range(4096):
                                                           s_private[n] += a[n, x]
                                                   for n_copy in range(64):
                                                       s += s_private[n_copy]

    Hardware: cores that add to one element would hand its cache line to each other for every term.
    """
    for found in trials.loops():
        if found.depth > 1 or found.trips < 2 or found.work < WORTH_SHARING or not found.sums:
            continue
        if not _pass_by(trials, found) and _shared(replace(trials.scratch(), choices=None), found, 1):
            continue
        why = f"parts of {found.var} add up for themselves"
        private = [step(why, "privatize", name, found.var) for name in found.sums]
        if private and trials.scratch().together([*private, step("", "parallelize", found.var)]):
            trials.together(private)


def _pass_by(trials: Trials, found: LoopFacts) -> bool:
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
    shared = [f for f in trials.loops() if found.contains(f) and f.var in products[0].results and f.trips >= CHUNKS]
    return not any(_mostly_moves(found, operands.values(), each.var) for each in shared)


def share(trials: Trials) -> None:
    """Threads share the outermost loops whose iterations are independent: of those that run enough statements.

    rewrite:
        for n in range(64):                        for n in parallel(64):
            for c in range(128):               →       for c in range(128):
                y[n, c] = 2.0 * a[n, c]                    y[n, c] = 2.0 * a[n, c]

    Hardware: each core has vector units and caches of its own; a loop that is shared begins and ends with a barrier, so
    the outermost one is shared, where it has iterations for all threads.
    """
    now = sum(found.work for found in trials.loops() if found.depth == 1)
    lanes = max(1, trials.work // max(1, now))
    for found in trials.loops():
        if found.depth == 1 and found.work * lanes >= WORTH_SHARING and not _shared(trials, found, lanes):
            inside = [found, *filter(found.contains, trials.loops())]
            plain = [other for other in inside if other.loop.kind == "range"]
            if plain:
                trials.note_refusal("parallelize", max(plain, key=lambda other: other.trips).var)


def _shared(trials: Trials, found: LoopFacts, lanes: int) -> bool:
    """Whether the threads share a loop, or loops inside of it.

    Args:
        lanes: statements that one of the nest stands for, since its loops became lanes.
    """
    chain = list(takewhile(lambda loop: loop.kind == "range", perfect_chain(found.nest, found.path)))
    if trials.first("threads", _ways_to_share(trials, found, chain, lanes), trials.together, _text) is not None:
        return True
    depth = found.depth + len(chain)
    return sum(_shared(trials, f, lanes) for f in _working(trials, found, lanes) if f.depth == depth) > 0  # all of them


def _working(trials: Trials, found: LoopFacts, lanes: int) -> list[LoopFacts]:
    """The loops inside of one that run enough statements for threads."""
    return [f for f in trials.loops() if found.contains(f) and f.work * lanes >= WORTH_SHARING]


def _ways_to_share(trials: Trials, found: LoopFacts, chain: Sequence[Loop], lanes: int) -> Iterator[list[Step]]:
    """The commands by which threads may share the iterations of directly nested loops, or of some of them: the
    outermost ones, and pieces of the last of these; a long one that becomes the outermost; then inner ones."""
    for names in _outermost(chain):
        yield from _in_outer_pieces(found, chain[: len(names)])
        yield [_parallel(chain, names)]
    for loop in sorted(_may_move(trials, chain), key=lambda loop: -(loop.extent or 0))[:MOVED]:
        if (loop.extent or 2) > 1:
            order = [loop.var, *(other.var for other in chain if other is not loop)]
            yield [
                step(f"{loop.var} is outermost for the threads", "reorder", order),
                step(f"{loop.extent} independent iterations", "parallelize", loop.var),
            ]
    every, depth = _working(trials, found, lanes), found.depth + len(chain)
    inner = {f.var for f in every if f.depth < depth and f.trips > 1}
    for start, loop in enumerate(chain):
        if start and loop.var in inner:
            for names in _outermost(chain[start:]):
                yield [_parallel(chain[start:], names)]


def _text(steps: Sequence[Step]) -> str:
    return ", ".join(map(str, steps))


def _in_outer_pieces(found: LoopFacts, shared: Sequence[Loop]) -> Iterator[list[Step]]:
    """What lets threads share outer loops and pieces of the last of them: of several loops, as each iteration finds
    its place in all of them anew, which costs more than a few vectors do."""
    *outer, last = shared
    if not outer or not last.extent or any(loop.extent is None for loop in outer):
        return  # a border may leave nothing of the last one
    around = prod(loop.extent or 1 for loop in outer)
    each = max(1, found.work // (around * last.extent))
    most = min(PIECE // each, last.extent // -(-CHUNKS // around))
    if most >= 2:
        yield in_pieces([loop.var for loop in outer], last.var, last.extent, _piece(last.extent, most))


def _may_move(trials: Trials, chain: Sequence[Loop]) -> Sequence[Loop]:
    """The loops that may become the outermost of a chain: none if others of these names are shared already, or if
    the order was chosen for the caches."""
    shared = {found.var for found in trials.loops() if found.loop.kind == "parallel"}
    (nest,), buffers = trials.nests, trials.program.buffers
    fixed = shared & {loop.var for loop in chain} or any(map(in_blocks, contractions(nest, buffers)))
    return () if fixed else chain[1:]


def _parallel(chain: Sequence[Loop], names: Sequence[str]) -> Step:
    """What lets threads share the outermost loops of a chain, ``names``."""
    return step(
        f"{_count(chain, names)} independent iterations", "parallelize", names[0] if len(names) == 1 else list(names)
    )


def _mostly_moves(found: LoopFacts, operands: Iterable[Access], var: str) -> bool:
    """Whether most of what one iteration reads moves with a loop inside; False where that is not proved."""
    read = dict.fromkeys((False, True), 0)
    try:
        for access in operands:
            read[moves(access, var)] += found.touched(access.name)
    except NotProved:
        return False
    return read[False] * SEVERAL <= read[True]


def _outermost(chain: Sequence[Loop]) -> Iterator[list[str]]:
    """The outermost loops: as many as give the threads enough to do, then fewer."""
    count, total = 0, 1
    while count < len(chain) and total < CHUNKS:
        total *= chain[count].extent or 1
        count += 1
    for taken in range(count, 0, -1):
        if any(loop.extent != 1 for loop in chain[:taken]):
            yield [loop.var for loop in chain[:taken]]


def in_pieces(outer: Sequence[str], var: str, trips: int, size: int) -> list[Step]:
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
