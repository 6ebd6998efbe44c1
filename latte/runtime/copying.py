"""What a net has learned and been given, for another one of its declaration: a copy, or what a pickle holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from latte.runtime.gradients import Given
from latte.runtime.locking import one_at_a_time
from latte.runtime.session import Session


@dataclass(frozen=True)
class Progress:
    """Where a compiled net is.

    Args:
        items: in the batch last used.
        learned: parameters, statistics and constants (tables may have changed since), by storage.
        counters: the seed and the step of random numbers.
        data: values of the data layers.
        given: gradients that the user has given.
        gradients: of parameters, by storage; none where they count as cleared.
        set_by_user, unchecked: see :class:`latte.runtime.session.Session`.
        shuffling: the state of the random orders of ``fit``; None before the first.
        loss, accuracy: of the last run.
    """

    items: int
    learned: dict[str, np.ndarray]
    counters: dict[str, np.ndarray]
    data: dict[str, np.ndarray]
    given: Given
    gradients: dict[str, np.ndarray]
    set_by_user: frozenset[str]
    unchecked: frozenset[str]
    shuffling: Any
    loss: float
    accuracy: float


@one_at_a_time
def progress(session: Session, *, with_data: bool) -> Progress:
    """Where a net is; nothing of it is shared with the net.

    Args:
        session: of the net.
        with_data: with the last batch, the gradients of parameters, and those that the user has given; otherwise as
            before the next batch.
    """
    executable, whole = session.executable, session.whole
    numbers = ("net.seed", "net.step")
    return Progress(
        items=executable.items if with_data else session.batch_size,
        learned={
            name: whole.read_whole(name)
            for name, buffer in whole.buffers.items()
            if buffer.role in ("param", "state", "constant")
        },
        counters={name: executable.arrays[name].copy() for name in numbers if name in executable.arrays},
        data={layer.name: executable.read(f"{layer.name}.value") for layer in session.graph.data() if with_data},
        given=session.seeds.given(executable) if with_data else Given(),
        gradients=session.gradients() if with_data else {},
        set_by_user=frozenset(session.given if with_data else ()),
        unchecked=frozenset(session.unchecked if with_data else ()),
        shuffling=None if session.shuffling is None else session.shuffling.bit_generator.state,
        loss=session.loss,
        accuracy=session.accuracy,
    )


def go_on(session: Session, there: Progress) -> None:
    """Let a net go on where another one of the same declaration was.

    Args:
        session: of the net that goes on.
        there: where the other one was.
    """
    session.seed_like(there.given)
    for name, values in there.learned.items():
        session.whole.write(name, values)
    for name, values in there.counters.items():
        session.executable.arrays[name][...] = values
    executable = session.use(there.items)
    for name, values in there.data.items():
        executable.write(f"{name}.value", values)
    session.given, session.unchecked = set(there.set_by_user), set(there.unchecked)
    if there.shuffling is not None:
        session.shuffling = np.random.default_rng()
        session.shuffling.bit_generator.state = there.shuffling
    session.loss, session.accuracy = there.loss, there.accuracy
    session.forget_runs()
    if there.gradients:
        session.take_gradients(there.gradients)
