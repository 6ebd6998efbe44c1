"""Lanes: of each innermost loop and those around it, one becomes the lanes of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from swirl.analysis.accesses import parsed
from swirl.analysis.loop_facts import NEAR, LoopFacts, contractions, perfect_chain, stride
from swirl.ir.nest import names_in
from swirl.schedule.rules.blocking import blocking, in_blocks
from swirl.schedule.rules.copies import Copies
from swirl.schedule.rules.nesting import outside
from swirl.schedule.rules.register_transpose import transposing_steps
from swirl.schedule.rules.trials import Step, Trials, step
from swirl.transforms.rewrites.sums.argmax_lanes import finds_winners

SPARSE = 4
"""A vector's lanes beside those of it that are used, from which on loading them one by one does not pay: an insertion
takes as long as an operation of the whole vector."""
COMPARED = 10
"""Iterations of a maximum whose place is kept that take as long as comparing lanes does: values and places of halves,
three or four times, each after the one before."""


def vectorize(trials: Trials) -> None:
    """Of each innermost loop and those around it, the one that is best by :class:`LanesRank` becomes lanes; copies of
    other loops are made for them.

    rewrite:
        for c in range(64):                          for x_outer in range(0, 56, 16):
            for x in range(56):                →         for c in range(64):
                y[x] += w[c] * a[c, x]                       for x in vector(16):
                                                                 y[x_outer + x] += w[c] * a[c, x_outer + x]

    Hardware: an instruction computes as many neighbours in memory as a register has elements; elements that are apart
    are loaded one by one, and lanes of a sum are added up in the end.
    """
    refused: set[str] = set()
    while (leaf := _scalar_leaf(trials, refused)) is not None:
        around = [f for f in trials.loops() if f.contains(leaf) or f.path == leaf.path]
        ranked = sorted((f for f in around if _may_be_lanes(trials, f)), key=partial(LanesRank.of, trials))
        turned = [None] if ranked and _scatters(ranked[0]) else []  # rather than scattered
        done = [_Lanes(trials, around, found) for found in [*turned, *ranked]]
        if trials.first("lanes", done, _Lanes.made) is None:
            refused.add(leaf.var)
            trials.note_refusal("vectorize", (ranked[0] if ranked else leaf).var, trials.target.simd_width)


@dataclass(frozen=True)
class _Lanes:
    """A candidate for lanes.

    Args:
        trials: of the nest.
        around: an innermost loop, and those around it.
        found: the one of them that becomes lanes; None for any along which rows are loaded whole and turned.
    """

    trials: Trials
    around: Sequence[LoopFacts]
    found: LoopFacts | None

    def __str__(self) -> str:
        return "rows turned in registers" if self.found is None else lanes_along(self.found, self.found.var)

    def made(self) -> bool:
        """Whether they have become lanes."""
        if self.found is None:
            return any(_transpose_in_registers(self.trials, each) for each in self.around)
        return _become_lanes(self.trials, self.found) or _nest(self.trials, self.found)


def _become_lanes(trials: Trials, found: LoopFacts) -> bool:
    """Whether a loop has become lanes, with those inside that sum nothing outside of it, and copies of others."""
    if _inside_of_borders(trials, found) or _transpose_in_registers(trials, found):
        return True
    options = {"strided": "gather"} if found.non_contiguous else {}
    lanes = lanes_step(found, found.var, trials.target.simd_width, **options)
    order = _inside(trials, found)
    reordering = [step(f"{found.var} is innermost but for sums", "reorder", order)] if order else []
    if reordering and not _keeps_blocking(trials, reordering):
        reordering = []
    if not (reordering and trials.together([*reordering, lanes])) and not trials.together([lanes]):
        return False
    Copies(trials).make(found, found.var, -(-found.trips // trials.target.simd_width))
    return True


def _nest(trials: Trials, found: LoopFacts) -> bool:
    """Whether loops inside of one, which may become lanes then, have gone outside."""
    steps, var = outside(found, trials.loops())
    if not steps or not trials.scratch().together([*steps, lanes_step(found, var, trials.target.simd_width)]):
        return False
    trials.together(steps)
    trials.give_own_names({var})
    return True


def _transpose_in_registers(trials: Trials, found: LoopFacts) -> bool:
    """Whether a loop has become lanes that are rows apart, which are loaded whole and turned in registers."""
    if not found.gathered or _scatters(found):
        return False
    steps = transposing_steps(found, {loop.var: loop for loop in trials.loops()}, trials.target)
    return bool(steps) and trials.together(steps)


def _inside_of_borders(trials: Trials, found: LoopFacts) -> bool:
    """Whether a loop that borders clip has become lanes, with the clipped vectors apart from the others: not where
    masks cost nothing."""
    clipped = any(found.var in names_in(parsed(guard)) for s in found.inside for guard in s.guards)
    if trials.target.has_masks or not clipped or found.trips < 3 * trials.target.simd_width:
        return False
    why, trial, outer = "only vectors at the borders need masks", trials.scratch(), f"{found.var}_outer"
    steps = [step(why, "tile_loop", found.var, trials.target.simd_width)]
    if not trial.together(steps) or not (cuts := trial.borders(outer)):
        return False
    steps.append(step(why, "split", outer, cuts))
    if not trial.together(steps[1:]):
        return False
    every = trial.loops()
    pieces = [(f, g) for g in every if g.var == f"{found.var}_inner" for f in every if f.contains(g)]
    pieces = [(f, g) for f, g in pieces if f.depth == found.depth == g.depth - 1]
    if not pieces:
        return False
    middle, lanes = max(pieces, key=lambda pair: pair[0].trips)
    if not trials.together([*steps, lanes_step(lanes, lanes.var, trials.target.simd_width)]):
        return False
    Copies(trials).make(lanes, middle.var, middle.trips, len(pieces) - 1)
    return True


def _keeps_blocking(trials: Trials, steps: list[Step]) -> bool:
    """Whether operands of products are where they were chosen to be, after these steps as well."""
    if any(map(in_blocks, contractions(trials.nests[0], trials.program.buffers))):
        return False
    trial = trials.scratch()
    after = contractions(trial.nests[0], trial.program.buffers) if trial.together(steps) else []
    return all(blocking(trial, found) is None for found in after)


def _scalar_leaf(trials: Trials, refused: set[str]) -> LoopFacts | None:
    """An innermost loop that is not in lanes, whatever copies and loops of one iteration are inside of it; short
    ones last, so that the lanes around them are chosen for what most of the work is."""
    every = [f for f in trials.loops() if f.loop.kind != "unrolled" and (f.loop.kind != "range" or f.trips > 1)]
    plain = [found for found in every if found.loop.kind == "range"]
    leaves = (f for f in plain if f.var not in refused and not any(map(f.contains, every)))
    return min(leaves, key=partial(_short, trials), default=None)


def _short(trials: Trials, found: LoopFacts) -> bool:
    """Whether a loop does not fill half of a vector."""
    return found.trips * 2 <= trials.target.simd_width


def _may_be_lanes(trials: Trials, found: LoopFacts) -> bool:
    if found.loop.kind != "range" or found.trips == 1:
        return False
    gathers_few = found.gathered > 0 and found.trips * SPARSE <= trials.target.simd_width
    pays = found.contiguous + found.strided > 0 and found.gathered * 2 <= found.weight and not gathers_few
    if found.trips < COMPARED and finds_winners(found.nest, found.path):
        return False
    return pays and not any(found.contains(other) and other.loop.kind == "vector" for other in trials.loops())


class LanesRank(NamedTuple):
    """How good lanes along a loop are: the least one, by the first of these that differ, is the best.

    Args:
        short: whether it does not fill half of a vector: what most of the vector computes is left out.
        apart: share of the bytes that are not contiguous, in tenths; of a short loop only those that are further apart
            than a few loads of vectors have, as a fuller vector makes up for the others.
        sums: whether iterations add to the same element: lanes are then added up.
        left: of a short loop, how often a vector of its iterations could double.
        strided: share of the bytes that are not contiguous, in tenths.
        contiguous: bytes that are, with the sign turned.
        scattered: bytes that are written apart: each lane is a store, where a lane that is read apart is a load, of
            which a processor does two at a time.
        depth: of the loop, with the sign turned: the innermost one moves nothing.
    """

    short: bool
    apart: float
    sums: bool
    left: int
    strided: float
    contiguous: int
    scattered: int
    depth: int

    @staticmethod
    def of(trials: Trials, found: LoopFacts) -> LanesRank:
        """The rank of a loop."""
        short = _short(trials, found)
        left = (trials.target.simd_width // found.trips).bit_length() if short else 0
        strided, gathered = (round(part / found.weight, 1) for part in (found.non_contiguous, found.gathered))
        scattered = sum(use.weight for use in found.uses if use.access.kind == "write" and use.stride not in (0, 1))
        apart = gathered if short else strided
        return LanesRank(short, apart, found.repeats, left, strided, -found.contiguous, scattered, -found.depth)


def _inside(trials: Trials, lanes: LoopFacts) -> list[str]:
    """The order of loops in which those directly inside of the lanes that sum nothing are outside of them; empty if
    there is nothing to move."""
    chain = perfect_chain(lanes.nest, lanes.path)
    inside = [f for f in trials.loops() if lanes.contains(f)]
    outside = [f.var for f in inside if not f.repeats]
    if not outside or len(chain) != len(inside) + 1:
        return []
    return [*outside, lanes.var, *(f.var for f in inside if f.repeats)]


def _scatters(found: LoopFacts) -> bool:
    """Whether neighbouring iterations write elements that are far apart, also of local arrays."""
    written = ((a, s) for s in found.inside for a in s.accesses if a.kind != "read" and a.own)
    distances = (stride(access, found.var, statement, found.buffers) for access, statement in written)
    return any(each is None or each > NEAR for each in distances)


def lanes_along(found: LoopFacts, var: str) -> str:
    """The reason for lanes along a loop, whatever it is called."""
    gathered = f", {found.non_contiguous / found.weight:.0%} gathered" if found.non_contiguous else ""
    return f"along {var} {found.contiguous / found.weight:.0%} of the accesses are contiguous{gathered}"


def lanes_step(found: LoopFacts, var: str, width: int, **options: Any) -> Step:
    """What makes a loop lanes."""
    return step(lanes_along(found, var), "vectorize", var, width, **options)
