"""A net's declaration again, with what it has learned: what ``copy.deepcopy(net)`` makes."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from latte.model.graph import Graph
from latte.runtime.session import Session


def copied_graph(graph: Graph, memo: dict[int, Any]) -> Graph:
    """The same declaration, of other objects; classes, mappings and initialisers are shared.

    Args:
        graph: to be copied.
        memo: of :func:`copy.deepcopy`.
    """
    for ensemble in graph.ensembles:
        memo[id(ensemble.accessor)] = None  # it belongs to the net; the copy gets its own
    return copy.deepcopy(graph, memo)


def go_on(session: Session, other: Session) -> None:
    """Let a net go on where another one of the same declaration is: parameters, statistics, constants, random numbers,
    order of data, values of the data layers, gradients that the user has given. Those of parameters count as cleared.

    Args:
        session: of the net that goes on.
        other: of the net that it follows.
    """
    theirs = other.executable
    session.seed_like(other)
    for name, buffer in other.whole.buffers.items():
        if buffer.role in ("param", "state", "constant"):  # tables may have changed since
            session.whole.write(name, other.whole.read(name))
    for name in ("net.seed", "net.step"):
        if name in theirs.arrays:
            session.executable.arrays[name][...] = theirs.arrays[name]
    executable = session.use(theirs.batch_size)
    for layer in other.graph.data():
        executable.write(f"{layer.name}.value", theirs.read(f"{layer.name}.value"))
    session.given, session.unchecked = set(other.given), set(other.unchecked)
    if other.shuffling is not None:
        session.shuffling = np.random.default_rng()
        session.shuffling.bit_generator.state = other.shuffling.bit_generator.state
    session.loss, session.accuracy = other.loss, other.accuracy
    session.forget_runs()
