"""Micro-kernels on the dimensions of a problem, and tiles above them (thesis, sections 5.3 and 5.4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import comb, factorial, gcd

from swirl.tune.divisors import divisors
from swirl.tune.problem import Problem
from swirl.tune.ttile.microkernels import MicroKernel
from swirl.tune.ttile.schemes import Atom, LambdaSeq, Scheme, T, U, ULambda, V


@dataclass(frozen=True)
class Kernel:
    """A micro-kernel on the dimensions of a problem, or two that cover an extent together.

    Args:
        vector: dimension of the lanes.
        copies: of the other dimensions, and of the vectors; sums first, in the order of the atoms.
        along: dimension in which there are two.
        parts: iterations and copies of each, along it.
    """

    vector: str
    copies: tuple[tuple[str, int], ...]
    along: str = ""
    parts: tuple[tuple[int, int], ...] = ()

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """The inner end of a scheme."""
        made: list[Atom] = []
        for dimension, count in self.copies:
            if dimension == self.along:
                made.append(ULambda(dimension))
            elif count > 1:
                made.append(U(count, dimension))
        return (*made, V(self.vector))


def kernels_of(problem: Problem, table: Sequence[MicroKernel]) -> list[Kernel]:
    """The micro-kernels of a table that divide the extents of a problem, and the pairs that cover one.

    Copies along ``w`` and ``h`` are of any dimensions of the output but that of the lanes, those along ``r`` and ``s``
    of sums that share a subscript with one of these, those along ``c`` of the other sums.
    """
    found: dict[Kernel, None] = {}
    bound: dict[tuple[str, tuple[tuple[str, int], ...]], None] = {}
    for vector in problem.vectors:
        if problem.extents[vector] % problem.lanes == 0:
            for kernel in table:
                for copies in _bound(problem, vector, kernel):
                    bound[vector, copies] = None
    rests: dict[tuple[str, str, tuple[tuple[str, int], ...]], set[int]] = {}
    for vector, copies in bound:
        units = {d: problem.extents[d] // (problem.lanes if d == vector else 1) for d in problem.extents}
        bad = [d for d, count in copies if units[d] % count or not _whole(problem, d, count, vector)]
        if not bad:
            found[Kernel(vector, copies)] = None
        counts = dict(copies)
        for along in problem.extents:
            if along in problem.results and set(bad) <= {along} and _free(problem, along, vector):
                rest = tuple((d, 0 if d == along else counts.get(d, 1)) for d in _order(problem, vector))
                rests.setdefault((vector, along, rest), set()).add(counts.get(along, 1))
    for (vector, along, rest), several in rests.items():
        extent = problem.extents[along] // (problem.lanes if along == vector else 1)
        kept = tuple((d, count) for d, count in rest if d == along or count > 1)
        for larger in sorted(several, reverse=True):
            for smaller in sorted(each for each in several if each < larger):
                for parts in _covers(extent, larger, smaller):
                    found[Kernel(vector, kept, along, parts)] = None
    return list(found)


def _covers(extent: int, larger: int, smaller: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """All ways to cover an extent by both."""
    if extent % gcd(larger, smaller) == 0:
        for times in range(1, (extent - smaller) // larger + 1):
            others, rest = divmod(extent - times * larger, smaller)
            if not rest:
                yield ((times, larger), (others, smaller))


def _bound(problem: Problem, vector: str, kernel: MicroKernel) -> Iterator[tuple[tuple[str, int], ...]]:
    """The copies of a micro-kernel on each choice of dimensions, without those of 1."""
    pixels = [d for d in problem.extents if d in problem.results and d != vector]
    taps = [d for d in problem.sums if shares_subscript(problem, d)]
    channels = [d for d in problem.sums if d not in taps]
    order = _order(problem, vector)
    for wide in _chosen(pixels, (kernel.w, kernel.h)):
        for tall in _chosen(taps, (kernel.s, kernel.r)):
            for deep in _chosen(channels, (kernel.c,)):
                counts = {**wide, **tall, **deep, vector: kernel.k}
                yield tuple((d, counts[d]) for d in order if counts.get(d, 1) > 1)


def _chosen(dimensions: Sequence[str], counts: Sequence[int]) -> Iterator[dict[str, int]]:
    wanted = [count for count in counts if count > 1]
    for chosen in permutations(dimensions, len(wanted)):
        yield dict(zip(chosen, wanted, strict=True))


def shares_subscript(problem: Problem, dimension: str) -> bool:
    """Whether a sum shares a subscript with another dimension, as a tap does with a pixel."""
    own = [dict(each.terms) for tensor in problem.tensors for each in tensor.subscripts]
    return any(dimension in terms and len(terms) > 1 for terms in own)


def _order(problem: Problem, vector: str) -> list[str]:
    """Of copies: sums, results, lanes (section 5.2)."""
    return [*problem.sums, *(d for d in problem.extents if d in problem.results and d != vector), vector]


def _blocks(problem: Problem, dimension: str) -> list[int]:
    """The sizes of an array's blocks along a dimension."""
    return [loop.step for loop in problem.loops[dimension] if loop.step > 1]


