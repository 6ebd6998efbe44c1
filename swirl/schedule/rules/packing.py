"""Contractions as products of matrices: operands that are copied so that lanes run along results."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise, takewhile
from math import prod

from swirl.analysis.accesses import Access
from swirl.analysis.loop_facts import Contraction, LoopFacts, contractions, facts, moves, perfect_chain, stride
from swirl.analysis.statements import statements_of
from swirl.analysis.trips import trips
from swirl.ir.nest import names_in
from swirl.schedule.rules.blocking import chain_of
from swirl.schedule.rules.hardware import COPIED, FAR, LONG_SUM, PAGE, PAGES, READ_MANY_TIMES, READ_OFTEN, collide
from swirl.schedule.rules.panels import Panels, in_panels
from swirl.schedule.rules.product import Product, innermost, trips_of
from swirl.schedule.rules.register_tiles import products_a_load
from swirl.schedule.rules.trials import Step, Trials, one_by_one, step

PRODUCTS_A_LOAD = 2
"""Of a register tile with lanes along the terms, with which the outer caches give as much as is multiplied: processors
multiply twice a cycle, and take about one vector a cycle from a level-2 cache, fewer from the next one."""
FULL = 0.85
"""Share of the lanes that have elements, from which on a copy for them pays: empty ones take as long as full ones."""


def pack(trials: Trials) -> None:
    """Copy operands of products that are read again and again in an order that memory does not have.

    rewrite:
        for h in range(8):                                     for h in range(8):
            for i in range(64):                                    for d in range(8):
                for j in range(64):                                    for j in range(64):
                    for d in range(8):                                     b_packed[d, j] = b[h, j, d]
                        y[h, i, j] += a[h, i, d] * b[h, j, d]  →   for i in range(64):
                                                                       for j in range(64):
                                                                           for d in range(8):
                                                                               y[h, i, j] += a[h, i, d] * b_packed[d, j]

    Hardware: lanes along ``j`` are one load of the copy, and as many of ``b`` as a vector has lanes; rows that are a
    power of two apart take each other's place in the level-1 cache, where the rows of a copy are neighbours.
    """
    pack_short_sums(trials)
    pack_distant_rows(trials)


# --- short sums ---------------------------------------------------------------------------------------------
def pack_short_sums(trials: Trials) -> None:
    """Of short sums, the operand that keeps lanes from running along results is copied, in rows along these: lanes
    along the terms would have to be added up."""
    targets = one_by_one(lambda: _products(trials), lambda found: found.target.text)  # a copy moves statements
    for found in targets:
        buffers, width = trials.program.buffers, trials.target.simd_width
        trips = trips_of(trials)
        if any(trips.get(var, 1) >= LONG_SUM * width and not _not_contiguous(trials, found, var) for var in found.sums):
            continue
        along = [var for var in found.results if stride(found.target, var, found.statement, buffers) == 1]
        rows = [var for var in along if trips.get(var, 1) >= width]
        if all(_not_contiguous(trials, found, var) for var in rows):
            trials.first("pack", sorted(rows, key=lambda var: -trips[var]), partial(_packed, trials, found))


def _products(trials: Trials) -> list[Contraction]:
    """The contractions of the nest that add to arrays."""
    buffers = trials.program.buffers
    return [found for found in contractions(trials.nests[0], buffers) if found.target.name in buffers]


def _not_contiguous(trials: Trials, found: Contraction, var: str) -> list[Access]:
    """The operands of a contraction that do not move to the next element along a loop."""
    buffers = trials.program.buffers
    return [a for a in found.operands if stride(a, var, found.statement, buffers) not in (0, 1)]


def _packed(trials: Trials, found: Contraction, var: str) -> bool:
    """Whether the operand that is far along a loop has been copied, in the innermost loop around it that reads the copy
    often."""
    access, *others = _not_contiguous(trials, found, var)
    buffer, varies = trials.program.buffers.get(access.name), [var in names_in(index) for index in access.own]
    if others or buffer is None or varies.count(True) != 1:
        return False
    order = innermost(buffer, access, var)
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
        readers = {path for path, _ in loop.references(access.name)}
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


# --- rows that are far apart ----------------------------------------------------------------------------------
def pack_distant_rows(trials: Trials) -> None:
    """Operands whose rows, a power of two apart, take each other's place in the level-1 cache, or are on many pages,
    are copied, where they are read often."""
    for found, access, var in one_by_one(lambda: _contiguous_operands(trials), lambda of: of[1].text):
        for loop, reads in _read_often(trials, found, access, var):
            if _rows_are_distant(trials, found, access, loop):
                why = f"its rows are far apart, each element is read {reads} times"
                order = innermost(trials.program.buffers[access.name], access, var)
                options = {} if order == sorted(order) else {"order": order}
                trials.apply(why, "pack", access.name, at=loop.var, **options)
                break


def _rows_are_distant(trials: Trials, found: Contraction, access: Access, loop: LoopFacts) -> bool:
    """Whether the rows of an operand that an iteration reads are too many for the level-1 cache, where they are, or on
    too many pages; and will be closer in a copy."""
    buffer = trials.program.buffers[access.name]
    for terms in (inner for inner in found.statement.loops if inner.var in found.sums):
        rows = trips(terms, found.statement.ranges)
        distance = abs(stride(access, terms.var, found.statement, trials.program.buffers) or 0) * buffer.itemsize
        inside = found.statement.variables().index(terms.var) > found.statement.variables().index(loop.var)
        costs = collide(rows, distance, trials.target) or (rows >= PAGES and distance >= PAGE)
        if inside and costs and loop.fits(access.name, rows * distance - 1):
            return True
    return False


def _contiguous_operands(trials: Trials) -> Iterator[tuple[Contraction, Access, str]]:
    """The operands of products that are contiguous along a loop over the results, with that loop."""
    buffers = trials.program.buffers
    for found in _products(trials):
        for access in found.operands:
            for var in found.results:
                if access.name in buffers and stride(access, var, found.statement, buffers) == 1:
                    yield found, access, var


# --- whole operands -----------------------------------------------------------------------------------------
def join_rows(trials: Trials) -> None:
    """Directly nested loops over results along which the same operands move become one, over the rows of a matrix.

    rewrite:
        for n in range(8):                                           for nt in range(128):
            for t in range(16):                                          for k in range(64):
                for k in range(64):                           →              for i in range(32):
                    for i in range(32):                                          y[nt, k] += w[k, i] * a[nt, i]
                        y[n, t, k] += w[k, i] * a[n, t, i]

    Hardware: a register tile, and a panel, have rows of all items: ends that are not whole ones come once.
    """
    for pair in one_by_one(lambda: _rows(trials), lambda pair: pair):
        trials.apply("rows of one matrix", "flatten", list(pair))


def _rows(trials: Trials) -> Iterator[tuple[str, str]]:
    for found in _products(trials):
        for pair in pairwise(found.statement.variables()):
            varies = [[moves(access, var) for access in found.operands] for var in pair]
            if set(pair) <= set(found.read_again) and varies[0] == varies[1]:
                yield pair


def transpose_operands(trials: Trials) -> bool:
    """Of a sum of products, along whose terms both operands are contiguous, one is copied with its results innermost:
    the smaller one of a long sum, where the other one comes from memory, or from outside of the level-2 cache for small
    register tiles; of a short sum the one that moves along the rows of the results.

    Lanes along the terms load a vector for each row of a register tile, and are added up in the end; lanes along
    results load one element for each row of the other operand.

    Where neither of them is, the one that does not move along the lanes is copied with its terms innermost: it is read
    from one end to the other, for each panel of the other one.

    rewrite:
        for n in range(64):                                for i in range(4096):
            for k in range(512):                               for n in range(64):
                for i in range(4096):                              a_packed[n, i] = a[n, i]
                    y[n, k] += w[k, i] * a[n, i]     →     for n in range(64):
                                                               for k in range(512):
                                                                   for i in range(4096):
                                                                       y[n, k] += w[k, i] * a_packed[n, i]
        where ``n`` is innermost in the memory of ``a_packed``

    Hardware: lanes that are added up take a register for each sum; along results, a register has the sums of a vector
    of them, and one element of the other operand is broadcast for all.

    Returns:
        whether it was: the nest of the copy is then where that of the products was, which follows.
    """
    for found in _products(trials):
        product = Product.of(trials, found)
        if product is not None and any(_transposes_operand(trials, product, var) for var in product.again):
            return True
    return False


def _transposes_operand(trials: Trials, product: Product, var: str) -> bool:
    """Whether the operand that moves along a loop over results has been turned."""
    found = product.found
    own, others = product.moving(var), product.moving(product.other(var))
    if len(own) != 1 or len(others) != 1 or own[0].name not in trials.program.buffers:
        return False
    along = [product.stride(access, product.terms) == 1 for access in (*own, *others)]
    if all(along):
        why = f"rows along {var}: {found.target.name} is summed in lanes of its results"
        pays = _lanes_pay(product, var) and in_panels(trials, found) is None and _read_once(trials, own[0])
        return pays and _copy_transposed(trials, product, own[0], var, why)
    if not any(along):
        why = f"rows along {product.terms}: it passes by for each panel of {others[0].name}"
        return _panels_pay(product, var) and _copy_transposed(trials, product, own[0], product.terms, why)
    return False


def _lanes_pay(product: Product, var: str) -> bool:
    """Whether lanes along a loop over results pay for a copy, where both operands are contiguous along the terms."""
    found, target, other = product.found, product.target, product.other(var)
    if product.trips[other] < READ_OFTEN:
        return False
    if product.trips[product.terms] <= LONG_SUM * target.simd_width:  # lanes that are added up cost as much as the sum
        pays = product.stride(found.target, var) == 1 and product.trips[other] >= READ_MANY_TIMES
    else:
        own, others = product.moving(var), product.moving(other)
        reuse = products_a_load(product.trips[var], product.trips[other], target.registers)
        near = FAR if reuse >= PRODUCTS_A_LOAD else target.l2_bytes
        pays = product.bytes_of(*others) > max(near, product.bytes_of(*own))
    lanes = -(-product.trips[var] // target.simd_width) * target.simd_width
    return pays and lanes > target.simd_width and product.trips[var] >= FULL * lanes


def _panels_pay(product: Product, rows: str) -> bool:
    """Whether panels pay for a copy of the operand that moves along the rows of the results."""
    panels = Panels.of(product.trials, product.found)
    if panels is None or panels.row == rows or product.trips[panels.row] < READ_MANY_TIMES:
        return False
    return product.trips[product.terms] >= LONG_SUM and panels.blocking() is not None


def _read_once(trials: Trials, access: Access) -> bool:
    """Whether one statement alone reads an operand: what else does may want its rows as they are."""
    known = (s for nest in trials.program.nests for s in statements_of(nest))
    return sum(a.name == access.name for s in known for a in s.accesses) == 1


def _copy_transposed(trials: Trials, product: Product, access: Access, var: str, why: str) -> bool:
    """Copy an operand with a loop's elements innermost, in the nest before the products'."""
    name, varies = access.name, [var in names_in(index) for index in access.own]
    if varies.count(True) != 1:
        return False
    trial = trials.scratch()
    if not trial.apply(why, "pack", name):
        return False
    (copied,) = trial.program.buffers.keys() - trials.program.buffers.keys()
    order = sorted(range(len(varies)), key=lambda dim: varies[dim])
    if not trial.together([step(why, "transpose", copied, order=order)]):
        return False
    trials.accept(trial)
    loops = [loop.var for loop in perfect_chain(trials.nests[0])]
    trials.apply("in the order of the copy's elements", "reorder", [loops[dim] for dim in order])
    return True
