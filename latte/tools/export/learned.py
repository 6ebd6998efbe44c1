"""What a net has learned, for programs that only use it: from its declaration, a checkpoint, or a net that runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from latte.net import Net
from latte.runtime.checkpoint import LEARNED, load_declared
from swirl.ir.buffers import DTYPES, Buffer

FIXED = (*LEARNED, "constant")
"""Roles of what does not depend on the items of a batch."""


@dataclass(frozen=True)
class Learned:
    """What inference needs besides data.

    Args:
        net: that it is of.
        values: storage → parameters, running statistics and constants, in logical order.
        scalars: storage → settings that do not depend on the number of items.
    """

    net: Net
    values: Mapping[str, np.ndarray]
    scalars: Mapping[str, int]

    def of(self, buffer: Buffer, batch_size: int) -> np.ndarray:
        """The values of a buffer, in logical order: zeros of what nobody has set.

        Args:
            buffer: one of the roles above, or such a setting.
            batch_size: of the program; a state for each item has those of as many items.
        """
        made: np.ndarray = np.zeros(buffer.shape, DTYPES[buffer.dtype])
        if buffer.role == "scalar":
            made[0] = self.scalars.get(buffer.name, 0)
            return made
        known = self.values.get(buffer.name)
        owner, _, field = buffer.name.partition(".")
        declared = any(layer.name == owner and field in layer.fields() for layer in self.net.ensembles)
        if declared and (known is None or known.shape != made.shape):
            # What is there for each item: that of a larger batch begins with what is known.
            made[...] = self.net[owner].initial(field, batch_size)
        if known is not None:
            made[: len(known)] = known[: len(made)]
        return made


def learned(net: Net, checkpoint: Path | None) -> Learned:
    """What a net has learned. It is not compiled for it.

    Args:
        net: as its file has left it: declared, or compiled.
        checkpoint: that ``net.save`` has written, which the net is set to, settings and all.

    Raises:
        DataError: see :func:`latte.runtime.checkpoint.load`.
    """
    if net.compiled:
        if checkpoint is not None:
            net.load(checkpoint)
        executable = net.session.whole
        values = {name: executable.read_whole(name) for name, b in executable.buffers.items() if b.role in FIXED}
        step = int(executable.arrays["net.step"][0]) if "net.step" in executable.arrays else 0
        return Learned(net, values, {"net.seed": net.graph.settings.seed, "net.step": step})
    specs = {
        spec.storage: (ensemble, field, spec.role)
        for ensemble in net.graph.ensembles
        for field, spec in ensemble.fields().items()
        if spec.role in FIXED and spec.owner == ensemble.name
    }
    values, step = {name: ensemble.initial(field) for name, (ensemble, field, _) in specs.items()}, 0
    if checkpoint is not None:
        here = {name: values[name] for name, (_, _, role) in specs.items() if role in LEARNED}
        found = load_declared(net.graph, checkpoint, here)
        values |= found.tensors
        step = int(found.about["step"])
    return Learned(net, values, {"net.seed": net.graph.settings.seed, "net.step": step})
