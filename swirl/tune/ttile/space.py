"""Schemes above micro-kernels: a space that is drawn from (thesis, sections 5.3 to 5.6 and 6.2.1).

A scheme of the space has a micro-kernel, or two that together cover an extent exactly, and above it tiles whose sizes
divide what is left, in any order; the innermost loop is over a sum, whose registers it fills. Consecutive tiles of one
dimension are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd, prod
from random import Random

from swirl.errors import CommandError, LatteError
from swirl.schedule.command_log import Recorded
from swirl.tune.candidates import Subject
from swirl.tune.divisors import divisors
from swirl.tune.prepared import prepared, preparing
from swirl.tune.problem import Problem, problem_of
from swirl.tune.spaces import Point
from swirl.tune.ttile.metric import Cache, metric, suffixes
from swirl.tune.ttile.microkernels import MicroKernel
from swirl.tune.ttile.schemes import Atom, LambdaSeq, Pack, Scheme, T, Tfused, Tpar, U, ULambda, V, parse_scheme
from swirl.tune.ttile.tiles import Above, Kernel, fits, kernels_of, scheme_of
from swirl.tune.ttile.translation import translated
from swirl.tune.ttile.tree import tree_search

RANDOM, METRIC, TREE = "random", "metric", "tree"
WAYS = (RANDOM, METRIC, TREE)
"""How a point is chosen: by a random draw; as the one of :data:`FILTERED` draws with the least metric; or among the
best of a tree search above a random kernel."""
FILTERED, BRANCHES = 32, 4
FREE, REUSE = "free", "reuse"
LEVELS = 3
"""Tiles of each dimension where their order is fixed: one a cache."""
ENOUGH = 8
"""Iterations a thread from which on they need not be a multiple of the threads."""


# --- threads ------------------------------------------------------------------------------------------------
def in_parallel(scheme: Scheme, problem: Problem, threads: int, elements: int) -> Scheme | None:
    """A scheme for several threads; None where it has too few iterations for them.

    The tiles outside of the level-2 cache may be in any order: those of the output's dimensions come first, and as many
    of them as the threads need are one parallel loop (section 5.6). Where that is not enough, a tile of as many
    iterations as there are threads is split off a dimension whose iterations are a multiple of them (section 6.2.1).

    Args:
        scheme: without parallel loops.
        problem: of it.
        threads: that there are.
        elements: that the level-2 cache of a core holds.
    """
    if threads < 2:
        return scheme
    inner = len(scheme.atoms)
    for every in suffixes(scheme, problem):
        inside = [each.place for each in every if problem.footprint(each.sizes) <= elements]
        inner = min([inner, *inside])
    fixed = next((n for n, atom in enumerate(scheme.atoms) if not isinstance(atom, T)), len(scheme.atoms))
    outside = scheme.atoms[: min(inner, fixed)]
    shared = [atom for atom in outside if isinstance(atom, T) and atom.dimension in problem.results]
    rest = [atom for atom in outside if atom not in shared]
    loops: dict[str, int] = {}
    while shared and not enough(prod(loops.values()), threads):
        atom = shared.pop(0)
        loops[atom.dimension] = loops.get(atom.dimension, 1) * atom.count
    if prod(loops.values()) >= threads:
        return Scheme((parallel_atom(loops), *shared, *rest, *scheme.atoms[len(outside) :]))
    return _split_off(scheme, problem, threads)


def enough(iterations: int, threads: int) -> bool:
    """Whether iterations of a parallel loop keep so many threads busy."""
    return iterations >= threads and (iterations % threads == 0 or iterations >= ENOUGH * threads)


def parallel_atom(loops: Mapping[str, int]) -> Atom:
    """The atom of parallel loops: iterations by dimension, outermost first."""
    ((dimension, count), *others) = loops.items()
    return Tfused(tuple(loops.items())) if others else Tpar(count, dimension)


def _split_off(scheme: Scheme, problem: Problem, threads: int) -> Scheme | None:
    """A tile of as many iterations as there are threads, outermost. A factor of it is taken from each tile of the
    dimension, the outermost one first."""
    for dimension in problem.extents:
        if dimension not in problem.results:
            continue
        left, atoms = threads, list(scheme.atoms)
        for place, atom in enumerate(atoms):
            if isinstance(atom, T) and atom.dimension == dimension:
                common = gcd(left, atom.count)
                left //= common
                atoms[place] = T(atom.count // common, dimension)
        if left == 1:
            found = Scheme((Tpar(threads, dimension), *joined_tiles(atoms)))
            try:
                found.levels(problem.extents, problem.lanes)
            except CommandError:
                continue  # a part of a block was taken
            return found
    return None


# --- the space ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Schemes:
    """The schemes of a phase with a contraction.

    Args:
        subject: the phase.
        known: commands of the schedule that it has: its layouts stay, other nests keep what they have.
        table: of micro-kernels.
        threads: that run it.
        caches: of the machine.
        permutation: ``free``: tiles are in any order; ``reuse``: in that of :func:`reuse_order`, one tile of each
            dimension a cache.
        packing: whether copies of operands are drawn, too.
        ways: of :data:`WAYS`, in which points are chosen equally often.
        pairs: whether two micro-kernels may cover an extent together.

    Raises:
        CommandError: the phase has no contraction that schemes can tile; or no micro-kernel fits it.
    """

    subject: Subject
    known: tuple[Recorded, ...]
    table: tuple[MicroKernel, ...]
    threads: int
    caches: tuple[Cache, ...]
    permutation: str = FREE
    packing: bool = False
    ways: tuple[str, ...] = WAYS
    pairs: bool = True
    prepared: Subject = field(init=False)
    problem: Problem = field(init=False)
    kernels: tuple[Kernel, ...] = field(init=False)

    def __post_init__(self) -> None:
        begun = prepared(self.subject, self.known)
        found = problem_of(begun.program, begun.target.simd_width)
        kernels = tuple(each for each in kernels_of(found, self.table) if self.pairs or not each.along)
        if not kernels:
            where = ", ".join(f"{d} of {found.extents[d]}" for d in found.vectors) or "no dimension"
            raise CommandError(
                f"no micro-kernel fits {self.subject.program.name}: neighbours in memory are along {where}",
                way_out="another method; or blocks of a vector, by tile()",
            )
        for name, value in (("prepared", begun), ("problem", found), ("kernels", kernels)):
            object.__setattr__(self, name, value)

    def size(self) -> float:
        """The number of schemes, before they are parallel; twice as many for each operand that may be copied. Where the
        order of tiles is fixed, several sizes of tiles may be one scheme, and count as several."""
        packed = 2 ** len(self._operands) if self.packing else 1
        return float(packed * sum(self._count(kernel) for kernel in self.kernels))

    def _count(self, kernel: Kernel) -> int:
        above = Above.of(self.problem, kernel)
        return above.count() if self.permutation == FREE else prod(len(self._splits(above, d)) for d in above.outer)

    def every(self) -> Iterator[Scheme]:
        """All schemes without copies of operands, before they are parallel."""
        for kernel in self.kernels:
            above = Above.of(self.problem, kernel)
            if self.permutation == FREE:
                for tiles in above.every():
                    yield scheme_of(self.problem, kernel, tiles)
            else:
                yield from self._ordered(kernel, above)

    def draw(self, random: Random) -> Scheme:
        """A scheme, before it is parallel: a kernel or, as often, a pair of them; then tiles from the innermost one
        outwards (section 5.4.5)."""
        kernel = random.choice(random.choice(self._kinds))
        above = Above.of(self.problem, kernel)
        if self.permutation == REUSE:
            splits = {d: random.choice(self._splits(above, d)) for d in above.outer}
            return self._in_order(kernel, splits)
        sizes, last, tiles = above.begun(), "", []
        while choices := above.choices(sizes, last):
            last, size = random.choice(choices)
            sizes[last] = size
            tiles.append((last, size))
        return self._packed(scheme_of(self.problem, kernel, tiles), random)

    def sample(self, random: Random) -> Point | None:
        """A scheme as commands; None where it is refused, or has too few iterations for the threads."""
        way = random.choice(self.ways)
        if way == TREE:
            kernel = random.choice(random.choice(self._kinds))
            return self.point(random.choice(tree_search(self.problem, [kernel], self.caches, BRANCHES)[:BRANCHES]))
        drawn = [self.draw(random) for _ in range(FILTERED if way == METRIC else 1)]
        return self.point(min(drawn, key=self.metric) if len(drawn) > 1 else drawn[0])

    def metric(self, scheme: Scheme) -> float:
        """Of a scheme, on this machine."""
        return metric(scheme, self.problem, self.caches)

    def point(self, scheme: Scheme) -> Point | None:
        """The point of a scheme that is not parallel; None as of :meth:`sample`."""
        parallel = in_parallel(scheme, self.problem, self.threads, self._private.elements)
        if parallel is None:
            return None
        try:
            found = translated(self.prepared, parallel, self.known)
        except LatteError:
            return None
        before = preparing(self.subject, self.prepared)
        return Point(replace(found, commands=(*before, *found.commands)), {"scheme": str(scheme)}, str(parallel))

    def neighbours(self, point: Point, random: Random) -> Iterator[Point]:
        """Schemes of the same kernel with two tiles in another order, or of other sizes; or drawn again."""
        scheme = parse_scheme(str(point.knobs["scheme"])) if "scheme" in point.knobs else self.draw(random)
        while True:
            changed = self._changed(scheme, random)
            found = self.point(changed) if changed is not None else None
            if found is not None:
                yield found

    def _changed(self, scheme: Scheme, random: Random) -> Scheme | None:
        """A scheme after one change; None where it breaks a rule."""
        atoms = list(scheme.atoms)
        tiles = [place for place, atom in enumerate(atoms) if isinstance(atom, (T, LambdaSeq))]
        if len(tiles) < 2 or random.random() < 0.2:
            return self.draw(random)
        first, second = random.sample(tiles, 2)
        one, other = atoms[first], atoms[second]
        if isinstance(one, T) and isinstance(other, T) and one.dimension == other.dimension:
            factors = [each for each in divisors(one.count) if each > 1]
            moved = random.choice(factors) if factors else 1
            atoms[first], atoms[second] = T(one.count // moved, one.dimension), T(other.count * moved, one.dimension)
        else:
            atoms[first], atoms[second] = other, one
        made = Scheme(joined_tiles(atoms))
        try:
            made.levels(self.problem.extents, self.problem.lanes)
        except CommandError:
            return None
        return made if made != scheme else None

    # --- a fixed order --------------------------------------------------------------------------------------
    def _splits(self, above: Above, dimension: str) -> list[tuple[int, ...]]:
        """The sizes of a dimension's tiles, one a cache, each at least the one before it."""
        if dimension == above.along:
            return [(above.outer[dimension],) * LEVELS]
        inner, outer, blocks = above.inner[dimension], above.outer[dimension], above.blocks[dimension]
        sizes = [d for d in divisors(outer) if d % inner == 0 and fits(d, blocks)]
        found: list[tuple[int, ...]] = [(outer,)]
        for _ in range(LEVELS - 1):
            found = [(size, *rest) for rest in found for size in sizes if rest[0] % size == 0]
        return found

    def _ordered(self, kernel: Kernel, above: Above) -> Iterator[Scheme]:
        def chosen(dimensions: Sequence[str], splits: dict[str, tuple[int, ...]]) -> Iterator[Scheme]:
            if not dimensions:
                yield self._in_order(kernel, splits)
                return
            for each in self._splits(above, dimensions[0]):
                yield from chosen(dimensions[1:], {**splits, dimensions[0]: each})

        yield from chosen(list(above.outer), {})

    def _in_order(self, kernel: Kernel, splits: Mapping[str, tuple[int, ...]]) -> Scheme:
        above, tiles = Above.of(self.problem, kernel), []
        order = [d for d in reuse_order(self.problem, kernel) if d in splits]
        groups = [[d for d in order if d in above.sums], [d for d in order if d not in above.sums]]
        sizes = above.begun()
        for group in groups if self.problem.local else [order]:
            for level in range(LEVELS):
                for dimension in group:
                    size = splits[dimension][level]
                    if size != sizes[dimension]:
                        tiles.append((dimension, size))
                        sizes[dimension] = size
        made = scheme_of(self.problem, kernel, tiles)
        return Scheme(joined_tiles(made.atoms))

    @cached_property
    def _kinds(self) -> list[list[Kernel]]:
        """Kernels that divide the extents, and pairs."""
        found = [[each for each in self.kernels if not each.along], [each for each in self.kernels if each.along]]
        return [each for each in found if each]

    # --- copies of operands ---------------------------------------------------------------------------------
    @cached_property
    def _operands(self) -> list[str]:
        return [tensor.name for tensor in self.problem.tensors if not tensor.output]

    @property
    def _private(self) -> Cache:
        """The largest cache of a core's own."""
        return self.caches[min(1, len(self.caches) - 1)]

    def _packed(self, scheme: Scheme, random: Random) -> Scheme:
        """A scheme with copies of some operands, where what is inside overflows the first cache."""
        chosen = [name for name in self._operands if random.random() < 0.5] if self.packing else []
        if not chosen:
            return scheme
        (every, *_) = suffixes(scheme, self.problem)
        first = self.caches[0].elements
        place = next((each.place for each in every if self.problem.footprint(each.sizes) > first), 0)
        copies = next(n for n, atom in enumerate(scheme.atoms) if isinstance(atom, (U, ULambda, V)))
        place = min(place + 1, copies)
        return Scheme((*scheme.atoms[:place], *map(Pack, chosen), *scheme.atoms[place:]))


