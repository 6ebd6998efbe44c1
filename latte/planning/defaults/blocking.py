"""An order and blocks of the loops of a product of matrices, for the caches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import gcd, isqrt, prod

from latte.planning.defaults.register_tiles import products_a_load
from latte.planning.defaults.trials import Trials, step
from swirl.ir.accesses import Access
from swirl.ir.affine import bounds
from swirl.ir.buffers import Buffer
from swirl.ir.statements import statements_of
from swirl.loop_facts import Contraction, contractions, correlations, facts, moves, perfect_chains, stride
from swirl.target import Target
from swirl.transforms.rewrites.strides import LINE

LONG_SUM = 16
"""Vectors of terms from which on adding up the lanes of a sum takes little of its time."""
ROWS = 16
"""Rows that pass by at once: as many as processors fetch ahead, and as have room in the ways of a level-1 cache, where
their distance is a power of two."""
CHUNKS = 16
"""Iterations of the parallel loops that are enough for the threads, however many they are: results do not depend on
their number, and neither does the code."""
WAY = 4096
"""Bytes of a way of a level-1 cache: lines so far apart share one place, which has room for as many as there are ways
(8 or 12)."""
STRIP = 128
"""Elements of a row, at the least, that are read one after the other."""
COPIED = 2**16
"""Bytes of a copy that stays near."""
PANELS = range(2, 9)
"""Vectors of a row of a panel that stays in the level-1 cache."""
PIECE = 2 * LINE
"""Bytes of such a row, at the least: processors fetch lines in pairs."""
MANY_ROWS = 64
"""Rows of the other operand from which on copying a panel takes little of the time."""
KEPT = 512
"""Terms of a block, at the least, after which sums whose lanes are far apart in memory are stored."""


@dataclass(frozen=True)
class Blocking:
    """An order of the loops of a product, and blocks.

    Args:
        order: the loops, outermost first: of one in blocks ``…_outer`` and ``…_inner``.
        sizes: loop → iterations in a block.
        why: the reason.
    """

    order: tuple[str, ...]
    sizes: Mapping[str, int]
    why: str


def collide(rows: int, apart: int, target: Target) -> bool:
    """Whether rows take each other's place in the level-1 cache: so many, each ``apart`` bytes after the last one. In
    it, they take as much room as if all that two rows' places have in common was theirs."""
    return apart != 0 and rows * gcd(apart, WAY) > target.l1_bytes


def lanes(found: Contraction, buffers: Mapping[str, Buffer], loops: Iterable[str], *accesses: Access) -> str | None:
    """The first of some loops along which a contraction's operands, one of which moves with it, and other accesses are
    contiguous."""
    for var in loops:
        own, others = ([stride(a, var, found.statement, buffers) for a in some] for some in (found.operands, accesses))
        if all(one in (0, 1) for one in (*own, *others)) and 1 in own:
            return var
    return None


