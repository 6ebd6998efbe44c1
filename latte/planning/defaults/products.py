"""Contractions as products of matrices: packed operands, and an order and blocks for the caches."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import takewhile
from math import isqrt, prod

from latte.planning.defaults.trials import Step, Trials, step
from swirl.ir.buffers import DTYPES
from swirl.ir.deps import NotProved
from swirl.ir.nest import names_in
from swirl.ir.statements import Access, statements_of
from swirl.loop_facts import Contraction, LoopFacts, contractions, correlations, facts, moves, perfect_chains, stride

LONG_SUM = 16
"""Vectors of terms from which on adding up the lanes of a sum takes little of its time."""
READ_OFTEN = 32
"""Reads of each element that make up for copying it."""
COPIED = 2**16
"""Bytes of a copy that stays near."""


# --- packed operands ----------------------------------------------------------------------------------------
def pack(trials: Trials) -> None:
    """Of short sums, the operand that keeps lanes from running along results is copied, in rows along these: lanes
    along the terms would have to be added up."""
    tried: set[str] = set()  # targets: a copy changes where statements are
    while (found := next((c for c in _products(trials) if c.target.text not in tried), None)) is not None:
        tried.add(found.target.text)
        buffers, width = trials.program.buffers, trials.target.simd_width
        trips = {loop.var: loop.trips for loop in facts(trials.nests[0], buffers)}
        if any(trips.get(var, 1) >= LONG_SUM * width and not _far(trials, found, var) for var in found.sums):
            continue
        along = [var for var in found.results if stride(found.target, var, found.statement, buffers) == 1]
        rows = [var for var in along if trips.get(var, 1) >= width]
        if all(_far(trials, found, var) for var in rows):
            any(_packed(trials, found, var) for var in sorted(rows, key=lambda var: -trips[var]))


def _products(trials: Trials) -> list[Contraction]:
    """The contractions of the nest that add to arrays."""
    buffers = trials.program.buffers
    return [found for found in contractions(trials.nests[0], buffers) if found.target.name in buffers]


def _far(trials: Trials, found: Contraction, var: str) -> list[Access]:
    """The operands of a contraction that do not move to the next element along a loop."""
    buffers = trials.program.buffers
    return [a for a in found.operands if stride(a, var, found.statement, buffers) not in (0, 1)]


def _packed(trials: Trials, found: Contraction, var: str) -> bool:
    """Whether the operand that is far along a loop has been copied, in the innermost loop around it that reads the copy
    often."""
    access, *others = _far(trials, found, var)
    buffer, moved = trials.program.buffers.get(access.name), [var in names_in(index) for index in access.own]
    if others or buffer is None or moved.count(True) != 1 or moved.index(True) < buffer.batch_dims:
        return False
    dims = range(len(moved) - buffer.batch_dims)
    order = sorted(dims, key=lambda dim: moved[dim + buffer.batch_dims])
    first, trial = _row_innermost(trials, found, var), trials.scratch()
    if first and not trial.together(first):
        return False
    every = facts(trial.nests[0], trial.program.buffers)
    around = [loop for loop in every if found.statement.path[: loop.depth] == loop.path]
    own = {name for index in access.own for name in names_in(index)}
    for loop in reversed(list(takewhile(lambda loop: loop.var != var, around))):
        reads = prod(inner.trips for inner in around if loop.contains(inner) and inner.var not in own)
        readers = {use.statement.path for use in loop.uses if use.access.name == access.name}
        if readers == {found.statement.path} and reads >= READ_OFTEN and _touched(loop, access.name) <= COPIED:
            why = f"rows along {var}, each element read {reads} times"
            return trials.together([*first, step(why, "pack", access.name, at=loop.var, order=order)])
    return False


def _touched(loop: LoopFacts, buffer: str) -> int:
    """Bytes of a buffer that an iteration touches; more than any copy has, where that took too much work to prove."""
    try:
        return loop.touched(buffer)
    except NotProved:
        return COPIED + 1


def _row_innermost(trials: Trials, found: Contraction, var: str) -> list[Step]:
    """What makes a loop the innermost of those over the results, where these are directly nested."""
    names = chain_of(trials, found)
    results = [name for name in names if name in found.results]
    if var not in results or results[-1] == var:
        return []
    wanted = [*(name for name in results if name != var), var, *(name for name in names if name in found.sums)]
    return [step(f"{var} is the innermost of the results", "reorder", wanted)]


def chain_of(trials: Trials, found: Contraction) -> list[str]:
    """The directly nested loops around a contraction, outermost first."""
    chains = ([loop.var for loop in chain] for chain in perfect_chains(trials.nests[0]))
    return next((names for names in chains if found.statement.variables()[-len(names) :] == names), [])


# --- caches -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Blocking:
    """An order of the loops of a product, and blocks of its terms.

    Args:
        first, second: the loops over results along which an operand stays the same, outermost first.
        terms: the loop over the terms.
        size: terms in a block; None for all.
        outside: whether the blocks are outside of ``first``, not between the two.
        why: the reason.
    """

    first: str
    second: str
    terms: str
    size: int | None
    outside: bool
    why: str


def blocking(trials: Trials, found: Contraction) -> Blocking | None:
    """What keeps the operands of a product near; None where they are, or where it is not one of two loops over results
    and one over terms, whatever loops are around.

    An iteration of the first loop has the second one read again all that stays the same along the first, which then is
    to fit the level-2 cache; its own operand, as many rows as a register tile has, the level-1 cache. (Goto, van de
    Geijn, *Anatomy of high-performance matrix multiplication*, 2008, section 4.)
    """
    buffers, target = trials.program.buffers, trials.target
    again = found.read_again
    if len(again) != 2 or len(found.sums) != 1 or found.target.name not in buffers:
        return None
    first, second, terms = *again, found.sums[0]
    trips = {loop.var: loop.trips for loop in facts(trials.nests[0], buffers)}
    element = DTYPES[buffers[found.target.name].dtype]().itemsize

    def size_of(*accesses: Access) -> int:
        moving = ([var for var in (first, second, terms) if moves(access, var)] for access in accesses)
        return sum(prod(trips[var] for var in names) * element for names in moving)

    beside = {var: size_of(*(a for a in found.operands if not moves(a, var))) for var in again}
    near = target.l2_bytes // 2
    if beside[first] > near and beside[second] < beside[first]:
        first, second = second, first
    rows = isqrt(target.registers)
    own = [a for a in found.operands if moves(a, first)]
    vectors = any(stride(a, first, found.statement, buffers) == 1 for a in own)
    lanes_along_terms = all(stride(a, terms, found.statement, buffers) == 1 for a in found.operands)
    each = rows * element * (target.simd_width if vectors else 1)  # bytes of a term of the tile
    size, outside = trips[terms], False
    if (vectors or lanes_along_terms) and each * size > target.l1_bytes:
        least = LONG_SUM * target.simd_width if lanes_along_terms else target.simd_width
        size = _even(size, max(least, target.l1_bytes // 2 // each))
    if beside[first] > near:
        fits = _even(trips[terms], max(target.simd_width, near * trips[terms] // beside[first]))
        block = min(size, fits)
        tiles = -(-trips[first] // (rows * (target.simd_width if vectors else 1)))
        outside = 2 * size_of(found.target) * -(-trips[terms] // block) < beside[first] * tiles
        size = block if outside else size
    if first == again[0] and size == trips[terms]:
        return None
    why = f"of {first}, {each * size / 1000:.3g} kB are read again for each {second}"
    return Blocking(first, second, terms, size if size < trips[terms] else None, outside, why)


def _even(extent: int, most: int) -> int:
    """The greatest divisor that is not much smaller than ``most``, which is taken if there is none."""
    return next((size for size in range(min(most, extent), most // 2, -1) if extent % size == 0), min(most, extent))


def order_products(trials: Trials) -> None:
    """Each sum of products that has directly nested loops for itself gets an order of these, best for the caches."""
    ordered: set[str] = set()  # targets: what is done to one may change the loops of others
    while (found := _alone(trials, ordered)) is not None:
        ordered.add(found.target.text)
        _order_loops(trials, found)


def _alone(trials: Trials, ordered: Collection[str]) -> Contraction | None:
    """The next sum of products that has directly nested loops for itself."""
    nest, buffers = trials.nests[0], trials.program.buffers
    for found in [*contractions(nest, buffers), *correlations(nest, buffers)]:
        names = chain_of(trials, found)
        beside = [s for s in statements_of(nest) if names and s.variables()[-len(names) :] == names and s.accesses]
        if len(beside) == 1 and found.target.text not in ordered:
            return found
    return None


def _order_loops(trials: Trials, found: Contraction) -> None:
    """Directly nested loops around one contraction in the order of results, then terms; in blocks, if that keeps
    operands near."""
    names = chain_of(trials, found)
    results = [var for var in names if var in found.results]
    terms = [var for var in names if var in found.sums]
    chosen = blocking(trials, found)
    if chosen is not None and {chosen.first, chosen.second, chosen.terms} <= set(names):
        around = [var for var in results if var not in (chosen.first, chosen.second)]
        if chosen.size is None:
            if trials.apply(chosen.why, "reorder", [*around, chosen.first, chosen.second, chosen.terms]):
                return
        else:
            outer, inner = f"{chosen.terms}_outer", f"{chosen.terms}_inner"
            blocks = [outer, chosen.first] if chosen.outside else [chosen.first, outer]
            steps = [
                step(chosen.why, "tile_loop", chosen.terms, chosen.size),
                step(chosen.why, "reorder", [*around, *blocks, chosen.second, inner]),
            ]
            if trials.together(steps):
                return
    if names != [*results, *terms]:
        trials.apply("results outside of their terms", "reorder", [*results, *terms])


def in_blocks(found: Contraction) -> bool:
    """Whether loops over a contraction's terms are outside of one over its results."""
    names = [var for var in found.statement.variables() if var in (*found.results, *found.sums)]
    return names != [*found.results, *found.sums]
