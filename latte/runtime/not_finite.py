"""Where NaN and infinities in a net begin, for messages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from latte.model.graph import Graph
from latte.runtime.executable import Executable


class LossIsNaN(UserWarning):
    """The loss is not a number: reported once."""


def where_not_finite(graph: Graph, executable: Executable) -> str:
    """What a message about a loss that is NaN says of its origin, as ``"fc1.weights is not finite; …"``.

    Empty where all that is kept is finite.

    Parameters come before values: all that is computed with them follows from them. What they are changed by is known
    from the gradients of the step before, in the order of backward.
    """
    names = [ensemble.name for ensemble in graph.ensembles]
    learned = _first(executable, _fields(executable, names, ("param",)))
    if learned is None:
        value = _first(executable, [f"{name}.value" for name in names])
        return "" if value is None else f"{value} is the first that is not finite"
    gradient = _first(executable, _fields(executable, names[::-1], ("grad", "param_grad")))
    before = "" if gradient is None else f"; of the gradients of the step before, {gradient} is the first"
    return f"{learned} is not finite{before}"


def _fields(executable: Executable, layers: list[str], roles: tuple[str, ...]) -> Iterator[str]:
    """The storage of such fields, layer by layer; a layer's gradient comes before those of its parameters."""
    for layer in layers:
        for role in roles:
            yield from (n for n, b in executable.buffers.items() if n.startswith(f"{layer}.") and b.role == role)


def _first(executable: Executable, storage: Iterator[str] | list[str]) -> str | None:
    """The first that is not finite, of what is kept."""
    kept = (name for name in storage if name in executable.buffers and name not in executable.missing)
    return next((name for name in kept if not np.isfinite(executable.read(name)).all()), None)
