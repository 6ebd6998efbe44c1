"""An order and blocks of the loops of a product of matrices, for the caches."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import isqrt, prod

from swirl.analysis.accesses import Access
from swirl.analysis.footprints import box_bytes
from swirl.analysis.loop_facts import Contraction, contractions, correlations, facts, moves
from swirl.analysis.sets import NotProved
from swirl.analysis.statements import Statement, statements_of
from swirl.analysis.trips import trips
from swirl.ir.nest import variable_of
from swirl.ir.paths import at
from swirl.schedule.rules.hardware import CHUNKS, COPIED, LONG_SUM, READ_OFTEN, collide
from swirl.schedule.rules.panels import in_panels
from swirl.schedule.rules.product import Blocking, Product, even, lanes, trips_of
from swirl.schedule.rules.trials import Trials, step

ROWS = 16
"""Rows that pass by at once, at the least: as many as processors fetch ahead, and as have room in the ways of a level-1
cache, where their distance is a power of two."""
STRIP = 128
"""Elements of a row, at the least, that are read one after the other: eight cache lines, of which processors fetch all
but the first ones ahead."""
FEW_CHUNKS = 8
"""Strips, at the least, that threads share where they are not copied: short pieces of rows come late from memory, which
costs more than many threads would gain."""
FEW_TERMS = 64
"""Terms from which on results may be stored between a product and what is done with them: a store and a load from
memory take as long as some tens of multiply-adds in registers."""
KEPT = 512
"""Terms of a block, at the least, after which sums whose lanes are far apart in memory are stored: each lane is a store
of its own then, to a line that is read before, where a term of all lanes is one instruction."""
PLAIN = "results outside of their terms"
"""The reason for an order without blocks."""


# --- strips ---------------------------------------------------------------------------------------------------
def in_strips(product: Product) -> Blocking | None:
    """Of the two arrays that move along the lanes, strips of the one of fewer rows stay in the level-2 cache, and
    the other one passes by once, in long rows; None where there is nothing to gain."""
    var = product.lanes(product.found.target)
    if var is None:
        return None
    rows, target = product.other(var), product.target
    few = min(product.trips[rows], product.trips[product.terms])
    added = product.trips[rows] < product.trips[product.terms]  # strips of the target, which the threads share
    copied = _collide(product, var, 2 * ROWS if added else few) and (not added or product.trips[rows] >= READ_OFTEN)
    chunk = product.trips[var] // (CHUNKS if copied else FEW_CHUNKS if added else 1)
    budget = COPIED if copied else target.l2_bytes // 8
    size = _strip(product, var, min(chunk, budget // (few * product.itemsize)))
    if size is None:
        return None
    blocks = f"{var}_outer", f"{var}_inner"
    kept = f"{few * size * product.itemsize / 1000:.3g} kB of it stay near"
    if added:
        if product.invariant_bytes(rows) <= target.l2_bytes or product.trips[product.terms] <= ROWS:
            return None
        order = (blocks[0], f"{product.terms}_outer", blocks[1], rows, f"{product.terms}_inner")
        why = f"{product.found.target.name} is added to in strips: {kept}, the operand passes by once"
        room = COPIED if copied else COPIED // 2
        block = even(product.trips[product.terms], max(ROWS, room // (size * product.itemsize)))
        return Blocking(order, {var: size, product.terms: block}, why)
    tile = isqrt(target.registers) * target.simd_width * product.trips[product.terms] * product.itemsize
    room = target.l1_bytes if copied else target.l1_bytes // 2
    if product.invariant_bytes(rows) <= target.l2_bytes // 4 or tile > room:
        return None
    why = f"the operand is read in strips: {kept}, {product.found.target.name} passes by once"
    return Blocking((blocks[0], rows, blocks[1], product.terms), {var: size}, why)


def _collide(product: Product, var: str, rows: int) -> bool:
    """Whether so many rows along a loop over results, of the operand that moves with it and the terms, take each
    other's place in the level-1 cache."""
    distances = ((product.stride(access, product.terms) or 0) * product.itemsize for access in product.moving(var))
    return any(collide(rows, each, product.target) for each in distances)