@dataclass(frozen=True)
class Product:
    """A contraction with two loops over results and one over terms, whatever loops are around.

    Args:
        found: the contraction.
        again: the loops over results along which an operand stays the same, outermost first.
        terms: the loop over the terms.
        trips: loop → iterations.
        trials: of the nest that it is in.
    """

    found: Contraction
    again: tuple[str, str]
    terms: str
    trips: Mapping[str, int]
    trials: Trials

    @staticmethod
    def of(trials: Trials, found: Contraction) -> Product | None:
        """The contraction as a product; None where it is not one, or adds to a local."""
        again = found.read_again
        if len(again) != 2 or len(found.sums) != 1 or found.target.name not in trials.program.buffers:
            return None
        trips = {loop.var: loop.trips for loop in facts(trials.nests[0], trials.program.buffers)}
        return Product(found, (again[0], again[1]), found.sums[0], trips, trials)

    @property
    def target(self) -> Target:
        return self.trials.target

    @property
    def element(self) -> int:
        """Bytes of an element."""
        return self.trials.program.buffers[self.found.target.name].itemsize

    def bytes_of(self, *accesses: Access) -> int:
        """Those of all elements that accesses reach."""
        moving = ([var for var in (*self.again, self.terms) if moves(access, var)] for access in accesses)
        return sum(prod(self.trips[var] for var in names) * self.element for names in moving)

    def moving(self, var: str) -> list[Access]:
        """The operands that move with a loop."""
        return [access for access in self.found.operands if moves(access, var)]

    def beside(self, var: str) -> int:
        """Bytes of the operands that stay the same along a loop."""
        return self.bytes_of(*(access for access in self.found.operands if not moves(access, var)))

    def stride(self, access: Access, var: str) -> int | None:
        """Elements in memory between neighbouring iterations of a loop."""
        return stride(access, var, self.found.statement, self.trials.program.buffers)

    def other(self, var: str) -> str:
        """The loop over results that is not ``var``."""
        return self.again[0] if var == self.again[1] else self.again[1]

    def lanes(self, *accesses: Access) -> str | None:
        """The loop over results along which accesses and an operand that moves with it are contiguous."""
        return lanes(self.found, self.trials.program.buffers, self.again, *accesses)

    # --- strips -----------------------------------------------------------------------------------------------
    def in_strips(self) -> Blocking | None:
        """Of the two arrays that move along the lanes, strips of the one of fewer rows stay in the level-2 cache, and
        the other one passes by once, in long rows; None where there is nothing to gain."""
        var = self.lanes(self.found.target)
        if var is None:
            return None
        rows, target = self.other(var), self.target
        few = min(self.trips[rows], self.trips[self.terms])
        added = self.trips[rows] < self.trips[self.terms]  # strips of the target, which the threads share
        copied = self._collide(var, 2 * ROWS if added else few)
        chunk = self.trips[var] // CHUNKS if added or copied else self.trips[var]
        near = COPIED if copied else target.l2_bytes // 8
        size = self._strip(var, min(chunk, near // (few * self.element)))
        if size is None:
            return None
        blocks = f"{var}_outer", f"{var}_inner"
        kept = f"{few * size * self.element / 1000:.3g} kB of it stay near"
        if added:
            if self.beside(rows) <= target.l2_bytes or self.trips[self.terms] <= ROWS:
                return None
            order = (blocks[0], f"{self.terms}_outer", blocks[1], rows, f"{self.terms}_inner")
            why = f"{self.found.target.name} is added to in strips: {kept}, the operand passes by once"
            held = _even(self.trips[self.terms], max(ROWS, COPIED // (size * self.element))) if copied else ROWS
            return Blocking(order, {var: size, self.terms: held}, why)
        tile = isqrt(target.registers) * target.simd_width * self.trips[self.terms] * self.element
        room = target.l1_bytes if copied else target.l1_bytes // 2
        if self.beside(rows) <= target.l2_bytes // 4 or tile > room:
            return None
        why = f"the operand is read in strips: {kept}, {self.found.target.name} passes by once"
        return Blocking((blocks[0], rows, blocks[1], self.terms), {var: size}, why)

    def _collide(self, var: str, rows: int) -> bool:
        """Whether so many rows along a loop over results, of the operand that moves with it and the terms, take each
        other's place in the level-1 cache."""
        apart = ((self.stride(access, self.terms) or 0) * self.element for access in self.moving(var))
        return any(collide(rows, each, self.target) for each in apart)

    def _strip(self, var: str, most: int) -> int | None:
        """A divisor of a loop's iterations, of whole vectors and not much shorter than :data:`STRIP`: the greatest of
        at most ``most``, else the smallest of at most four times that; None where there is none."""
        trips, width = self.trips[var], self.target.simd_width
        sizes = [size for size in range(width, trips, width) if trips % size == 0 and size * 2 >= STRIP]
        longer = [size for size in sizes if size <= max(STRIP, 4 * most)]
        return max((size for size in sizes if size <= most), default=min(longer, default=None))

    # --- panels -----------------------------------------------------------------------------------------------
    def in_panels(self) -> Blocking | None:
        """Of the operand that moves along the lanes, panels of a few vectors stay in the level-1 cache; the other one,
        contiguous along the terms, passes by for each. None where it is not contiguous, or :meth:`panels` has none.

        Source: Goto, van de Geijn, *Anatomy of high-performance matrix multiplication*, 2008, section 4.
        """
        var = self.lanes(self.found.target)
        if var is None or any(self.stride(access, self.terms) != 1 for access in self.moving(self.other(var))):
            return None
        return self.panels(var)

    def panels(self, var: str) -> Blocking | None:
        """Panels along a loop over results, if the other operand was contiguous along the terms; None where it has few
        rows, the level-2 cache has room for all panels, or their number would be small, or not whole."""
        rows, width, target = self.other(var), self.target.simd_width, self.target
        # Of vectors shorter than a cache line, a tile reads parts of lines: more bytes from the level-2 cache.
        near = target.l2_bytes // (2 if width * self.element >= LINE else 8)
        vectors, rest = divmod(self.trips[var], width)
        sizes = [size for size in PANELS if vectors % size == 0 and size * width * self.element >= PIECE]
        sizes = [size for size in sizes if vectors // size >= CHUNKS]
        if rest or not sizes or self.trips[rows] < MANY_ROWS or self.beside(rows) <= near:
            return None
        size = max(sizes, key=lambda each: (products_a_load(self.trips[rows], each, target.registers), -each)) * width
        terms = _even(self.trips[self.terms], max(1, 2 * target.l1_bytes // 3 // (size * self.element)))
        why = f"a panel of {terms * size * self.element / 1000:.3g} kB stays in the level-1 cache for all {rows}"
        outer, inner = f"{var}_outer", f"{var}_inner"
        if terms == self.trips[self.terms]:
            return Blocking((outer, rows, inner, self.terms), {var: size}, why)
        order = (outer, f"{self.terms}_outer", rows, inner, f"{self.terms}_inner")
        return Blocking(order, {var: size, self.terms: terms}, why)

    # --- sums that are far apart ------------------------------------------------------------------------------
    def far_apart(self) -> Blocking | None:
        """Lanes of an operand that were turned for them, whose sums are far apart in memory: blocks of many terms, and
        the other operand outside; None where lanes do not run so."""
        var = self.lanes()
        if var is None or self.lanes(self.found.target) is not None or self.stride(self.found.target, var) in (0, 1):
            return None
        rows, near = self.other(var), self.target.l2_bytes // 2 // self.element
        order, sizes = [rows, var], {}
        if self.trips[var] * KEPT > near and (size := self._strip(var, near // KEPT)) is not None:
            sizes[var] = size
            order = [rows, f"{var}_inner"]
        terms = _even(self.trips[self.terms], max(KEPT, near // sizes.get(var, self.trips[var])))
        if terms < self.trips[self.terms]:
            sizes[self.terms] = terms
            order = [f"{self.terms}_outer", *order, f"{self.terms}_inner"]
        else:
            order = [*order, self.terms]
        if var in sizes:
            order = [f"{var}_outer", *order]
        held = terms * sizes.get(var, self.trips[var]) * self.element
        return Blocking(tuple(order), sizes, f"of the turned operand {held / 1000:.3g} kB stay near")

    # --- blocks -----------------------------------------------------------------------------------------------
    def in_blocks(self) -> Blocking | None:
        """What keeps the operands near; None where they are.

        An iteration of the first loop has the second one read again all that stays the same along the first, which then
        is to fit the level-2 cache; its own operand, as many rows as a register tile has, the level-1 cache. (Goto, van
        de Geijn, *Anatomy of high-performance matrix multiplication*, 2008, section 4.)
        """
        target, trips, terms = self.target, self.trips[self.terms], self.terms
        first, second = self.again
        near = target.l2_bytes // 2
        if self.beside(first) > near and self.beside(second) < self.beside(first):
            first, second = second, first
        rows = isqrt(target.registers)
        vectors = any(self.stride(access, first) == 1 for access in self.moving(first))
        lanes_along_terms = all(self.stride(access, terms) == 1 for access in self.found.operands)
        each = rows * self.element * (target.simd_width if vectors else 1)  # bytes of a term of the tile
        size, outside = trips, False
        if (vectors or lanes_along_terms) and each * size > target.l1_bytes:
            least = LONG_SUM * target.simd_width if lanes_along_terms else target.simd_width
            size = _even(size, max(least, target.l1_bytes // 2 // each))
        if self.beside(first) > near:
            fits = _even(trips, max(target.simd_width, near * trips // self.beside(first)))
            block = min(size, fits)
            tiles = -(-self.trips[first] // (rows * (target.simd_width if vectors else 1)))
            outside = 2 * self.bytes_of(self.found.target) * -(-trips // block) < self.beside(first) * tiles
            size = block if outside else size
        why = f"of {first}, {each * size / 1000:.3g} kB are read again for each {second}"
        if size < trips:
            outer, inner = f"{terms}_outer", f"{terms}_inner"
            order = (outer, first, second, inner) if outside else (first, outer, second, inner)
            return Blocking(order, {terms: size}, why)
        return None if first == self.again[0] else Blocking((first, second, terms), {}, why)


# --- terms along several loops ----------------------------------------------------------------------------------
def in_parts(trials: Trials, found: Contraction) -> Blocking | None:
    """Parts of the terms along several loops pass by once for all results, which stay in the level-2 cache, as the
    gradient of weights over the rows of many images; None where operands stay near by themselves, or nothing is read
    again."""
    nest, buffers = trials.nests[0], trials.program.buffers
    if len(found.sums) < 2 or found.target.name not in buffers:
        return None
    loops = {loop.var: loop.loop for loop in facts(nest, buffers)}
    if any(loop.extent is None for loop in loops.values()):
        return None
    extents = {var: loop.extent or 0 for var, loop in loops.items()}
    near = trials.target.l2_bytes // 2

    def reached(accesses: Iterable[Access], moving: Collection[str]) -> int:
        return sum(_reached(access, {var: extents[var] for var in moving}, buffers) for access in accesses)

    long = [var for var in found.read_again if extents[var] >= trials.target.simd_width]
    if lanes(found, buffers, long, found.target) is None:
        return None  # they run along the terms: each part would add them up
    every = {*found.results, *found.sums}
    again = [[a for a in found.operands if not moves(a, var)] for var in found.read_again]
    if reached([found.target], every) > near // 2 or max((reached(one, every) for one in again), default=0) <= near:
        return None
    left = list(found.sums)  # inside
    while (each := reached(found.operands, {*found.results, *left[1:]})) > near and len(left) > 1:
        left.pop(0)
    var, *inside = left
    size = _even(extents[var], max(1, near // each))  # of an iteration of ``var``
    if each > near or size * prod(extents[one] for one in inside) < LONG_SUM:
        return None
    passing = found.sums[: -len(left)]
    why = f"terms pass by once for all of {found.target.name}: {each * size / 1000:.3g} kB of them stay near"
    if size == 1:
        return Blocking((*passing, var, *found.results, *inside), {}, why)
    if size == extents[var]:
        return Blocking((*passing, *found.results, *left), {}, why)
    order = (*passing, f"{var}_outer", *found.results, f"{var}_inner", *inside)
    return Blocking(order, {var: size}, why)


def _reached(access: Access, extents: Mapping[str, int], buffers: Mapping[str, Buffer]) -> int:
    """Bytes of the smallest box around the elements that an access reaches along loops, at the most all."""
    buffer = buffers.get(access.name)
    if buffer is None:
        return 0
    ranges = {var: (0, extents.get(var, 1) - 1) for names in access.names for var in names}
    size = buffer.itemsize
    for index, extent in zip(access.own, buffer.shape, strict=True):
        limits = bounds(index, ranges)
        size *= extent if limits is None else min(extent, limits[1] - limits[0] + 1)
    return size


def blocking(trials: Trials, found: Contraction) -> Blocking | None:
    """What keeps the operands of a product near; None where they are, or where nothing is known to."""
    product = Product.of(trials, found)
    if product is None:
        return in_parts(trials, found)
    return product.far_apart() or product.in_panels() or product.in_strips() or product.in_blocks()


def _even(extent: int, most: int) -> int:
    """The greatest divisor that is not much smaller than ``most``, which is taken if there is none."""
    return next((size for size in range(min(most, extent), most // 2, -1) if extent % size == 0), min(most, extent))


def chain_of(trials: Trials, found: Contraction) -> list[str]:
    """The directly nested loops around a contraction, outermost first."""
    chains = ([loop.var for loop in chain] for chain in perfect_chains(trials.nests[0]))
    return next((names for names in chains if found.statement.variables()[-len(names) :] == names), [])


def order_products(trials: Trials) -> None:
    """Each sum of products that has directly nested loops for itself gets an order of these, best for the caches."""
    ordered: set[str] = set()  # targets: what is done to one may change the loops of others
    while (found := _alone(trials, ordered)) is not None:
        before = _targets(trials)
        _order_loops(trials, found)
        ordered |= {found.target.text} | (_targets(trials) - before)  # in blocks, it has other subscripts


def _targets(trials: Trials) -> set[str]:
    """What the sums of a nest add to."""
    return {a.text for s in statements_of(trials.nests[0]) for a in s.accesses if a.kind == "add"}


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
    if chosen is not None and {*found.read_again, *found.sums} <= set(names):
        around = [var for var in results if var not in (*found.read_again, *chosen.order)]
        tiles = [step(chosen.why, "tile_loop", var, size) for var, size in chosen.sizes.items()]
        if trials.together([*tiles, step(chosen.why, "reorder", [*around, *chosen.order])]):
            return
    if names != [*results, *terms]:
        trials.apply("results outside of their terms", "reorder", [*results, *terms])


def in_blocks(found: Contraction) -> bool:
    """Whether loops over a contraction's terms are outside of one over its results."""
    names = [var for var in found.statement.variables() if var in (*found.results, *found.sums)]
    return names != [*found.results, *found.sums]
