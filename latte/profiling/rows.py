"""What a profile is made of: a row for each layer and phase, and below it one for each loop nest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from latte.explain.showing import amount
from swirl.cost.time import Demand

COMPUTE, MEMORY = "compute", "memory"


@dataclass(frozen=True)
class Row:
    """A layer (or a chain of layers) in one phase, or one of its loop nests.

    Args:
        ensemble: name of the layer or the chain.
        phase: ``forward``, ``backward`` or ``update``.
        nest: label of the loop nest; empty for all of them together, as they are compiled.
        writes: the buffers that it writes, by their names in the nest.
        seconds: median. Of a nest: measured separately, as a kernel of its own.
        spread: half of the measurements are between these (seconds).
        share: of the training step.
        operations: floating-point operations; a fused multiply-add is two.
        bytes: that it must move at least: of the different elements that it touches, each once.
        exact: whether these two are the numbers, not at most that (a condition depends on data).
        limit: seconds that the machine needs for them at least.
        bound: which of the two takes so long, ``compute`` or ``memory``.
        nests: the rows of its loop nests.
        demand: of a nest, what it asks of the processor.
        predicted: seconds by the model of :mod:`swirl.cost.time`; of a layer the sum of its nests'; None in a profile
            of earlier versions.
        slowest: the part of the model that takes so long; of a layer nothing.
    """

    ensemble: str
    phase: str
    nest: str
    writes: tuple[str, ...]
    seconds: float
    spread: tuple[float, float]
    share: float
    operations: int
    bytes: int
    exact: bool
    limit: float
    bound: str
    nests: tuple[Row, ...] = ()
    demand: Demand | None = None
    predicted: float | None = None
    slowest: str = ""

    @property
    def gflop_per_second(self) -> float:
        """Billions of floating-point operations a second."""
        return self.operations / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gb_per_second(self) -> float:
        """Billions of bytes a second, each element counted once."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.operations / self.bytes if self.bytes else 0.0

    @property
    def of_limit(self) -> float:
        """The share of what the machine can do at the best. Above 1 where data come from a cache: the limit is that of
        reading memory."""
        return self.limit / self.seconds if self.seconds else 0.0

    @property
    def separately(self) -> float:
        """Seconds of its nests, measured separately, all together."""
        return sum(nest.seconds for nest in self.nests)

    def facts(self) -> dict[str, Any]:
        """The fields, and what follows from them, for JSON."""
        own = asdict(replace(self, nests=()))
        del own["nests"]
        rates = {name: getattr(self, name) for name in DERIVED}
        return {**own, **rates, "nests": [nest.facts() for nest in self.nests]}

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> Row:
        """The row that :meth:`facts` came from."""
        nests = tuple(cls.of_facts(nest) for nest in facts["nests"])
        own = {name: value for name, value in facts.items() if name not in DERIVED}
        asked = own.get("demand")
        own |= {"writes": tuple(own["writes"]), "spread": tuple(own["spread"]), "nests": nests}
        return cls(**{**own, "demand": None if asked is None else Demand(**asked)})


DERIVED = ("gflop_per_second", "gb_per_second", "intensity", "of_limit")
"""Properties that are written to JSON with the fields."""


# --- words --------------------------------------------------------------------------------------------------
def name(row: Row) -> str:
    """The layer's name; of a nest its label and what it writes, not more than two buffers."""
    if not row.nest:
        return row.ensemble
    return f"{row.nest} → {', '.join(row.writes[:2])}{', …' if len(row.writes) > 2 else ''}"


def spread(row: Row) -> str:
    """Half of the width of the middle half, in percent of the median."""
    low, high = row.spread
    return f"±{(high - low) / 2 / row.seconds:.0%}" if row.seconds else ""


def operations(row: Row) -> str:
    """``1.64 Mflop``; ``≤`` where it is at most that."""
    return f"{_at_most(row)}{amount(row.operations, 'flop')}" if row.operations else ""


def memory(row: Row) -> str:
    """``519 kB``; ``≤`` where it is at most that."""
    return f"{_at_most(row)}{amount(row.bytes, 'B')}"


def _at_most(row: Row) -> str:
    return "" if row.exact else "≤ "


def arithmetic_rate(row: Row) -> str:
    """Gflop/s; nothing where there is no arithmetic."""
    return rate(row.gflop_per_second) if row.operations else ""


def rate(number: float) -> str:
    """Three digits or so: ``0.12``, ``3.4``, ``496``."""
    return f"{number:.2f}" if number < 1 else f"{number:.1f}" if number < 100 else f"{number:,.0f}"


def of_limit(row: Row) -> str:
    """``12% memory``; with ``*`` where it is more than the limit, with ``≤`` where it is at most that."""
    return f"{_at_most(row)}{row.of_limit:.0%}{'*' if is_cached(row) else ''} {row.bound}"


def is_cached(row: Row) -> bool:
    """Whether it is faster than memory, so that its data must come from a cache."""
    return row.of_limit > 1 and row.bound == MEMORY
