"""Made-up contents of buffers, for tools that time or compare kernels by themselves."""

from __future__ import annotations

from zlib import crc32

import numpy as np

from swirl.ir.buffers import DTYPES, Buffer
from swirl.ir.types import is_float


def synthetic_array(buffer: Buffer, values: int | str | None, whole_numbers: bool = False) -> np.ndarray:
    """An array of a buffer's shape, always the same for a buffer of that name.

    Args:
        buffer: its name, shape and type.
        values: what they must be, see :func:`swirl.dump.write.contents`.
        whole_numbers: small ones in place of fractions: sums are exact in whatever order.
    """
    generator = np.random.default_rng(crc32(buffer.name.encode()))
    if isinstance(values, int) or not is_float(buffer.dtype):
        below = values if isinstance(values, int) else 2
        return generator.integers(0, below, buffer.shape).astype(DTYPES[buffer.dtype])
    if whole_numbers:
        return generator.integers(-2, 3, buffer.shape).astype(DTYPES[buffer.dtype])
    made = generator.standard_normal(buffer.shape, np.float32)
    return (np.abs(made) + 0.5 if values == "positive" else made).astype(DTYPES[buffer.dtype])