def joined_tiles(atoms: Sequence[Atom]) -> tuple[Atom, ...]:
    """Atoms without tiles of one iteration; consecutive ones of a dimension are one."""
    found: list[Atom] = []
    for atom in atoms:
        last = found[-1] if found else None
        if isinstance(atom, T) and atom.count == 1:
            continue
        if isinstance(atom, T) and isinstance(last, T) and last.dimension == atom.dimension:
            found[-1] = T(last.count * atom.count, atom.dimension)
        else:
            found.append(atom)
    return tuple(found)


def reuse_order(problem: Problem, kernel: Kernel) -> list[str]:
    """Dimensions from the innermost loop outwards, so that each adds least to the footprint for what it computes:
    Ioopt's objective for permutations, evaluated on a whole loop of each dimension above a kernel. The first one is a
    sum's."""
    sizes = dict(Above.of(problem, kernel).inner)
    if kernel.along:
        sizes[kernel.along] = max(copies for _, copies in kernel.parts) * max(1, sizes[kernel.along])
    left = [dimension for dimension in problem.extents if dimension in Above.of(problem, kernel).outer]
    found: list[str] = []
    while left:
        sums = [dimension for dimension in left if dimension in problem.sums]
        among = sums if sums and not found else left

        def growth(dimension: str) -> float:
            larger = {**sizes, dimension: problem.extents[dimension]}
            return problem.footprint(larger) / prod(larger.values())

        best = min(among, key=growth)
        sizes[best] = problem.extents[best]
        found.append(best)
        left.remove(best)
    return found
