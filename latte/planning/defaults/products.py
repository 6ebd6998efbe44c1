"""Contractions as products of matrices: operands that are copied so that lanes run along results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, takewhile
from math import prod

from latte.planning.defaults.blocking import COPIED, LONG_SUM, Product, chain_of, collide
from latte.planning.defaults.trials import Step, Trials, step
from swirl.ir.accesses import Access
from swirl.ir.nest import names_in
from swirl.ir.statements import statements_of
from swirl.loop_facts import Contraction, LoopFacts, contractions, facts, moves, perfect_chain, stride, trips

READ_OFTEN = 32
"""Reads of each element that make up for copying it."""
READ_MANY_TIMES = 256
"""The same where neighbours in the copy are rows apart in the operand."""
FULL = 0.85
"""Share of the lanes that have elements, from which on a copy for them pays."""


def pack(trials: Trials) -> None:
    """Copy operands of products that are read again and again in an order that memory does not have."""
    pack_short_sums(trials)
    pack_rows_apart(trials)


# --- short sums ---------------------------------------------------------------------------------------------
def pack_short_sums(trials: Trials) -> None:
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
    loop, reads = next(_read_often(trial, found, access, var), (None, 0))
    why = f"rows along {var}, each element read {reads} times"
    return loop is not None and trials.together([*first, step(why, "pack", access.name, at=loop.var, order=order)])


def _read_often(trials: Trials, found: Contraction, access: Access, var: str) -> Iterator[tuple[LoopFacts, int]]:
    """The loops around one over the results, innermost first, in whose iterations an operand is read often from what
    stays near, with how often."""
    every = facts(trials.nests[0], trials.program.buffers)
    around = [loop for loop in every if found.statement.path[: loop.depth] == loop.path]
    own = {name for index in access.own for name in names_in(index)}
    for loop in reversed(list(takewhile(lambda loop: loop.var != var, around))):
        reads = prod(inner.trips for inner in around if loop.contains(inner) and inner.var not in own)
        readers = {use.statement.path for use in loop.uses if use.access.name == access.name}
        if readers == {found.statement.path} and reads >= READ_OFTEN and loop.fits(access.name, COPIED):
            yield loop, reads


def _row_innermost(trials: Trials, found: Contraction, var: str) -> list[Step]:
    """What makes a loop the innermost of those over the results, where these are directly nested."""
    names = chain_of(trials, found)
    results = [name for name in names if name in found.results]
    if var not in results or results[-1] == var:
        return []
    wanted = [*(name for name in results if name != var), var, *(name for name in names if name in found.sums)]
    return [step(f"{var} is the innermost of the results", "reorder", wanted)]


# --- rows that take each other's place ------------------------------------------------------------------------
def pack_rows_apart(trials: Trials) -> None:
    """Operands whose rows, a power of two apart, take each other's place in the level-1 cache are copied, where they
    are read often."""
    tried: set[str] = set()
    while (pair := next((p for p in _rows_apart(trials) if p[1].text not in tried), None)) is not None:
        found, access, var = pair
        tried.add(access.text)
        for loop, reads in _read_often(trials, found, access, var):
            if _collide(trials, found, access, loop):
                why = f"its rows take each other's place in the level-1 cache, each element is read {reads} times"
                trials.apply(why, "pack", access.name, at=loop.var)
                break


def _collide(trials: Trials, found: Contraction, access: Access, loop: LoopFacts) -> bool:
    """Whether the rows of an operand that an iteration reads are too many for the level-1 cache, where they are, and
    will be closer in a copy."""
    buffer = trials.program.buffers[access.name]
    for terms in (inner for inner in found.statement.loops if inner.var in found.sums):
        rows = trips(terms, found.statement.ranges)
        apart = abs(stride(access, terms.var, found.statement, trials.program.buffers) or 0) * buffer.itemsize
        inside = found.statement.variables().index(terms.var) > found.statement.variables().index(loop.var)
        if inside and collide(rows, apart, trials.target) and loop.fits(access.name, rows * apart - 1):
            return True
    return False


def _rows_apart(trials: Trials) -> Iterator[tuple[Contraction, Access, str]]:
    """The operands of products that are contiguous along a loop over the results, with that loop."""
    buffers = trials.program.buffers
    for found in _products(trials):
        for access in found.operands:
            for var in found.results:
                if access.name in buffers and stride(access, var, found.statement, buffers) == 1:
                    yield found, access, var


# --- whole operands -----------------------------------------------------------------------------------------
def join_rows(trials: Trials) -> None:
    """Directly nested loops over results along which the same operands move become one, over the rows of a matrix."""
    tried: set[tuple[str, str]] = set()
    while (pair := next((pair for pair in _rows(trials) if pair not in tried), None)) is not None:
        tried.add(pair)
        trials.apply("rows of one matrix", "flatten", list(pair))


def _rows(trials: Trials) -> Iterator[tuple[str, str]]:
    for found in _products(trials):
        for pair in pairwise(found.statement.variables()):
            moved = [[moves(access, var) for access in found.operands] for var in pair]
            if set(pair) <= set(found.read_again) and moved[0] == moved[1]:
                yield pair


def turn(trials: Trials) -> bool:
    """Of a sum of products, along whose terms both operands are contiguous, one is copied with its results innermost:
    the smaller one of a long sum, where the other one does not stay in the level-2 cache; of a short sum the one that
    moves along the rows of the results.

    Lanes along the terms load a vector for each row of a register tile, and are added up in the end; lanes along
    results load one element for each row of the other operand.

    Returns:
        whether it was: the nest of the copy is then where that of the products was, which follows.
    """
    for found in _products(trials):
        product = Product.of(trials, found)
        if product is not None and any(_turned(trials, product, var) for var in product.again):
            return True
    return False


def _turned(trials: Trials, product: Product, var: str) -> bool:
    found, target, program = product.found, trials.target, trials.program
    other = product.other(var)
    own, beside = product.moving(var), product.moving(other)
    if len(own) != 1 or len(beside) != 1 or product.trips[other] < READ_OFTEN:
        return False
    if any(product.stride(access, product.terms) != 1 for access in (*own, *beside)):
        return False
    if product.trips[product.terms] <= LONG_SUM * target.simd_width:  # lanes that are added up cost as much as the sum
        pays = product.stride(found.target, var) == 1 and product.trips[other] >= READ_MANY_TIMES
    else:
        pays = product.bytes_of(*beside) > max(target.l2_bytes, product.bytes_of(*own))
    lanes = -(-product.trips[var] // target.simd_width) * target.simd_width
    full = lanes > target.simd_width and product.trips[var] >= FULL * lanes
    name, moved = own[0].name, [var in names_in(index) for index in own[0].own]
    readers = [s.path for nest in program.nests for s in statements_of(nest) if any(a.name == name for a in s.accesses)]
    if (
        not (pays and full)
        or name not in program.buffers
        or moved.count(True) != 1
        or readers != [found.statement.path]
    ):
        return False  # what else reads it may want its rows as they are
    why = f"rows along {var}: {found.target.name} is summed in lanes of its results"
    trial = replace(trials, nest=None).scratch()
    if not trial.apply(why, "pack", name):
        return False
    (copied,) = trial.program.buffers.keys() - program.buffers.keys()
    order = sorted(range(len(moved)), key=lambda dim: moved[dim])
    if not trial.together([step(why, "transpose", copied, order=order)]):
        return False
    trials.accept(trial)
    loops = [loop.var for loop in perfect_chain(trials.nests[0])]
    trials.apply("in the order of the copy's elements", "reorder", [loops[dim] for dim in order])
    return True