def _strip(product: Product, var: str, most: int) -> int | None:
    """A divisor of a loop's iterations, of whole vectors and not much shorter than :data:`STRIP`: the greatest of
    at most ``most``, else the smallest of at most four times that; None where there is none."""
    trips, width = product.trips[var], product.target.simd_width
    sizes = [size for size in range(width, trips, width) if trips % size == 0 and size * 2 >= STRIP]
    longer = [size for size in sizes if size <= max(STRIP, 4 * most)]
    return max((size for size in sizes if size <= most), default=min(longer, default=None))


# --- sums that are far apart ----------------------------------------------------------------------------------
def distant_sums(product: Product) -> Blocking | None:
    """Lanes of an operand that were turned for them, whose sums are far apart in memory: blocks of many terms, and
    the other operand outside; None where lanes do not run so."""
    var = product.lanes()
    if (
        var is None
        or product.lanes(product.found.target) is not None
        or product.stride(product.found.target, var) in (0, 1)
    ):
        return None
    rows, cached = product.other(var), product.target.l2_bytes // 2 // product.itemsize
    order, sizes = [rows, var], {}
    if product.trips[var] * KEPT > cached and (size := _strip(product, var, cached // KEPT)) is not None:
        sizes[var] = size
        order = [rows, f"{var}_inner"]
    terms = even(product.trips[product.terms], max(KEPT, cached // sizes.get(var, product.trips[var])))
    if terms < product.trips[product.terms]:
        sizes[product.terms] = terms
        order = [f"{product.terms}_outer", *order, f"{product.terms}_inner"]
    else:
        order = [*order, product.terms]
    if var in sizes:
        order = [f"{var}_outer", *order]
    block_bytes = terms * sizes.get(var, product.trips[var]) * product.itemsize
    return Blocking(tuple(order), sizes, f"of the turned operand {block_bytes / 1000:.3g} kB stay near")


# --- blocks ---------------------------------------------------------------------------------------------------
def in_term_blocks(product: Product) -> Blocking | None:
    """What keeps the operands near; None where they are.

    An iteration of the first loop has the second one read again all that stays the same along the first, which then
    is to fit the level-2 cache; its own operand, as many rows as a register tile has, the level-1 cache. (Goto, van
    de Geijn, *Anatomy of high-performance matrix multiplication*, 2008, section 4.)
    """
    target, trips, terms = product.target, product.trips[product.terms], product.terms
    first, second = product.again
    budget = target.l2_bytes // 2
    if product.invariant_bytes(first) > budget and product.invariant_bytes(second) < product.invariant_bytes(first):
        first, second = second, first
    rows = isqrt(target.registers)
    vectors = any(product.stride(access, first) == 1 for access in product.moving(first))
    lanes_along_terms = all(product.stride(access, terms) == 1 for access in product.found.operands)
    each = rows * product.itemsize * (target.simd_width if vectors else 1)  # bytes of a term of the tile
    size, outside = trips, False
    if (vectors or lanes_along_terms) and each * size > target.l1_bytes:
        least = LONG_SUM * target.simd_width if lanes_along_terms else target.simd_width
        size = even(size, max(least, target.l1_bytes // 2 // each))
    if product.invariant_bytes(first) > budget:
        fits = even(trips, max(target.simd_width, budget * trips // product.invariant_bytes(first)))
        block = min(size, fits)
        tiles = -(-product.trips[first] // (rows * (target.simd_width if vectors else 1)))
        outside = (
            2 * product.bytes_of(product.found.target) * -(-trips // block) < product.invariant_bytes(first) * tiles
        )
        size = block if outside else size
    why = f"of {first}, {each * size / 1000:.3g} kB are read again for each {second}"
    if size < trips:
        outer, inner = f"{terms}_outer", f"{terms}_inner"
        order = (outer, first, second, inner) if outside else (first, outer, second, inner)
        return Blocking(order, {terms: size}, why)
    return None if first == product.again[0] else Blocking((first, second, terms), {}, why)


# --- terms along several loops ----------------------------------------------------------------------------------
def in_parts(trials: Trials, found: Contraction) -> Blocking | None:
    """Parts of the terms along several loops pass by once for all results, which stay in the level-2 cache, as the
    gradient of weights over the rows of many images; None where operands stay near by themselves, nothing is read
    again, or what is touched is not known."""
    try:
        return _parts(trials, found)
    except NotProved:
        return None


def _parts(trials: Trials, found: Contraction) -> Blocking | None:
    """As :func:`in_parts`.

    Raises:
        NotProved: what is touched is not known.
    """
    nest, buffers = trials.nests[0], trials.program.buffers
    if len(found.sums) < 2 or found.target.name not in buffers:
        return None
    extents = {loop.var: loop.trips for loop in facts(nest, buffers)}
    budget = trials.target.l2_bytes // 2

    def bytes_of(accesses: Iterable[Access], moving: Collection[str]) -> int:
        fixed = [var for var in found.statement.variables() if var not in moving]
        own = (access for access in accesses if access.name in buffers)
        return sum(box_bytes([(found.statement, access)], buffers[access.name], fixed) for access in own)

    long = [var for var in found.read_again if extents[var] >= trials.target.simd_width]
    # Lanes along the terms are added up in each part.
    least = LONG_SUM * (1 if lanes(found, buffers, long, found.target) else trials.target.simd_width)
    every = {*found.results, *found.sums}
    again = [[a for a in found.operands if not moves(a, var)] for var in found.read_again]
    if (
        bytes_of([found.target], every) > budget // 2
        or max((bytes_of(one, every) for one in again), default=0) <= budget
    ):
        return None
    left = list(found.sums)  # inside
    while (each := bytes_of(found.operands, {*found.results, *left[1:]})) > budget and len(left) > 1:
        left.pop(0)
    var, *inside = left
    size = even(extents[var], max(1, budget // each))  # of an iteration of ``var``
    if each > budget or size * prod(extents[one] for one in inside) < least:
        return None
    passing = found.sums[: -len(left)]
    why = f"terms pass by once for all of {found.target.name}: {each * size / 1000:.3g} kB of them stay near"
    if size == 1:
        return Blocking((*passing, var, *found.results, *inside), {}, why)
    if size == extents[var]:
        return Blocking((*passing, *found.results, *left), {}, why)
    order = (*passing, f"{var}_outer", *found.results, f"{var}_inner", *inside)
    return Blocking(order, {var: size}, why)


def blocking(trials: Trials, found: Contraction) -> Blocking | None:
    """What keeps the operands of a product near; None where they are, or where nothing is known to."""
    return next(_blockings(trials, found), None)


def _blockings(trials: Trials, found: Contraction) -> Iterator[Blocking]:
    """All that keeps the operands of a product near, in order of preference."""
    product = Product.of(trials, found)
    before = in_parts(trials, found) if product is None else distant_sums(product)
    if before is not None:
        yield before
    ways: list[Callable[[], Blocking | None]] = [partial(in_panels, trials, found)]
    if product is not None:
        ways += [partial(in_strips, product), partial(in_term_blocks, product)]
    yield from (chosen for way in ways if (chosen := way()) is not None)


def _orders(trials: Trials, found: Contraction) -> Iterator[Blocking | None]:
    """What may be done with the loops of a product: the best blocking, if there is one; None for no blocks; then other
    blockings, and blocks of half and twice the size."""
    every = _blockings(trials, found)
    best = next(every, None)
    if best is not None:
        yield best
    yield None
    yield from (other for other in every if other.cut is None)
    if best is not None:
        trips = trips_of(trials)
        for var, size in best.sizes.items():
            for other in (size // 2, size * 2):
                if 1 < other < trips[var] and (trips[var] % other == 0 or trips[var] % size):
                    yield replace(best, sizes={**best.sizes, var: other}, why=f"blocks of {other} of {var}")


def gains_alone(trials: Trials, found: Contraction) -> bool:
    """Whether keeping operands near is worth loops of its own: panels of few terms are not, where other statements
    would have to read the results again."""
    chosen = blocking(trials, found)
    if chosen is None:
        return False
    terms = prod(trips(loop, found.statement.ranges) for loop in found.statement.loops if loop.var in found.sums)
    if terms >= FEW_TERMS or chosen != in_panels(trials, found):
        return True
    depth = found.statement.variables().index(found.read_again[0]) if found.read_again else 0
    path = found.statement.path[: found.statement.loop_depths[depth] + 1]
    inside = [s for s in statements_of(trials.nests[0]) if s.path[: len(path)] == path and s.accesses]
    return all_make(found, inside)


def all_make(found: Contraction, statements: Sequence[Statement]) -> bool:
    """Whether each of the statements writes what the contraction adds to, as it does."""
    return all(any(a.name == found.target.name and a.kind != "read" for a in s.accesses) for s in statements)


def chain_of(trials: Trials, found: Contraction) -> list[str]:
    """The loops around a contraction with nothing else in them but conditions, outermost first."""
    body, path, names = trials.nests[0].body, found.statement.path, list[str]()
    for depth in range(len(path) - 1, 0, -1):
        node = at(body, path[:depth])
        if not isinstance(node, (ast.For, ast.If)) or len(node.body) != 1 or node.orelse:
            break
        names = [variable_of(node), *names] if isinstance(node, ast.For) else names
    return names


def order_products(trials: Trials) -> None:
    """Each sum of products that has directly nested loops for itself gets an order of these, best for the caches.

    rewrite:
        for n in range(1024):                         for n in range(1024):
            for k in range(1024):                         for i_outer in range(0, 4096, 512):
                for i in range(4096):                         for k in range(1024):
                    y[n, k] += a[n, i] * w[k, i]   →              for i in range(512):
                                                                      y[n, k] += a[n, i_outer + i] * w[k, i_outer + i]

    Hardware: what is read again comes from a cache that holds it: rows of a register tile from the level-1 cache, what
    all tiles read from half of the level-2 cache. Memory gives each element once for all.
    """
    ordered: set[str] = set()  # targets: what is done to one may change the loops of others
    while (found := _next_unordered(trials, ordered)) is not None:
        before = _targets(trials)
        if not _cut(trials, found):
            _order_loops(trials, found)
            ordered |= {found.target.text} | (_targets(trials) - before)  # in blocks, it has other subscripts


def _targets(trials: Trials) -> set[str]:
    """What the sums of a nest add to."""
    return {a.text for s in statements_of(trials.nests[0]) for a in s.accesses if a.kind == "add"}


def _next_unordered(trials: Trials, ordered: Collection[str]) -> Contraction | None:
    """The next sum of products that has directly nested loops for itself."""
    nest, buffers = trials.nests[0], trials.program.buffers
    for found in [*contractions(nest, buffers), *correlations(nest, buffers)]:
        names = chain_of(trials, found)
        siblings = [s for s in statements_of(nest) if names and s.variables()[-len(names) :] == names and s.accesses]
        if len(siblings) == 1 and found.target.text not in ordered:
            return found
    return None


def _cut(trials: Trials, found: Contraction) -> bool:
    """Whether a ragged end has been cut off a loop of a contraction, so that both parts are to be ordered."""
    chosen, names = blocking(trials, found), chain_of(trials, found)
    if chosen is None or chosen.cut is None or not set(chosen.order) <= set(names):
        return False
    around = [var for var in names if var not in chosen.order]
    var, end = chosen.cut
    order = step(chosen.why, "reorder", [*around, *chosen.order])
    reordering = [order] if order.arguments[0] != names else []
    done = trials.together([*reordering, step(chosen.why, "split", var, [end])])
    if done:
        trials.give_own_names()
    return done


def _order_loops(trials: Trials, found: Contraction) -> None:
    """Directly nested loops around one contraction in the order of results, then terms; in blocks, if that keeps
    operands near."""
    names = chain_of(trials, found)
    results = [var for var in names if var in found.results]
    terms = [var for var in names if var in found.sums]

    def applies(chosen: Blocking | None) -> bool:
        if chosen is None:
            if names != [*results, *terms]:
                trials.apply(PLAIN, "reorder", [*results, *terms])
            return True
        if chosen.cut is not None or not chosen.loops <= set(names):
            return False
        around = [var for var in results if var not in (*found.read_again, *chosen.order)]
        tiles = [step(chosen.why, "tile_loop", var, size) for var, size in chosen.sizes.items()]
        return trials.together([*tiles, step(chosen.why, "reorder", [*around, *chosen.order])])

    trials.first("blocks", _orders(trials, found), applies, lambda chosen: PLAIN if chosen is None else str(chosen))


def in_blocks(found: Contraction) -> bool:
    """Whether loops over a contraction's terms are outside of one over its results."""
    names = [var for var in found.statement.variables() if var in (*found.results, *found.sums)]
    return names != [*found.results, *found.sums]
