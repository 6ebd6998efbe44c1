"""What an explanation is made of: commands, loops and buffers."""

from __future__ import annotations

from dataclasses import dataclass

from swirl.analysis.work import Work
from swirl.cost.time import Demand


@dataclass(frozen=True)
class CommandFact:
    """A command of the recipe, and its outcome.

    Args:
        text: as it was written.
        phase: that it names; empty for a command on a layout, which acts on all phases.
        status: ``applied`` or ``skipped``, with the ``reason``.
        location: ``file:line`` that asked for it; or ``default schedule``.
        unit: what was scheduled: the layer, or a chain that it is in.
        cautions: why the command does nothing, little, or harm.
        function: the phase whose function of the recipe gave it; empty where it was recorded on the layer.
        of: of a command on a layout in a chain, the kind of layer whose names it uses; else empty.
    """

    text: str
    phase: str
    status: str
    reason: str
    location: str | None
    unit: str
    cautions: tuple[str, ...] = ()
    function: str = ""
    of: str = ""


@dataclass(frozen=True)
class LoopFact:
    """A loop of the final nest.

    Args:
        nest: label of the nest that it is in.
        depth: number of loops around it.
        variable: its name.
        kind: ``range``, ``parallel``, ``vector`` or ``unrolled``.
        head: as it is written in the nest.
        trips: number of iterations, the most where it varies (``exact`` is False then), or None where nothing
            is known.
        exact: whether it is always that number.
        work: operations and bytes.
    """

    nest: str
    depth: int
    variable: str
    kind: str
    head: str
    trips: int | None
    exact: bool
    work: Work


@dataclass(frozen=True)
class BufferFact:
    """A buffer that the phase touches: its name in the nests, its storage, and how that is laid out."""

    name: str
    storage: str
    dtype: str
    shape: tuple[int, ...]
    blocks: tuple[tuple[int, int], ...]
    role: str
    halo: tuple[tuple[int, int], ...] = ()
    order: tuple[int, ...] = ()
    formula: str = ""
    """Of a scalar that depends on the number of items."""


@dataclass(frozen=True)
class NestFact:
    """A loop nest of a phase, by the model of :mod:`swirl.cost.time`, and as it was measured.

    Args:
        label: of the nest; with a number where the nest has several loops one after the other.
        demand: what it asks of the processor.
        predicted: seconds that the slowest part of the model takes; None where nothing was measured.
        slowest: which part that is.
        measured: seconds of the nest as a kernel of its own, median; None where nothing was measured.
    """

    label: str
    demand: Demand
    predicted: float | None = None
    slowest: str = ""
    measured: float | None = None
