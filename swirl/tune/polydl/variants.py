"""Variants of a contraction's loops around a micro-kernel, ranked before any is compiled: PolyDL, sections 4 and 6.3.

A variant has, from the inside outwards: the register tile that is generated; a *slot* around it, which the
paper calls a micro-kernel, with all its data in the first cache; a level of tiles, whose sizes and order vary; and
the loops over the rest in the same order. One dimension of the results, or more where one has too few iterations for
the threads, is shared by threads, outside of all other loops: figure 17 with any of its orders.

As many variants as asked for are drawn, the default order among them, and each is analysed as the loops that it
stands for (:mod:`swirl.tune.polydl.nests`). Only those that are measured are translated into commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_changes
from functools import cached_property
from itertools import permutations, product
from math import factorial, prod
from random import Random
from typing import Any

from swirl.analysis.loop_tree import stride
from swirl.analysis.statements import statements_of
from swirl.errors import CommandError, LatteError
from swirl.schedule.command_log import Recorded
from swirl.schedule.rules.hardware import PAGE, PAGES, READ_MANY_TIMES, READ_OFTEN, collide
from swirl.tune.candidates import Candidate, Subject
from swirl.tune.polydl.caches import Hierarchy, Statistics, cost, served, sizes
from swirl.tune.polydl.nests import nest_of
from swirl.tune.polydl.ranker import Ranker
from swirl.tune.polydl.working_sets import working_sets
from swirl.tune.prepared import prepared, preparing
from swirl.tune.problem import Problem, Tensor, problem_of
from swirl.tune.spaces import Point
from swirl.tune.ttile.metric import FLOAT, Suffix, suffixes
from swirl.tune.ttile.microkernels import MicroKernel
from swirl.tune.ttile.schemes import Atom, Pack, Scheme, T, Tfused, Tpar
from swirl.tune.ttile.space import enough, joined_tiles, parallel_atom
from swirl.tune.ttile.tiles import Above, Kernel, kernels_of, scheme_of, shares_subscript
from swirl.tune.ttile.translation import translated

MOST = 128
"""Variants that are analysed, each in less than a tenth of a second; the paper has 491 in the mean for a product, 11
for a convolution."""
APART = 2
"""Sizes of slots along a dimension are at least so many times the one before; those of tiles twice as many times."""
WORTH = 0.5
"""Of what the best slot computes, the share that others compute at least."""
CHANGES = 1000
"""Tries to find neighbours of a variant."""
SIZES = 3
"""Sizes of tiles between the slot and the whole extent that are tried along a dimension, from small to large ones."""


@dataclass(frozen=True)
class Variant:
    """What is chosen.

    Args:
        slot: dimension and size of each tile of the slot, from the innermost one outwards.
        order: of the dimensions, outermost first.
        tiles: sizes of the tiles around the slot, by dimension; those that are not here have none.
        shared: the dimension that threads share first; "" for one thread.
    """

    slot: tuple[tuple[str, int], ...]
    order: tuple[str, ...]
    tiles: tuple[tuple[str, int], ...]
    shared: str

    @property
    def knobs(self) -> dict[str, Any]:
        """As values of JSON."""
        slot, tiles = [list(each) for each in self.slot], [list(each) for each in self.tiles]
        return {"slot": slot, "order": list(self.order), "tiles": tiles, "shared": self.shared}

    @classmethod
    def of_knobs(cls, knobs: Mapping[str, Any]) -> Variant:
        """The variant of :attr:`knobs`."""
        slot = tuple((str(d), int(size)) for d, size in knobs["slot"])
        tiles = tuple((str(d), int(size)) for d, size in knobs["tiles"])
        return cls(slot, tuple(knobs["order"]), tiles, str(knobs["shared"]))


@dataclass(frozen=True)
class Analysed:
    """A variant with what the analysis says of it.

    Args:
        variant: itself.
        scheme: its loops.
        statistics: bytes that each level of the hierarchy serves, by algorithm 2.
        cost: by equation 1.
    """

    variant: Variant
    scheme: Scheme
    statistics: Statistics
    cost: float


@dataclass(frozen=True)
class Variants:
    """The variants of a phase with a contraction.

    Args:
        subject: the phase.
        known: commands of the schedule that it has: its layouts stay, other nests keep what they have.
        table: of micro-kernels, of which one is chosen.
        threads: that run it.
        hierarchy: of the machine.
        ranker: that orders variants; by default equation 1 does.
        most: variants that are analysed.
        seed: of their draw.
        top: how many of the ranking are measured; 0 for all.

    Raises:
        CommandError: the phase has no contraction that schemes can tile; or no micro-kernel fits it.
    """

    subject: Subject
    known: tuple[Recorded, ...]
    table: tuple[MicroKernel, ...]
    threads: int
    hierarchy: Hierarchy
    ranker: Ranker | None = None
    most: int = MOST
    seed: int = 0
    top: int = 0
    prepared: Subject = field(init=False)
    problem: Problem = field(init=False)
    kernel: Kernel = field(init=False)

    def __post_init__(self) -> None:
        begun = prepared(self.subject, self.known)
        found = problem_of(begun.program, begun.target.simd_width)
        kernel = chosen_kernel(found, self.table)
        if kernel is None:
            where = ", ".join(f"{d} of {found.extents[d]}" for d in found.vectors) or "no dimension"
            raise CommandError(
                f"no micro-kernel fits {self.subject.program.name}: neighbours in memory are along {where}",
                way_out="another method; or blocks of a vector, by tile()",
            )
        for name, value in (("prepared", begun), ("problem", found), ("kernel", kernel)):
            object.__setattr__(self, name, value)

    # --- what there is to choose
    @cached_property
    def above(self) -> Above:
        """What is left above the register tile."""
        return Above.of(self.problem, self.kernel)

    @cached_property
    def slots(self) -> list[tuple[tuple[str, int], ...]]:
        """Slots whose data are in the first cache, the one that computes most first; at least the smallest one. Those
        that compute much less are left out: what is loaded for them is used too seldom."""
        elements = self.hierarchy.caches[0].bytes // FLOAT
        start = self.above.begun()
        choices: dict[str, list[int]] = {}
        for dimension in self._slot_dimensions():
            larger = _apart(start[dimension], self.above.sizes(dimension, start[dimension]), APART)
            # Registers are filled by a sum: the innermost loop is one, as long as there is one.
            choices[dimension] = larger[1:] if dimension in self.problem.sums else larger
        found = [tuple(zip(choices, chosen, strict=True)) for chosen in product(*choices.values())]
        fitting = [slot for slot in found if self._footprint(slot) <= elements] or [min(found, key=self._footprint)]
        computed = {slot: prod(max(1, size) for _, size in slot) for slot in fitting}
        least = WORTH * max(computed.values())
        return sorted((slot for slot in fitting if computed[slot] >= least), key=lambda slot: (-computed[slot], slot))

    def _footprint(self, slot: Sequence[tuple[str, int]]) -> int:
        """Elements that a slot touches."""
        tile = {**dict.fromkeys(self.problem.extents, 1), **self.above.inner}
        if self.kernel.along:
            tile[self.kernel.along] *= max(copies for _, copies in self.kernel.parts)
        return self.problem.footprint({**tile, **{d: size for d, size in slot if size}})

    def _slot_dimensions(self) -> list[str]:
        """The dimensions of a product: of the sums the longest one that shares no subscript, then pixels, then lanes.
        Where a sum must be done before the next one begins, the first alone."""
        sums = [d for d in self.problem.sums if d in self.above.outer]
        alone = [d for d in sums if not shares_subscript(self.problem, d)] or sums
        deepest = [max(alone, key=lambda d: self.problem.extents[d])] if alone else []
        if self.problem.local:
            return deepest
        copied = [d for d, _ in self.kernel.copies if d not in (*self.problem.sums, self.kernel.vector)]
        return [d for d in dict.fromkeys((*deepest, *copied, self.kernel.vector)) if d in self.above.outer]

    def _choices(self, dimension: str, size: int) -> list[int]:
        """Sizes of a tile around a slot; the slot's own is none."""
        between = [each for each in self.above.sizes(dimension, size) if each != self.above.outer[dimension]]
        _, *larger = _apart(size, between, 2 * APART)
        if len(larger) > SIZES:
            larger = [larger[number * (len(larger) - 1) // (SIZES - 1)] for number in range(SIZES)]
        return [size, *larger]

    @cached_property
    def _shareable(self) -> list[str]:
        """The dimensions that threads may share first; "" where there is one thread."""
        return [d for d in self.above.outer if d in self.problem.results] if self.threads > 1 else [""]

    def size(self) -> float:
        """The number of choices: where some have the same loops, these count as several."""
        orders = factorial(len(self.above.outer)) * len(self._shareable)
        start = self.above.begun()
        tiles = 0
        for slot in self.slots:
            begun = {**start, **dict(slot)}
            tiles += prod(len(self._choices(d, begun[d])) for d in self.above.outer)
        return float(orders * tiles)

    def every(self) -> Iterator[Variant]:
        """All of them."""
        start, outer = self.above.begun(), list(self.above.outer)
        for slot in self.slots:
            begun = {**start, **dict(slot)}
            for chosen in product(*(self._choices(d, begun[d]) for d in outer)):
                tiles = tuple((d, size) for d, size in zip(outer, chosen, strict=True) if size != begun[d])
                for order in permutations(outer):
                    for shared in self._shareable:
                        yield Variant(slot, order, tiles, shared)

    def draw(self, random: Random) -> Variant:
        """One of them."""
        slot = random.choice(self.slots)
        begun = {**self.above.begun(), **dict(slot)}
        outer = list(self.above.outer)
        chosen = {d: random.choice(self._choices(d, begun[d])) for d in outer}
        random.shuffle(outer)
        tiles = tuple((d, size) for d, size in chosen.items() if size != begun[d])
        shared = random.choice(self._shareable) if self._shareable else ""
        return Variant(slot, tuple(outer), tiles, shared)

    @cached_property
    def default(self) -> Variant:
        """The largest slot that leaves iterations to the threads, in the order that the program's loops have, without
        tiles: figure 8 of the paper."""
        outer = tuple(d for d in self.problem.extents if d in self.above.outer)
        found = [Variant(slot, outer, (), shared) for slot in self.slots for shared in self._shareable or [""]]
        return next((variant for variant in found if self.scheme(variant) is not None), found[0])

    def in_blocks(self, size: int) -> Variant:
        """The micro-kernel alone: the default order around slots of so many along each dimension of the slot."""
        slot = tuple((dimension, size) for dimension, _ in self.slots[0])
        return with_changes(self.default, slot=slot)

    # --- the loops of a variant
    def scheme(self, variant: Variant) -> Scheme | None:
        """Its loops; None where it has too few iterations for the threads, or its tiles are not of these extents."""
        if self.threads > 1 and not variant.shared:
            return None
        sizes_, tiles = self.above.begun(), []

        def add(dimension: str, size: int) -> None:
            if size != sizes_[dimension]:
                tiles.append((dimension, size))
                sizes_[dimension] = size

        for dimension, size in variant.slot:
            add(dimension, size)
        # The loops that threads share are outside of all others; they are not joined with those of the slot.
        inwards = [*(d for d in reversed(variant.order) if d != variant.shared), *filter(None, [variant.shared])]
        between = dict(variant.tiles)
        sums = [d for d in inwards if d in self.above.sums]
        results = [d for d in inwards if d not in self.above.sums]
        # A local that is summed up in a loop is done before that of the next one begins.
        for group in (sums, results) if self.problem.local else (inwards,):
            for dimension in group:
                add(dimension, between.get(dimension, sizes_[dimension]))
            inside = len(tiles)
            for dimension in group:
                add(dimension, self.above.outer[dimension])
        atoms = list(scheme_of(self.problem, self.kernel, tiles).atoms)
        outermost = len(tiles) - inside
        shared = self._shared(atoms[:outermost], variant.shared)
        if shared is None:
            return None
        found = Scheme((*shared[:1], *joined_tiles([*shared[1:], *atoms[outermost:]])))
        try:
            found.levels(self.problem.extents, self.problem.lanes)
        except CommandError:
            return None
        return found

    def _shared(self, atoms: Sequence[Atom], first: str) -> list[Atom] | None:
        """The outermost loops with those along a dimension in parallel, and with those of further results, in their
        order, as far as the threads need them; they come first. None where there are too few iterations."""
        if not first:
            return list(joined_tiles(atoms))
        loops: dict[str, int] = {}
        found = [atom for atom in atoms if isinstance(atom, T) and atom.dimension in self.problem.results]
        found.sort(key=lambda atom: atom.dimension != first)
        if not found or found[0].dimension != first:
            return None
        rest = list(atoms)
        for atom in found:
            if not loops or not enough(prod(loops.values()), self.threads):
                loops[atom.dimension] = atom.count
                rest.remove(atom)
        return [parallel_atom(loops), *rest] if enough(prod(loops.values()), self.threads) else None

    # --- ranking
    def analysed(self, variant: Variant) -> Analysed | None:
        """A variant with its working sets; None as of :meth:`scheme`."""
        scheme = self.scheme(variant)
        if scheme is None:
            return None
        statistics = served(sizes(working_sets(nest_of(scheme, self.problem))), self.hierarchy)
        return Analysed(variant, scheme, statistics, cost(statistics, self.hierarchy))

    @cached_property
    def drawn(self) -> list[Analysed]:
        """The variants that are ranked, none of whose loops are another one's, the default first if it can be
        shared."""
        random, found = Random(self.seed), dict[Scheme, Analysed]()
        few = self.size() <= 4 * self.most
        every = list(self.every()) if few else []
        random.shuffle(every)
        source = iter(every) if few else (self.draw(random) for _ in range(20 * self.most))
        for variant in (self.default, *source):
            if len(found) >= self.most:
                break
            scheme = self.scheme(variant)
            if scheme is not None and scheme not in found:
                made = self.analysed(variant)
                if made is not None:
                    found[scheme] = made
        return list(found.values())

    @cached_property
    def ranking(self) -> list[Analysed]:
        """The same, those that should be fastest first: by wins in the ranker's tournament, or by equation 1."""
        by_cost = sorted(self.drawn, key=lambda each: each.cost)
        if self.ranker is None:
            return by_cost
        return [by_cost[number] for number in self.ranker.order([each.statistics for each in by_cost])]

    def ranked(self) -> Iterator[Point]:
        """The points of :attr:`ranking`, at most the first :attr:`top`, made one by one; those that are refused are
        left out."""
        for number, each in enumerate(self.ranking[: self.top or None]):
            found = self.point(each, number)
            if found is not None:
                yield found

    def sample(self, random: Random) -> Point | None:
        """One of the variants that are ranked; None where it is refused."""
        if not self.drawn:
            return None
        number = random.randrange(len(self.ranking))
        return self.point(self.ranking[number], number)

    def neighbours(self, point: Point, random: Random) -> Iterator[Point]:
        """Variants that differ in one choice, in so many tries."""
        variant = Variant.of_knobs(point.knobs) if "slot" in point.knobs else self.default
        for _ in range(CHANGES):
            made = self.analysed(self._changed(variant, random))
            found = None if made is None else self.point(made)
            if found is not None:
                yield found

    def _changed(self, variant: Variant, random: Random) -> Variant:
        other = self.draw(random)
        match random.randrange(4):
            case 0:
                return with_changes(variant, slot=other.slot, tiles=other.tiles)
            case 1:
                return with_changes(variant, order=other.order)
            case 2:
                return with_changes(other, slot=variant.slot, order=variant.order, shared=variant.shared)
            case _:
                return with_changes(variant, shared=other.shared)

    def point(self, analysed: Analysed, rank: int | None = None) -> Point | None:
        """The point of a variant, with copies of operands where they pay; None where a command of its scheme is
        refused."""
        scheme = self._with_copies(analysed.scheme)
        found = self._translated(scheme)
        if found is None and scheme != analysed.scheme:
            scheme = analysed.scheme
            found = self._translated(scheme)
        if found is None:
            return None
        knobs = {**analysed.variant.knobs, "statistics": list(analysed.statistics), "cost": analysed.cost}
        if analysed.variant == self.default:
            knobs["default"] = True
        if rank is not None:
            knobs["rank"] = rank
        before = preparing(self.subject, self.prepared)
        return Point(with_changes(found, commands=(*before, *found.commands)), knobs, str(scheme))

    def _translated(self, scheme: Scheme) -> Candidate | None:
        try:
            return translated(self.prepared, scheme, self.known)
        except LatteError:
            return None

    # --- copies of operands
    def _with_copies(self, scheme: Scheme) -> Scheme:
        """The scheme with a copy of each operand whose rows collide, of as much as half of the second cache holds: as
        the matrices of the paper's products are packed. What is touched is the same: the analysis leaves it out."""
        inside = next(suffixes(scheme, self.problem))
        places: dict[str, int] = {}
        for tensor in self.problem.tensors:
            if not tensor.output and self._collides(tensor):
                place = self._place_of_copy(scheme, tensor, inside)
                if place is not None:
                    places[tensor.name] = place
        atoms: list[Atom] = []
        for number, atom in enumerate(scheme.atoms):
            atoms += [Pack(name) for name, place in places.items() if place == number]
            atoms.append(atom)
        return Scheme(tuple(atoms))

    def _collides(self, tensor: Tensor) -> bool:
        """Whether the rows that a slot reads along a sum take each other's places in the first cache, or are on too
        many pages."""
        program, target = self.prepared.program, self.prepared.target
        nest = next(nest for nest in program.nests if nest.label == self.problem.nest)
        buffer = program.buffers.get(tensor.name)
        if buffer is None:
            return False
        sizes_ = dict(self.slots[0])
        for statement in statements_of(nest):
            for access in statement.accesses:
                for dimension in self.problem.sums if access.name == tensor.name else ():
                    loop = self.problem.loops[dimension][-1].name
                    if loop not in statement.variable_set or dimension not in tensor.dimensions:
                        continue
                    distance = abs(stride(access, loop, statement, program.buffers) or 0) * buffer.itemsize
                    rows = sizes_.get(dimension, 1)
                    if collide(rows, distance, target) or (rows >= PAGES and distance >= PAGE):
                        return True
        return False

    def _place_of_copy(self, scheme: Scheme, tensor: Tensor, inside: Sequence[Suffix]) -> int | None:
        """The number of the outermost atom, inside of parallel ones, before which a copy fits, if what is inside reads
        it often enough; None where there is none."""
        near, elements = (cache.bytes // FLOAT // 2 for cache in self.hierarchy.caches[:2])
        sizes_ = {each.place: each.sizes for each in inside}
        for place, atom in enumerate(scheme.atoms):
            if not isinstance(atom, T):
                if isinstance(atom, (Tpar, Tfused)):
                    continue
                return None
            copied = tensor.footprint(sizes_[place])
            reads = prod(size for dimension, size in sizes_[place].items() if dimension not in tensor.dimensions)
            # A copy that does not stay in the first cache comes from the second one.
            if copied <= elements and reads >= (READ_OFTEN if copied <= near else READ_MANY_TIMES):
                return place
        return None


def chosen_kernel(problem: Problem, table: Sequence[MicroKernel]) -> Kernel | None:
    """The register tile of a table that loads least for what it computes, on the dimensions of a problem; of several,
    the one of fewest and innermost loops; None where none fits. One that divides the extents comes before pairs that
    cover one together."""
    found = kernels_of(problem, table)
    if not found:
        return None

    def loaded(kernel: Kernel) -> float:
        """Vectors, and elements as vectors, for each multiply-add; of a pair, by its iterations."""
        parts = kernel.parts or ((1, 0),)
        loads = adds = 0
        for times, copies in parts:
            counts = {d: copies if d == kernel.along else count for d, count in kernel.copies}
            adds += times * prod(counts.values())
            for tensor in problem.tensors:
                if not tensor.output:
                    loads += times * prod(count for d, count in counts.items() if d in tensor.dimensions)
        return loads / adds

    order = list(problem.extents)

    def outside(kernel: Kernel) -> tuple[int, int]:
        """How many loops become copies, and how far outside they are: neighbours along the innermost one are nearest in
        memory."""
        return len(kernel.copies), -sum(order.index(dimension) for dimension, _ in kernel.copies)

    return min(found, key=lambda kernel: (bool(kernel.along), loaded(kernel), outside(kernel)))


def _apart(size: int, others: Sequence[int], factor: int) -> list[int]:
    """A size, and of larger ones those that are so many times the one before, and the largest one."""
    found = [size]
    for each in others:
        if each >= factor * max(1, found[-1]) or each == others[-1] != found[-1]:
            found.append(each)
    return found