def _whole(problem: Problem, dimension: str, count: int, vector: str) -> bool:
    """Whether copies do not cross the blocks of an array."""
    low = problem.lanes if dimension == vector else 1
    return all(low >= block or low * count <= block for block in _blocks(problem, dimension)) and all(
        fits(size, _blocks(problem, dimension)) for size in (low, low * count)
    )


def _free(problem: Problem, dimension: str, vector: str) -> bool:
    """Whether a dimension has no blocks larger than what a combination counts."""
    low = problem.lanes if dimension == vector else 1
    return all(block <= low for block in _blocks(problem, dimension)) and fits(low, _blocks(problem, dimension))


def fits(size: int, blocks: Sequence[int]) -> bool:
    """Whether a tile is of whole blocks, or a part of one."""
    return all(size % block == 0 or block % size == 0 for block in blocks)


# --- tiles above --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Above:
    """What is left to be tiled above a kernel.

    Args:
        inner: size of the kernel's tile, by dimension.
        outer: extents, by dimension; dimensions that the kernel covers are left out.
        blocks: of the arrays.
        sums: dimensions that are summed over.
        along: the dimension of a combination, whose one atom is :class:`LambdaSeq`.
        local: whether all sums are inside of all results.
    """

    inner: Mapping[str, int]
    outer: Mapping[str, int]
    blocks: Mapping[str, tuple[int, ...]]
    sums: frozenset[str]
    along: str
    local: bool

    @classmethod
    def of(cls, problem: Problem, kernel: Kernel) -> Above:
        inner = dict.fromkeys(problem.extents, 1)
        inner[kernel.vector] = problem.lanes
        for dimension, count in kernel.copies:
            inner[dimension] *= count or 1
        outer = {d: extent for d, extent in problem.extents.items() if d == kernel.along or extent > inner[d]}
        blocks = {d: tuple(_blocks(problem, d)) for d in outer}
        return cls(inner, outer, blocks, frozenset(problem.sums), kernel.along, problem.local)

    def sizes(self, dimension: str, size: int) -> list[int]:
        """The sizes of the next tile along a dimension, given that of the last one."""
        if dimension == self.along:
            return [] if size == self.outer[dimension] else [self.outer[dimension]]
        extent = self.outer[dimension]
        return [
            each for each in divisors(extent) if each > size and each % size == 0 and fits(each, self.blocks[dimension])
        ]

    def choices(self, sizes: Mapping[str, int], last: str) -> list[tuple[str, int]]:
        """The next tiles outwards.

        Args:
            sizes: so far.
            last: dimension of the last tile; "" where there is none.
        """
        left = [dimension for dimension in self.outer if sizes[dimension] != self.outer[dimension]]
        sums = [dimension for dimension in left if dimension in self.sums]
        group = sums if self.local and sums else left
        found = []
        for dimension in sums if sums and not last else group:
            if dimension != last:
                larger = self.sizes(dimension, sizes[dimension])
                # The last one to be tiled takes all: nothing would be between this tile and the next one.
                found += [(dimension, size) for size in larger if len(group) > 1 or size == self.outer[dimension]]
        return found

    def begun(self) -> dict[str, int]:
        """The sizes before the first tile above the kernel."""
        return {d: 0 if d == self.along else self.inner[d] for d in self.outer}

    def every(self) -> Iterator[tuple[tuple[str, int], ...]]:
        """All sequences of tiles, from the innermost one outwards."""
        return self._every(self.begun(), "")

    def _every(self, sizes: dict[str, int], last: str) -> Iterator[tuple[tuple[str, int], ...]]:
        if all(sizes[d] == self.outer[d] for d in self.outer):
            yield ()
            return
        for dimension, size in self.choices(sizes, last):
            for rest in self._every({**sizes, dimension: size}, dimension):
                yield ((dimension, size), *rest)

    def count(self) -> int:
        """How many there are.

        Words in which no letter is followed by itself: by inclusion and exclusion over runs that count as one letter.
        """
        sums = [self._signed(d) for d in self.outer if d in self.sums]
        results = [self._signed(d) for d in self.outer if d not in self.sums]
        if self.local:
            return _words(_product(sums)) * _words(_product(results))
        first, others = _product(sums), _product(results)
        if not sums:
            return _words(others)
        total = 0.0
        # The innermost loop is over a sum: of so many runs, as large a share of the words begins with one.
        for a, x in enumerate(first):
            for b, y in enumerate(others):
                if a:
                    total += x * y * factorial(a + b - 1) * a
        return round(total)

    def _signed(self, dimension: str) -> list[float]:
        """Coefficients by number of runs, divided by the factorial of it."""
        chains = self._chains(dimension)
        most = max(chains)
        found = [0.0] * (most + 1)
        for runs in range(1, most + 1):
            signed = sum(
                chains.get(letters, 0) * (-1) ** (letters - runs) * comb(letters - 1, runs - 1)
                for letters in range(runs, most + 1)
            )
            found[runs] = signed / factorial(runs)
        return found

    def _chains(self, dimension: str) -> dict[int, int]:
        """In how many ways a dimension can be tiled, by number of tiles."""
        end = self.outer[dimension]

        def ways(size: int) -> dict[int, int]:
            if size == end:
                return {0: 1}
            found: dict[int, int] = {}
            for each in self.sizes(dimension, size):
                for letters, count in ways(each).items():
                    found[letters + 1] = found.get(letters + 1, 0) + count
            return found

        return ways(self.begun()[dimension])


def _product(factors: Sequence[Sequence[float]]) -> list[float]:
    made = [1.0]
    for factor in factors:
        longer = [0.0] * (len(made) + len(factor) - 1)
        for a, x in enumerate(made):
            for b, y in enumerate(factor):
                longer[a + b] += x * y
        made = longer
    return made


def _words(coefficients: Sequence[float]) -> int:
    return round(sum(factorial(number) * each for number, each in enumerate(coefficients)))


def scheme_of(problem: Problem, kernel: Kernel, tiles: Sequence[tuple[str, int]]) -> Scheme:
    """The scheme of a kernel and tiles: dimension and size of each, from the innermost one outwards."""
    sizes = dict(Above.of(problem, kernel).inner)
    atoms: list[Atom] = []
    for dimension, size in tiles:
        if dimension == kernel.along:
            atoms.insert(0, LambdaSeq(dimension, kernel.parts))
        else:
            atoms.insert(0, T(size // sizes[dimension], dimension))
        sizes[dimension] = size
    return Scheme((*atoms, *kernel.atoms))
