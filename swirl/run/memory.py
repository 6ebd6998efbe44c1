"""Memory for buffers: one arena on huge pages, touched once.

Fresh memory costs a page fault every 4 KB at its first use, more than the arithmetic of most layers. So all
buffers of a net come from one mapping, on 2 MB pages where the system has them.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from swirl.errors import LatteError
from swirl.run.runner import Runner

ALIGNMENT = 64  # bytes: a cache line, and an AVX-512 vector
HUGE_PAGE = 2 * 1024 * 1024


CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with the most bytes that this process and its neighbours in a container may have."""


def machine_bytes() -> int:
    """Bytes of memory that the machine has, or the container that this process is in."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in map(Path, CGROUP_LIMITS):
        try:
            text = limit.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            found = min(found, int(text))
    return found


class Arena:
    """A region of zeroed memory from which arrays are carved.

    The region lives as long as the arena or any array of it.

    Args:
        total_bytes: room for the arrays, each rounded up to 64 bytes.
        runner: whose threads touch the pages; without it, one thread does.
        touched: how many bytes from the beginning are touched now; all by default. Pages exist once they are touched.

    Raises:
        LatteError: there is not so much memory.
    """

    def __init__(self, total_bytes: int, runner: Runner | None = None, touched: int | None = None):
        self.total_bytes, self._runner = total_bytes, runner
        huge = total_bytes >= HUGE_PAGE
        # Room to begin at a huge page, wherever the mapping begins.
        size = total_bytes + HUGE_PAGE if huge else max(total_bytes, mmap.PAGESIZE)
        try:
            # Private: shared anonymous memory gets huge pages from another setting, which is mostly off.
            self._region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError) as error:
            raise LatteError(
                f"no memory for buffers of {total_bytes:,} bytes: {error}",
                way_out="a smaller batch needs less",
            ) from error
        start = np.frombuffer(self._region, dtype=np.uint8).ctypes.data
        self._first = self._next = -start % HUGE_PAGE if huge else 0
        self._address = start
        self._end = self._next + total_bytes
        self._touched = 0
        if huge and hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                length = size - self._next
                self._region.madvise(mmap.MADV_HUGEPAGE, self._next, length - length % mmap.PAGESIZE)
            except OSError:
                pass  # a kernel without huge pages: slower, not wrong
        self.touch(total_bytes if touched is None else touched)

    def touch(self, count: int) -> None:
        """Make the first ``count`` bytes exist, in parallel; those that exist stay as they are."""
        begin, size = self._first + self._touched, min(count, self.total_bytes) - self._touched
        if size <= 0:
            return
        if self._runner is not None:
            self._runner.touch(self._address + begin, size)
        else:
            np.frombuffer(self._region, dtype=np.uint8)[begin : begin + size : mmap.PAGESIZE] = 0
        self._touched += size

    @property
    def touched(self) -> int:
        """How many bytes from the beginning exist."""
        return self._touched

    def at(self, offset: int, shape: Sequence[int], dtype: npt.DTypeLike = np.float32) -> np.ndarray:
        """An array at a place of the arena, counted in bytes from its beginning; others may be there too."""
        return np.ndarray(tuple(shape), dtype, buffer=self._region, offset=self._first + offset)

    def array(self, shape: Sequence[int], dtype: npt.DTypeLike = np.float32) -> np.ndarray:
        """The next array: zeroed, in C order, aligned to 64 bytes.

        Raises:
            LatteError: the arena is full.
        """
        offset = self._next
        used = _rounded(shape, dtype)
        if offset + used > self._end:
            raise LatteError(f"the arena of {self.total_bytes:,} bytes has no room for an array of {used:,} bytes")
        self._next = offset + used
        return np.ndarray(tuple(shape), dtype, buffer=self._region, offset=offset)


def allocate(
    specs: Mapping[str, tuple[Sequence[int], npt.DTypeLike]], runner: Runner | None = None
) -> dict[str, np.ndarray]:
    """Zeroed arrays in one arena, each aligned to 64 bytes, in the order of `specs`.

    Args:
        specs: name to (shape, type of element).
        runner: whose threads touch the memory first; without it, one thread does.

    Raises:
        LatteError: there is not so much memory.
    """
    arena = Arena(sum(_rounded(shape, dtype) for shape, dtype in specs.values()), runner)
    return {name: arena.array(shape, dtype) for name, (shape, dtype) in specs.items()}


def _rounded(shape: Sequence[int], dtype: npt.DTypeLike) -> int:
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return -(-size // ALIGNMENT) * ALIGNMENT
