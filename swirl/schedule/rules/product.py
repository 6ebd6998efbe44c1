"""A product of matrices in a nest: a contraction with two loops over results and one over terms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from swirl.analysis.accesses import Access
from swirl.analysis.loop_facts import Contraction, facts, moves, stride
from swirl.ir.buffers import Buffer
from swirl.ir.trees import names_in
from swirl.schedule.rules.trials import Trials
from swirl.target.targets import Target


@dataclass(frozen=True)
class Blocking:
    """An order of the loops of a product, and blocks.

    Args:
        order: the loops, outermost first: of one in blocks ``…_outer`` and ``…_inner``.
        sizes: loop → iterations in a block.
        why: the reason.
        cut: the loop that is outermost and split first, and where: then each part is a product by itself.
    """

    order: tuple[str, ...]
    sizes: Mapping[str, int]
    why: str
    cut: tuple[str, int] | None = None

    @property
    def loops(self) -> set[str]:
        """The loops that get an order, as they are called before they are cut into blocks."""
        blocks = {f"{var}_{part}" for var in self.sizes for part in ("outer", "inner")}
        return {*self.sizes, *(set(self.order) - blocks)}

    def __str__(self) -> str:
        sizes = "".join(f", {size} of {var}" for var, size in self.sizes.items())
        return f"{self.why} ({', '.join(self.order)}{sizes})"


def lanes(found: Contraction, buffers: Mapping[str, Buffer], loops: Iterable[str], *accesses: Access) -> str | None:
    """The first of some loops along which a contraction's operands, one of which moves with it, and other accesses are
    contiguous."""
    for var in loops:
        own, others = ([stride(a, var, found.statement, buffers) for a in some] for some in (found.operands, accesses))
        if all(one in (0, 1) for one in (*own, *others)) and 1 in own:
            return var
    return None


@dataclass(frozen=True)
class ContractionFacts:
    """What orders and blocks of a contraction's loops depend on.

    Args:
        trials: of the nest that it is in.
        found: the contraction; adds to a buffer.
        trips: loop → iterations.
    """

    trials: Trials
    found: Contraction
    trips: Mapping[str, int]

    @property
    def target(self) -> Target:
        return self.trials.target

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.trials.program.buffers[self.found.target.name].itemsize

    def stride(self, access: Access, var: str) -> int | None:
        """Elements in memory between neighbouring iterations of a loop."""
        return stride(access, var, self.found.statement, self.trials.program.buffers)

    def count(self, names: Iterable[str]) -> int:
        """Iterations of loops."""
        return prod(self.trips[name] for name in names)


def trips_of(trials: Trials) -> dict[str, int]:
    """Loop of the nest → iterations."""
    return {loop.var: loop.trips for loop in facts(trials.nests[0], trials.program.buffers)}


@dataclass(frozen=True)
class Product(ContractionFacts):
    """A contraction with two loops over results and one over terms, whatever loops are around.

    Args:
        again: the loops over results along which an operand stays the same, outermost first.
        terms: the loop over the terms.
    """

    again: tuple[str, str]
    terms: str

    @staticmethod
    def of(trials: Trials, found: Contraction) -> Product | None:
        """The contraction as a product; None where it is not one, or adds to a local."""
        again = found.read_again
        if len(again) != 2 or len(found.sums) != 1 or found.target.name not in trials.program.buffers:
            return None
        return Product(trials, found, trips_of(trials), (again[0], again[1]), found.sums[0])

    def bytes_of(self, *accesses: Access) -> int:
        """Those of all elements that accesses reach."""
        moving = ([var for var in (*self.again, self.terms) if moves(access, var)] for access in accesses)
        return sum(self.count(names) * self.itemsize for names in moving)

    def moving(self, var: str) -> list[Access]:
        """The operands that move with a loop."""
        return [access for access in self.found.operands if moves(access, var)]

    def invariant_bytes(self, var: str) -> int:
        """Bytes of the operands that stay the same along a loop."""
        return self.bytes_of(*(access for access in self.found.operands if not moves(access, var)))

    def other(self, var: str) -> str:
        """The loop over results that is not ``var``."""
        return self.again[0] if var == self.again[1] else self.again[1]

    def lanes(self, *accesses: Access) -> str | None:
        """The loop over results along which accesses and an operand that moves with it are contiguous."""
        return lanes(self.found, self.trials.program.buffers, self.again, *accesses)


def innermost(buffer: Buffer, access: Access, var: str) -> list[int]:
    """The dimensions of a copy in the order in which those that a loop moves are innermost; the batch is left out where
    it is the outermost."""
    varies = [var in names_in(index) for index in access.own]
    order = sorted(range(len(varies)), key=lambda dim: varies[dim])
    return [dim - buffer.batch_dims for dim in order[0 if order[0] else buffer.batch_dims :]]


def even(extent: int, most: int) -> int:
    """The greatest divisor that is not much smaller than ``most``, which is taken if there is none."""
    return next((size for size in range(min(most, extent), most // 2, -1) if extent % size == 0), min(most, extent))
