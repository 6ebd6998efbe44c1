"""Made-up contents of buffers, for tools that time or compare what no data set feeds."""

from __future__ import annotations

from zlib import crc32

import numpy as np

from latte.net import Net
from swirl.dump.write import contents
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


def synthetic_batch(net: Net) -> list[np.ndarray]:
    """A whole batch for the data layers of a compiled net: whole numbers in range where its layers use them as such."""
    executable = net.session.use(net.batch_size)
    needed: dict[str, int | str] = {}
    for item in executable.compiled:
        program = item.stages[0].program
        for name, values in contents(program).items():
            storage = program.buffers[name].name
            known = needed.get(storage)
            if isinstance(values, int):
                needed[storage] = min(values, known) if isinstance(known, int) else values
            else:
                needed.setdefault(storage, values)
    storages = [f"{layer.name}.value" for layer in net.graph.data()]
    return [synthetic_array(executable.buffers[storage], needed.get(storage)) for storage in storages]
