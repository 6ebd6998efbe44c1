"""Facts about processors, and limits that follow from them, which several rules share. Registers, vector width and
cache sizes are those of the target."""

from __future__ import annotations

from math import gcd

from swirl.target.targets import Target

CHUNKS = 16
"""Iterations of the parallel loops that are enough for the threads, however many they are: results do not depend on
their number, and neither does the code."""
WORTH_SHARING = 2**14
"""Statements that run from which on threads share a loop: to begin and end one costs as much as thousands of them."""
WAY = 4096
"""Bytes of a way of a level-1 cache: lines so far apart share one place, which has room for as many as there are ways
(8 or 12)."""
PAGE = 4096
"""Bytes from one row to the next from which on processors do not fetch it by themselves: a page of memory."""
PAGES = 64
"""Pages whose addresses a processor has at hand, at the least: entries of its first translation buffer."""
FAR = 2**24
"""Bytes of an array from which on the caches do not have it when the next layer reads it: a core's share of the last
level is less, on most machines."""
COPIED = 2**16
"""Bytes of a copy that stays near, also beside what passes by: a small part of the smallest level-2 caches (256 KB)."""
LONG_SUM = 16
"""Vectors of terms from which on adding up the lanes of a sum takes little of its time: halves are added to halves in
three or four steps, that wait for each other for as many cycles each."""
READ_OFTEN = 32
"""Reads of each element that make up for copying it: a copy moves elements one by one where its order is another one,
and a read of it has a vector at once."""
READ_MANY_TIMES = 256
"""The same where the copy does not stay in the level-1 cache, or each thread has one of its own: it comes from a
level-2 cache, or memory, at an eighth of the rate."""


def collide(rows: int, distance: int, target: Target) -> bool:
    """Whether rows take each other's place in the level-1 cache: so many, each ``distance`` bytes after the last one.
    In it, they take as much room as if all that two rows' places have in common was theirs."""
    return distance != 0 and rows * gcd(distance, WAY) > target.l1_bytes
