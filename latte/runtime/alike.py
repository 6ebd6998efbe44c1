"""Processes that train one net: what they must have in common, and going on from what the first one has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

import numpy as np

from latte.model.ensemble import Ensemble
from latte.model.source_location import user_location
from latte.runtime.checkpoint import Checkpoint, Resumable, learned, snapshot, take
from latte.runtime.group import Group
from latte.runtime.session import Session
from swirl.errors import TrainingError
from swirl.ir.nest import Program

FIRST = "the process of rank 0"
"""What messages call the place that parameters come from."""


def describe(session: Session) -> dict[str, str]:
    """What processes that train one net have in common of it: part → text."""
    computed = {each.ensemble.name: each.programs for each in session.whole.plan.programs}
    layers = [_layer(ensemble, computed.get(ensemble.name, {})) for ensemble in session.graph.ensembles]
    found = {"the batch size of the net": str(session.batch_size), "the number of layers": str(len(layers))}
    found |= {f"layer {number} of the net": text for number, text in enumerate(layers, 1)}
    for phase in ("forward", "backward"):
        sums = [storage for _, storage in session.whole.batch_sums(phase)]
        found[f"the order of the sums over items in {phase}"] = ", ".join(sums)
    return found


def _layer(ensemble: Ensemble, programs: Mapping[str, Program]) -> str:
    computing = "".join(programs[phase].text for phase in ("forward", "inference") if phase in programs)
    fields = (f"{s.name} {s.shape}" for s in ensemble.fields().values() if s.role in ("param", "state"))
    sources = ", ".join(edge.source.name for edge in ensemble.connections)
    told = (f"{type(ensemble).__name__} {ensemble.shape}", *fields, f"of {sources}", f"{crc32(computing.encode()):08x}")
    return f"{ensemble.name} ({'; '.join(told)})"


def check_alike(group: Group, own: Mapping[str, str]) -> None:
    """Compare what the processes have.

    Args:
        group: the processes.
        own: part → text, of this one.

    Raises:
        TrainingError: in all of them, if they differ: it names those that differ from the first, and in what.
    """
    if group.size == 1:
        return
    first, *others = group.gather(dict(own), "comparing what the processes compute")
    told = []
    for rank, other in enumerate(others, 1):
        part = next((part for part in (*first, *other) if first.get(part) != other.get(part)), None)
        if part is not None:
            told.append(
                f"{part} is {other.get(part, 'missing')} in rank {rank}, and {first.get(part, 'missing')} in rank 0"
            )
    if told:
        raise TrainingError(
            f"rank {group.rank} of {group.size}: the processes do not compute the same: {'; '.join(told)}",
            location=user_location(),
            way_out="all processes run the same program on the same data, and load the same file",
        )


def begin_alike(group: Group, session: Session, solver: Any) -> None:
    """Let parameters, running statistics, random numbers, what is frozen and what a solver keeps be those of the first
    process."""
    if group.size == 1:
        return
    kept = solver if isinstance(solver, Resumable) else None
    own = snapshot(session, kept)
    shapes = {name: (array.shape, array.dtype.str) for name, array in own.tensors.items()}
    about, wanted = group.share((own.about, shapes), "sharing what the net has learned")
    tensors = {name: _like(own.tensors.get(name), shape, np.dtype(dtype)) for name, (shape, dtype) in wanted.items()}
    group.broadcast(list(tensors.values()), "sharing what the net has learned")
    if group.rank != 0:
        take(session, Checkpoint(tensors, about), FIRST, kept)


def _like(array: np.ndarray | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """An array with contents, if it is of this shape and type; otherwise a new one."""
    if array is not None and array.shape == shape and array.dtype == dtype:
        return np.ascontiguousarray(array)
    return np.empty(shape, dtype)


def keep_alike(group: Group, session: Session) -> None:
    """Let parameters and running statistics be those of the first process. The parameters are already, to the last bit,
    where all processors compute alike; running statistics are of the items of each process until here. A state of each
    item stays."""
    if group.size == 1:
        return
    buffers = session.whole.buffers
    own = {n: np.ascontiguousarray(a) for n, a in learned(session).items() if not buffers[n].items}
    group.broadcast(list(own.values()), "sharing running statistics")
    if group.rank != 0:
        for name, values in own.items():
            session.whole.write(name, values)
