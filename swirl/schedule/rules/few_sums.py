"""Few sums over much: all of them are added to in registers while the data pass by once; threads have private ones."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from swirl.analysis.accesses import Access
from swirl.analysis.loop_facts import moves, stride
from swirl.analysis.statements import Statement, statements_of
from swirl.analysis.trips import trips
from swirl.schedule.rules.hardware import CHUNKS
from swirl.schedule.rules.trials import Trials, step

FREE = 6
"""Registers that are left for what is added, its factors and the vectors before them, and for masks."""


@dataclass(frozen=True)
class FewSums:
    """A statement that adds to few elements of a buffer.

    Args:
        statement: that adds.
        target: what it adds to.
        results: loops over the elements.
        part: the loop over terms of which parts have private sums.
        terms: the other loops over terms; the last one becomes lanes.
    """

    statement: Statement
    target: Access
    results: tuple[str, ...]
    part: str
    terms: tuple[str, ...]

    @staticmethod
    def of(trials: Trials) -> FewSums | None:
        """Those of a nest; None where there are others too, they are too many for the registers, the data stay in the
        level-2 cache from one to the next, or are not contiguous along a loop over terms."""
        (nest,), buffers, target = trials.nests, trials.program.buffers, trials.target
        adding = [(s, a) for s in statements_of(nest) for a in s.accesses if a.kind == "add" and a.name in buffers]
        if len(adding) != 1:
            return None
        ((statement, sums),) = adding
        count = {loop.var: trips(loop, statement.ranges) for loop in statement.loops}
        results = tuple(var for var in count if moves(sums, var))
        over = [var for var in count if var not in results]
        number = prod(count[var] for var in results)
        if not 1 < number <= target.registers - FREE or len(over) < 2:
            return None
        read = [
            a for a in statement.accesses if a.kind == "read" and a.name in buffers and any(moves(a, v) for v in over)
        ]
        row = next((v for v in reversed(over) if all(stride(a, v, statement, buffers) in (0, 1) for a in read)), None)
        if row is None or count[row] < 2 * target.simd_width or not any(_all(a, over) for a in read):
            return None
        if prod(count[var] for var in over) * buffers[sums.name].itemsize <= target.l2_bytes:
            return None
        others = [var for var in over if var != row]
        part = next((var for var in others if count[var] >= CHUNKS // 2), max(others, key=count.__getitem__))
        return FewSums(statement, sums, results, part, (*(var for var in others if var != part), row))


def add_up_together(trials: Trials) -> bool:
    """Loops over few sums go inside of the one whose parts threads share, around the others, as copies of their body.

    rewrite (two sums, four parts):
        for j in range(2):                                for n in parallel(4):
            for n in range(4):                                for x in range(0, 512, 16):
                for x in range(512):                  →           for j in unrolled(2):
                    s[j] += a[n, x] * b[n, x + j]                     for x_lane in vector(16):
                                                                          s_private[n, j] += …
                                                          for n_copy in range(4):
                                                              s[j] += s_private[n_copy, j]

    Hardware: a sum that passes over all data alone reads them from memory once for each sum; sums in registers read
    them once, and the multiply-adds of several sums do not wait for each other.

    Returns:
        whether it has applied: the nest, and those that it has become, are scheduled then.
    """
    found = FewSums.of(trials)
    trial = None if found is None else trials.scratch().cut_off("the sums have loops of their own", found.results)
    if found is None or trial is None:
        return False
    count = {loop.var: trips(loop, found.statement.ranges) for loop in found.statement.loops}
    why = f"{prod(count[var] for var in found.results)} sums stay in registers while the data pass by once"
    order = [found.part, *found.results, *found.terms]
    reordering = [step(why, "reorder", order)] if order != found.statement.variables() else []
    done = trial.together(
        [
            *reordering,
            step(f"parts of {found.part} add up for themselves", "privatize", found.target.name, found.part),
            step("the data are contiguous", "vectorize", found.terms[-1], trials.target.simd_width),
            *(step(why, "unroll_and_jam", var, count[var]) for var in reversed(found.results)),
            step("independent parts", "parallelize", found.part),
        ]
    )
    if done:
        trials.accept(trial)
    return done


def _all(access: Access, variables: list[str]) -> bool:
    """Whether an access moves with all loops."""
    return all(moves(access, var) for var in variables)
