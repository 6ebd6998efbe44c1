"""A made-up batch, for tools that time or compare what no data set feeds."""

from __future__ import annotations

import numpy as np

from latte.net import Net
from swirl.dump.write import contents
from swirl.tune.arrays import synthetic_array


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
