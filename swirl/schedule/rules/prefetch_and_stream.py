"""What is fetched before it is needed, and stored past the caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from swirl.analysis.loop_facts import NEAR, LoopFacts, Use, facts, stride
from swirl.analysis.statements import statements_of
from swirl.ir.trees import names_in
from swirl.schedule.rules.hardware import FAR, PAGE
from swirl.schedule.rules.trials import Trials

WRITTEN_AHEAD = 2
"""Iterations after which pieces of rows that are fetched are written: while one is computed, the next one comes from
memory."""
AHEAD = 4
"""Rows that are fetched ahead where lanes take some elements of each: memory answers after the few instructions of some
rows."""
PIECE_OF_A_ROW = 1024
"""Bytes of each row in an iteration, at the most, which are fetched an iteration ahead: along longer ones, processors
fetch ahead by themselves."""


def fetch_rows(trials: Trials) -> None:
    """Where an iteration passes more than once by short pieces of many rows that are pages apart, the pieces of the
    next one are fetched, if half of the level-2 cache holds them.

    rewrite:
        for x in range(0, 3136, 16):                    for x in range(0, 3136, 16):
            for c in range(64):                             for c in range(64):
                for l in vector(16):                            prefetch(a[c, x + 16])
                    s[x + l] += a[c, x + l]       →         for c in range(64):
            for c in range(64):                                 for l in vector(16):
                for l in vector(16):                                s[x + l] += a[c, x + l]
                    y[c, x + l] = a[c, x + l] / s[x + l]    …

    Hardware: processors fetch ahead along a row, and not beyond a page. A single pass needs none: its loads wait for
    nothing, so that many are under way at a time.
    """
    (nest,), buffers = trials.nests, trials.program.buffers
    read = {a.name for s in statements_of(nest) for a in s.accesses if a.kind != "write"}
    every, fetched = facts(nest, buffers), set[str]()
    for found in (loop for loop in reversed(every) if loop.trips > 1):
        rows = [loop for loop in every if found.contains(loop) and loop.loop.kind == "range"]
        pieces = Counter(use.access.name for use in found.uses if _is_piece(found, use, rows))
        if max(pieces.values(), default=0) < 2:
            continue
        for name in (name for name in pieces if name in read and name not in fetched):
            skipped = buffers[name].nbytes < FAR or not found.fits(name, trials.target.l2_bytes // 2)
            why = "pieces of rows that are pages apart"
            if not skipped and trials.apply(why, "prefetch", name, found.var, 1, 2):
                fetched.add(name)


def fetch_results(trials: Trials) -> None:
    """Where an iteration adds to, or writes, a piece of rows that are pages apart, and does not store it past the
    caches, the pieces of the iterations to come are fetched.

    rewrite:
        for k in range(512):                   for k in range(512):
            g[k, x] += a[k] * b[x]       →         prefetch(g[k + 2, x])
                                                   g[k, x] += a[k] * b[x]

    Hardware: to store a part of a line, the rest of it is needed, and a processor has few stores that wait for it.
    """
    every, read = facts(trials.nests[0], trials.program.buffers), _arrays_read(trials)
    found: dict[str, str] = {}
    for rows in (loop for loop in every if loop.loop.kind == "range" and loop.trips > WRITTEN_AHEAD):
        for use in rows.uses:
            far = use.access.name in read and rows.buffers[use.access.name].nbytes >= trials.target.l2_bytes // 2
            if far and use.access.kind != "read" and _writes_piece(rows, use):
                found[use.access.name] = rows.var  # the innermost one
    for name, var in found.items():
        trials.apply("pieces that are added to, of rows that are pages apart", "prefetch", name, var, WRITTEN_AHEAD, 2)


def _writes_piece(rows: LoopFacts, use: Use) -> bool:
    """Whether an iteration writes pieces of rows that are pages apart."""
    buffer = rows.buffers[use.access.name]
    distance = abs(use.stride or 0) * rows.loop.step * buffer.itemsize
    inside = use.statement.loops[use.statement.variables().index(rows.var) + 1 :]
    along = any(stride(use.access, loop.var, use.statement, rows.buffers) == 1 for loop in inside)
    return along and distance >= PAGE and rows.fits(use.access.name, distance // 2)


def fetch_strided(trials: Trials) -> None:
    """Where lanes take every second to fourth element of a row, the rows to come are fetched.

    rewrite:
        for y in range(56):                         for y in range(56):
            for x in vector(16):              →         prefetch(a[2 * (y + 4), 2 * x])
                b[y, x] = a[2 * y, 2 * x]               for x in vector(16):
                                                            b[y, x] = a[2 * y, 2 * x]

    Hardware: there is little to do for each line, and it takes many instructions: the window in which a processor looks
    for the next loads is full of them.
    """
    (nest,), buffers = trials.nests, trials.program.buffers
    every = facts(nest, buffers)
    found: dict[str, str] = {}
    for lanes in (loop for loop in every if loop.loop.kind == "vector"):
        for use in lanes.uses:
            far = use.access.kind == "read" and buffers[use.access.name].nbytes >= trials.target.l2_bytes
            if far and use.stride in range(2, NEAR + 1):
                rows = [row for row in every if row.contains(lanes) and _is_next_row(row, lanes, use)]
                if rows:
                    found.setdefault(use.access.name, rows[-1].var)
    for name, row in found.items():
        trials.apply("rows of which lanes take some elements", "prefetch", name, row, AHEAD, 1)


def _is_next_row(found: LoopFacts, lanes: LoopFacts, use: Use) -> bool:
    """Whether iterations of a loop around lanes are for other results, and read other rows for them."""
    if found.loop.kind != "range" or found.trips == 1:
        return False
    results = [a for s in lanes.inside for a in s.accesses if a.kind != "read" and a.name in found.buffers]
    own = [names_in(index) for index in use.access.own]
    return any(found.var in names and lanes.var not in names for names in own) and any(
        found.var in names_in(index) for access in results for index in access.own
    )


def _is_piece(found: LoopFacts, use: Use, rows: Sequence[LoopFacts]) -> bool:
    size = found.buffers[use.access.name].itemsize
    if not 0 < (use.stride or 0) * found.loop.step * size <= PIECE_OF_A_ROW:
        return False
    around = (row for row in rows if use.statement.path[: row.depth] == row.path)
    distances = (stride(use.access, row.var, use.statement, found.buffers) or 0 for row in around)
    return any(abs(each) * size >= PAGE for each in distances)


def store_far(trials: Trials) -> None:
    """Results larger than the caches, which nothing reads again here, are stored past them.

    rewrite:
        for x in vector(16):                      for x in vector(16):
            y[x] = 2.0 * a[x]               →         y[x] = 2.0 * a[x]        (streamed)

    Hardware: to store into a line that is in no cache, a processor reads it first; a streaming store of a whole line
    does not, and leaves the caches to what is read again.
    """
    program, read = trials.program, _arrays_read(trials)
    own = {a.name for s in statements_of(trials.nests[0]) for a in s.accesses if a.kind == "write"}
    for name in sorted(own - read):
        if name in program.buffers and program.buffers[name].nbytes >= FAR:
            trials.apply("larger than the caches, and not read again here", "stream", name)


def _arrays_read(trials: Trials) -> set[str]:
    """The arrays that the phase reads, or adds to; others are stored past the caches."""
    known = [access for nest in trials.program.nests for s in statements_of(nest) for access in s.accesses]
    return {access.name for access in known if access.kind != "write"}
