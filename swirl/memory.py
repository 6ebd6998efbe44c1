"""Memory for buffers: one arena on huge pages, touched once.

Fresh memory costs a page fault every 4 KB at its first use, more than the arithmetic of most layers. So all
buffers of a net come from one mapping, on 2 MB pages where the system has them.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from swirl.errors import LatteError
from swirl.runner import Runner

ALIGNMENT = 64  # bytes: a cache line, and an AVX-512 vector
HUGE_PAGE = 2 * 1024 * 1024


class Arena:
    """A region of zeroed memory from which arrays are carved.

    The region lives as long as the arena or any array of it.

    Args:
        total_bytes: room for the arrays, each rounded up to 64 bytes.
        runner: whose threads touch the pages; without it, one thread does.

    Raises:
        LatteError: there is not so much memory.
    """

    def __init__(self, total_bytes: int, runner: Runner | None = None):
        self.total_bytes = total_bytes
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
        self._next = -start % HUGE_PAGE if huge else 0
        self._end = self._next + total_bytes
        if huge and hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                length = size - self._next
                self._region.madvise(mmap.MADV_HUGEPAGE, self._next, length - length % mmap.PAGESIZE)
            except OSError:
                pass  # a kernel without huge pages: slower, not wrong
        if runner is not None:
            runner.touch(start + self._next, total_bytes)
        else:
            np.frombuffer(self._region, dtype=np.uint8)[self._next : self._end : mmap.PAGESIZE] = 0

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
