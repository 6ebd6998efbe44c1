"""What is fetched before it is needed, and stored past the caches."""

from __future__ import annotations

from collections.abc import Sequence

from latte.planning.defaults.trials import Trials
from swirl.ir.buffers import DTYPES
from swirl.ir.statements import statements_of
from swirl.loop_facts import LoopFacts, Use, facts, stride

FAR = 2**24
"""Bytes of an array from which on the caches do not have it when the next layer reads it."""
PAGE = 4096
"""Bytes from one row to the next from which on processors do not fetch it by themselves."""
PIECE_OF_A_ROW = 1024
"""Bytes of each row in an iteration, at the most, which are fetched an iteration ahead: longer ones are rows."""


def fetch_rows(trials: Trials) -> None:
    """Where an iteration reads a short piece of each of many rows that are pages apart, the pieces of the next one are
    fetched: processors fetch ahead along a row."""
    (nest,), buffers = trials.nests, trials.program.buffers
    read = {a.name for s in statements_of(nest) for a in s.accesses if a.kind != "write"}
    every = facts(nest, buffers)
    for found in every:
        rows = [loop for loop in every if found.contains(loop) and loop.loop.kind == "range"]
        pieces = dict.fromkeys(use.access.name for use in found.uses if _is_piece(found, use, rows))
        for name in pieces:
            if name in read and buffers[name].nbytes >= FAR:
                trials.apply("pieces of rows that are pages apart", "prefetch", name, found.var, 1, 2)


def _is_piece(found: LoopFacts, use: Use, rows: Sequence[LoopFacts]) -> bool:
    size = DTYPES[found.buffers[use.access.name].dtype]().itemsize
    if use.stride != 1 or found.loop.step * size > PIECE_OF_A_ROW:
        return False
    around = (row for row in rows if use.statement.path[: row.depth] == row.path)
    apart = (stride(use.access, row.var, use.statement, found.buffers) or 0 for row in around)
    return any(abs(each) * size >= PAGE for each in apart)


def store_far(trials: Trials) -> None:
    """Results larger than the caches, which nothing reads again here, are stored past them."""
    program = trials.program
    known = [access for nest in program.nests for s in statements_of(nest) for access in s.accesses]
    read = {access.name for access in known if access.kind != "write"}
    own = {a.name for s in statements_of(trials.nests[0]) for a in s.accesses if a.kind == "write"}
    for name in sorted(own - read):
        if name in program.buffers and program.buffers[name].nbytes >= FAR:
            trials.apply("larger than the caches, and not read again here", "stream", name)
