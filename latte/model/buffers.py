"""The buffers that a layer's bodies may name."""

from __future__ import annotations

from latte.model.ensemble import Ensemble
from swirl.ir.buffers import Buffer

# The run-time scalars that random numbers depend on.
SCALARS = {
    "seed": Buffer("net.seed", (1,), "int32", "scalar"),
    "step": Buffer("net.step", (1,), "int32", "scalar"),
}

FIRST_ITEM = Buffer("net.first_item", (1,), "int32", "scalar")
"""The place of the first item of this process in the batch that processes share; 0 for a process by itself."""


def body_buffers(ensemble: Ensemble, batch_size: int | None = None) -> dict[str, Buffer]:
    """Every buffer that a body may name: own fields, ``inputs`` and ``grad_inputs`` of each connection, ``label``, and
    the scalars ``seed`` and ``step``.

    Args:
        ensemble: in a net.
        batch_size: the net's by default.
    """
    result = {name: spec.buffer for name, spec in ensemble.fields(batch_size).items()}
    repeated = repeated_sources(ensemble)
    for connection in ensemble.connections:
        if connection.name in repeated:
            continue
        source = connection.source.fields(batch_size)
        result[connection.name] = source["value"].buffer
        if not connection.is_label:
            result[f"grad_{connection.name}"] = source["grad"].buffer
    return result | SCALARS


def repeated_sources(ensemble: Ensemble) -> dict[str, str]:
    """``inputs1`` → ``inputs`` where both read one source: nests know it (and its gradient) by the first name only,
    because two names in a program never mean one buffer."""
    first: dict[int, str] = {}
    repeated: dict[str, str] = {}
    for connection in ensemble.connections:
        name = first.setdefault(id(connection.source), connection.name)
        if name != connection.name:
            repeated |= {connection.name: name, f"grad_{connection.name}": f"grad_{name}"}
    return repeated
