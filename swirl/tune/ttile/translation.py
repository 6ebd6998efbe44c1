"""From a scheme to commands: tiles, order, copies, lanes, packing and threads, each checked as in any recipe.

Loops of result dimensions that become copies or lanes stay around the sums inside of them: ``unroll_and_jam`` and
``vectorize`` move the copies inwards, and what stands before and after the sums, such as a bias and a ReLU, is copied
with them. Where a sum's tiles are around tiles of the results, ``reorder`` separates these statements.

Where borders clip taps, the first and the last tile are cut off, so that conditions vanish between them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod

from swirl.errors import CommandError, LatteError
from swirl.ir.nest import Program, kind_of, variable_of
from swirl.ir.paths import loops
from swirl.schedule.command_log import Recorded
from swirl.schedule.recipe import DEFAULT_SCHEDULE, Schedule
from swirl.target.targets import Target
from swirl.tune.candidates import Candidate, Subject
from swirl.tune.prepared import schedule_others
from swirl.tune.problem import PhysicalLoop, Problem, problem_of
from swirl.tune.ttile.schemes import (
    ExternalCall,
    LambdaSeq,
    Level,
    Pack,
    PackT,
    ScalP,
    Scheme,
    Texct,
    Texctg,
    Tfused,
    Tpar,
    U,
    ULambda,
    V,
    iterated,
)


def translated(subject: Subject, scheme: Scheme, known: Sequence[Recorded] = ()) -> Candidate:
    """What a scheme makes of a phase.

    Args:
        subject: a phase with a contraction.
        scheme: for it, in the names of its loops; blocks count as one: ``k`` for ``k_outer`` and ``k_inner``.
        known: commands of another schedule of the phase; other nests keep theirs.

    Raises:
        CommandError, Refused: the scheme is not one of this contraction, or a command is refused.
    """
    problem = problem_of(subject.program, subject.target.simd_width)
    levels = checked_levels(scheme, problem)

    def apply(s: Schedule, target: Target) -> None:
        _Translation(s, subject.phase, problem, scheme, levels).run(known)

    return subject.by(apply)


def checked_levels(scheme: Scheme, problem: Problem) -> dict[str, list[Level]]:
    """The levels of a scheme for a contraction.

    Raises:
        CommandError: the scheme breaks a rule.
    """
    levels = scheme.levels(problem.extents, problem.lanes)
    last = scheme.atoms[-1]
    vector = last.dimension if isinstance(last, V) else None
    if isinstance(last, ExternalCall):
        vector = last.copies[-1][0]
    turned = {a.tensor for a in scheme.atoms if isinstance(a, PackT) and a.order and a.order[-1] == vector}
    if vector is not None and vector not in problem.vectors_with(turned):
        raise CommandError(
            f"{scheme}: not every tensor that has {vector}, the output among them, has its neighbours side by side",
            way_out=f"vectors are along {', '.join(problem.vectors) or 'nothing here: tile() gives blocks'}",
        )
    for atom in scheme.atoms:
        if isinstance(atom, (Pack, PackT)):
            tensor = problem.tensor(atom.tensor)
            if isinstance(atom, PackT) and set(atom.order) - tensor.dimensions:
                raise CommandError(f"{scheme}: {atom.tensor} has the dimensions {', '.join(sorted(tensor.dimensions))}")
        if isinstance(atom, ScalP):
            for dimension in atom.dimensions:
                if dimension not in problem.extents:
                    raise CommandError(f"{scheme}: there is no dimension {dimension!r} for {atom}")
    return levels


@dataclass(frozen=True)
class _Placed:
    """A loop in its place.

    Args:
        place: of its atom in the scheme.
        name: of the loop.
        dimension: along which it runs.
        copies: whether it becomes copies or lanes.
    """

    place: int
    name: str
    dimension: str
    copies: bool = False


@dataclass(frozen=True)
class _Copies:
    """A loop that becomes copies.

    Args:
        place: of its atom.
        name: of the loop.
        dimension: along which it runs.
        factors: number of copies, or that of each tile.
    """

    place: int
    name: str
    dimension: str
    factors: int | list[int]


@dataclass(frozen=True)
class _Sequence:
    """A ``λ`` whose parts have loops of their own.

    Args:
        place: of it.
        name: of the loop that is cut.
        dimension: along which it runs.
        parts: iterations of each part, and of the loops in it down to its copies.
        places: of these loops.
    """

    place: int
    name: str
    dimension: str
    parts: tuple[tuple[int, ...], ...]
    places: tuple[int, ...]


class _Translation:
    """Commands of one scheme.

    Args:
        s: the schedule that they are applied to.
        phase: that is scheduled.
        problem: its contraction.
        scheme: that is translated.
        levels: of it.
    """

    def __init__(self, s: Schedule, phase: str, problem: Problem, scheme: Scheme, levels: dict[str, list[Level]]):
        self._s, self._phase, self._problem, self._scheme, self._levels = s, phase, problem, scheme, levels
        # A loop over a single block stays where it is: it is not part of any tile.
        self._left = {d: [loop for loop in own if loop.count > 1] or [own[-1]] for d, own in problem.loops.items()}
        self._placed: list[_Placed] = []
        self._copies: list[_Copies] = []
        self._sequences: list[_Sequence] = []
        self._lanes: str | None = None
        self._borders = {d: self._clipped(own[-1].name) for d, own in problem.loops.items() if len(own) == 1}

    def run(self, known: Sequence[Recorded]) -> None:
        """Apply the commands."""
        for dimension, levels in self._levels.items():
            self._tile(dimension, levels)
        self._placed.sort(key=lambda each: each.place)
        self._order(self._placed)
        chains = [self._placed]
        for sequence in sorted(self._sequences, key=lambda each: each.place):
            chains = self._cut_apart(sequence, chains)
        self._pack(chains)
        self._copy()
        if self._lanes is not None and self._problem.perfect:
            self._s.vectorize(self._phase, self._lanes, self._problem.lanes)
        elif self._lanes is not None:  # other statements may have their elements elsewhere
            self._s.vectorize(self._phase, self._lanes, self._problem.lanes, strided="gather")
        for atom in self._scheme.atoms:
            if isinstance(atom, ScalP):
                self._keep_in_registers(atom)
        self._share(chains)
        self._cut_borders()
        shares = any(isinstance(atom, (Tpar, Tfused)) for atom in self._scheme.atoms)
        schedule_others(self._s, self._phase, self._problem, known, shares)

    # --- tiles ----------------------------------------------------------------------------------------------
    def _tile(self, dimension: str, levels: Sequence[Level]) -> None:
        """The loops of a dimension, from the outermost one inwards."""
        number = 0
        while number < len(levels):
            level = levels[number]
            match level.atom:
                case LambdaSeq():
                    number = self._sequence(dimension, levels, number)
                    continue
                case Texct():
                    number = self._partial(dimension, levels, number)
                    continue
                case U(count, _):
                    names = self._cut(dimension, level.inner[0])
                    self._unrolled(level.place, dimension, names, count)
                case V():
                    self._vector(dimension, level.place)
                case ExternalCall():
                    self._call(dimension, level)
                case _:
                    self._put(level.place, dimension, self._cut(dimension, level.inner[0]))
            number += 1
        self._put(levels[0].place if levels else -1, dimension, self._cut(dimension, 1))

    def _put(self, place: int, dimension: str, names: Iterable[str], copies: bool = False) -> None:
        self._placed += [_Placed(place, name, dimension, copies) for name in names]

    def _unrolled(self, place: int, dimension: str, names: Sequence[str], count: int) -> None:
        self._put(place, dimension, names, copies=True)
        if len(names) > 1:
            raise CommandError(f"{count} copies along {dimension} cross the blocks of an array")
        self._copies += [_Copies(place, name, dimension, count) for name in names if count > 1]

    def _vector(self, dimension: str, place: int) -> None:
        names = self._cut(dimension, 1)
        if len(names) > 1:
            raise CommandError(f"the blocks of an array are smaller than a vector of {self._problem.lanes}")
        self._put(place, dimension, names, copies=True)
        self._lanes = names[0]

    def _call(self, dimension: str, level: Level) -> None:
        """A micro-kernel is copies here: of each call's own number."""
        call = level.atom
        assert isinstance(call, ExternalCall)
        if dimension != call.copies[-1][0]:
            self._unrolled(level.place, dimension, self._cut(dimension, 1), level.size[0])
            return
        lanes = self._problem.lanes
        self._unrolled(level.place, dimension, self._cut(dimension, lanes), level.size[0] // lanes)
        self._vector(dimension, level.place)

    def _partial(self, dimension: str, levels: Sequence[Level], first: int) -> int:
        """Texct and what it needs inside (section 3.5); returns the number of the level after them."""
        last = first
        while isinstance(levels[last].atom, (Texct, Texctg)):
            last += 1
        calls = isinstance(levels[last].atom, ExternalCall)
        granule = 1 if calls else levels[last].inner[0]
        head = self._left[dimension][0]
        if head.step < granule:
            (outer,) = self._cut(dimension, granule)
            head = PhysicalLoop(outer, levels[first].size[0] // granule, granule)
        else:
            self._left[dimension].pop(0)
        name, unit = head.name, head.step
        for level in levels[first:last]:
            below = levels[levels.index(level) + 1]
            if below.size[0] % unit:
                raise CommandError(f"{below.atom} crosses the blocks of {unit} of an array")
            if calls and level is levels[last - 1]:
                whole, rest = divmod(levels[first].size[0], below.size[0])
                self._put(level.place, dimension, [name])
                parts = [below.size[0]] * whole + [rest] * bool(rest)
                self._copies.append(_Copies(below.place, name, dimension, parts))
                return last + 1
            outer, name = self._tiled(name, below.size[0] // unit)
            self._put(level.place, dimension, [outer])
        self._put(levels[last].place, dimension, [name, *self._cut(dimension, granule)])
        return last + 1

    def _sequence(self, dimension: str, levels: Sequence[Level], first: int) -> int:
        """λ and its Uλ; returns the number of the level after them."""
        last = next(n for n, level in enumerate(levels) if isinstance(level.atom, ULambda))
        head, inner = self._left[dimension][0], levels[last].inner[0]
        sequence = levels[first].atom
        assert isinstance(sequence, LambdaSeq)
        if head.step < inner:
            (name,) = self._cut(dimension, inner)
        elif head.step == inner:
            name = self._left[dimension].pop(0).name
        else:
            raise CommandError(f"{sequence} crosses the blocks of {head.step} of an array")
        self._put(levels[first].place, dimension, [name])
        between = levels[first + 1 : last]
        packs = [n for n, atom in enumerate(self._scheme.atoms) if isinstance(atom, (Pack, PackT))]
        if between or any(levels[first].place < n < levels[last].place for n in packs):
            counts = tuple(count or 1 for level in between for d, count in iterated(level.atom) if d == dimension)
            parts = tuple((times, *counts, copies) for times, copies in sequence.parts)
            places = tuple(level.place for level in levels[first : last + 1])
            self._sequences.append(_Sequence(levels[first].place, name, dimension, parts, places))
        else:
            factors = [copies for times, copies in sequence.parts for _ in range(times)]
            self._copies.append(_Copies(levels[last].place, name, dimension, factors))
        return last + 1

    def _cut(self, dimension: str, size: int) -> list[str]:
        """The loops outside of a tile of a size, which is what is left."""
        left, found = self._left[dimension], []
        while left and (left[0].count * left[0].step > size or size == 1):
            loop = left[0]
            if loop.step >= size:
                found.append(left.pop(0).name)
                continue
            if size % loop.step or loop.count % (size // loop.step):
                raise CommandError(f"a tile of {size} along {dimension} crosses the blocks of {loop.step} of an array")
            outer, inner = self._tiled(loop.name, size // loop.step)
            left[0] = PhysicalLoop(inner, size // loop.step, loop.step)
            found.append(outer)
            break
        return found

    def _tiled(self, name: str, size: int) -> tuple[str, str]:
        made = self._s.tile_loop(self._phase, name, size)
        if len(made) != 2:
            raise CommandError(f"loops called {name} are tiled into {', '.join(made)}")
        return made[0], made[1]

    # --- order ----------------------------------------------------------------------------------------------
    def _order(self, chain: Sequence[_Placed]) -> None:
        """Put the loops of a chain into their order."""
        sums = [each for each in chain if each.dimension not in self._problem.results]
        around = [each for each in chain if not each.copies]
        inside: list[_Placed] = []  # sums that no result is inside of
        while around and around[-1] in sums:
            inside.insert(0, around.pop())
        copies = [each for each in chain if each.copies and each not in sums]
        end = [each for each in sums if each.copies]
        results = [*around, *copies]
        if self._problem.local and len(results) > 1 and results[-1].name == self._lanes:
            results[-2:] = results[:-3:-1]  # the innermost loop around a local stays: lanes are not constant in it
        if self._problem.around and not any(each in sums for each in around):
            self._reorder(results)  # what is around the sums stays there
            self._reorder([*inside, *end])
        else:
            self._reorder([*results, *inside, *end])

    def _reorder(self, wanted: Sequence[_Placed]) -> None:
        names = [each.name for each in wanted]
        if len(names) > 1 and not self._in_order(names):
            self._s.reorder(self._phase, names)

    def _in_order(self, names: Sequence[str]) -> bool:
        """Whether loops are directly in each other, in this order."""
        for nest in self._program.nests:
            for _, node in loops(nest.body):
                found = [variable_of(node)]
                while len(found) < len(names) and len(node.body) == 1 and isinstance(node.body[0], ast.For):
                    node = node.body[0]
                    found.append(variable_of(node))
                if found == list(names):
                    return True
        return False

    def _cut_apart(self, sequence: _Sequence, chains: list[list[_Placed]]) -> list[list[_Placed]]:
        """Each chain once for each part of a λ."""
        dimension, lengths = sequence.dimension, [prod(part) for part in sequence.parts]
        cuts = [sum(lengths[: number + 1]) for number in range(len(lengths) - 1)]
        names = [sequence.name, *self._s.split(self._phase, sequence.name, cuts)]
        parts = []
        for name, counts in zip(names, sequence.parts, strict=True):
            made = []
            for number, place in enumerate(sequence.places):
                rest, last = prod(counts[number + 1 :]), number == len(counts) - 1
                outer, name = (name, "") if last else self._tiled(name, rest)
                made.append(_Placed(place, outer, dimension, last))
            parts.append(made)
            self._copies += [_Copies(sequence.places[-1], made[-1].name, dimension, counts[-1])]
        found = []
        for chain in chains:
            kept = [each for each in chain if each.name != sequence.name]
            for made in parts:
                found.append(sorted([*kept, *made], key=lambda each: each.place))
        for chain in found:
            self._order([each for each in chain if each.place >= sequence.place])
        return found

    # --- packing, copies, registers -------------------------------------------------------------------------
    def _pack(self, chains: Sequence[Sequence[_Placed]]) -> None:
        done = set()
        for place, atom in enumerate(self._scheme.atoms):
            if not isinstance(atom, (Pack, PackT)):
                continue
            for chain in chains:
                around = [each.name for each in chain if each.place < place and not each.copies]
                at = around[-1] if around else None
                if (atom, at) not in done:
                    done.add((atom, at))
                    self._packed(atom, at)

    def _packed(self, atom: Pack | PackT, at: str | None) -> None:
        tensor, lanes = self._problem.tensor(atom.tensor), self._problem.lanes
        rank = len(tensor.subscripts)
        order = list(range(rank))
        options: dict[str, object] = {} if at is None else {"at": at}
        if isinstance(atom, PackT):
            wanted = [n for d in atom.order for n, each in enumerate(tensor.subscripts) if d in dict(each.terms)]
            order = [*(n for n in order if n not in wanted), *dict.fromkeys(wanted)]
            options["order"] = [n - tensor.batch for n in order]  # the batch is -1
        command = Recorded("pack", (self._phase, atom.tensor), tuple(options.items()), DEFAULT_SCHEDULE)
        made = {name.rsplit("_dim", 1)[-1]: name for name in self._s.apply(command)}
        inner, row = made.get(str(order[-1])), made.get(str(rank - 1))
        if inner is None:
            return
        with suppress(LatteError):
            if row is not None and row != inner:  # rows are loaded whole, and turned in registers
                self._s.unroll_and_jam(self._phase, row, lanes)
                self._s.vectorize(self._phase, inner, lanes, strided="gather")
            elif (self._s.extent(self._phase, inner) or 0) >= lanes:
                self._s.vectorize(self._phase, inner, lanes)

    def _copy(self) -> None:
        """Copies, from the outermost atom inwards: each moves inside of those before it."""
        results = [each.place for each in self._copies if each.dimension in self._problem.results]
        ordered = sorted(dict.fromkeys((c.place, c.name) for c in self._copies))
        known = {(c.place, c.name): c for c in self._copies}
        late = []
        for key in ordered:
            each = known[key]
            if each.dimension in self._problem.results:
                self._jam(each)
            elif not results or each.place < min(results):
                late.append(each)  # around the others: a plain unroll leaves it there
            else:
                self._s.unroll_and_jam(self._phase, each.name, each.factors, unroll_type=1)
        for each in reversed(late):
            self._s.unroll(self._phase, each.name, each.factors, unroll_type=1)

    def _jam(self, copies: _Copies) -> None:
        """Copies of results; of tiles of several sizes, those at the borders separate."""
        factors = copies.factors
        if isinstance(factors, int):
            self._s.unroll_and_jam(self._phase, copies.name, factors)
            return
        first, *middle = factors
        last = [middle.pop()] if middle else []
        if not self._borders.get(copies.dimension) or sum(factors) != self._s.extent(self._phase, copies.name):
            self._s.unroll_and_jam(self._phase, copies.name, factors)
            return
        parts = [part for part in ([first], middle, last) if part]
        cuts = [sum(map(sum, parts[: number + 1])) for number in range(len(parts) - 1)]
        names = [copies.name, *(self._s.split(self._phase, copies.name, cuts) if cuts else ())]
        for name, part in zip(names, parts, strict=True):
            self._s.unroll_and_jam(self._phase, name, part)

    def _keep_in_registers(self, atom: ScalP) -> None:
        for tensor in self._problem.tensors:
            if not tensor.dimensions & set(atom.dimensions) and not (tensor.output and self._problem.local):
                self._s.scalar_replace(self._phase, tensor.name)

    # --- threads, borders, the rest -------------------------------------------------------------------------
    def _share(self, chains: Sequence[Sequence[_Placed]]) -> None:
        """Loops in parallel: those of an atom as one."""
        done: set[tuple[str, ...]] = set()
        for place, atom in enumerate(self._scheme.atoms):
            if not isinstance(atom, (Tpar, Tfused)):
                continue
            order = [dimension for dimension, _ in iterated(atom)]
            for chain in chains:
                own = [each for each in chain if each.place == place]
                names = tuple(each.name for each in sorted(own, key=lambda each: order.index(each.dimension)))
                if names and names not in done:
                    done.add(names)
                    self._s.parallelize(self._phase, list(names) if len(names) > 1 else names[0])

    def _clipped(self, loop: str) -> bool:
        """Whether borders clip what a loop reads."""
        try:
            return bool(self._s.borders(self._phase, loop))
        except LatteError:
            return False

    def _cut_borders(self) -> None:
        """Cut off the tiles at borders that clip copies: of the longest dimension in their subscripts, and of its loops
        the outermost one that no threads share."""
        copied = {copies.dimension for copies in self._copies}
        wanted = set()
        for tensor in self._problem.tensors:
            for subscript in tensor.subscripts:
                found = [dimension for dimension, _ in subscript.terms]
                if len(found) > 1 and copied & set(found):
                    wanted.add(max(found, key=lambda dimension: self._problem.extents[dimension]))
        done = {copies.name for copies in self._copies}
        for each in self._placed:
            clipped = each.dimension in wanted and self._borders.get(each.dimension)
            if each.copies or each.name in done or not clipped or self._shared(each.name):
                continue
            wanted.remove(each.dimension)
            with suppress(LatteError):
                tiles = self._s.extent(self._phase, each.name) or 0
                cuts = self._s.borders(self._phase, each.name) or sorted({1, tiles - 1})
                if cuts := [cut for cut in cuts if 0 < cut < tiles]:
                    self._s.split(self._phase, each.name, cuts)

    def _shared(self, loop: str) -> bool:
        kinds = {kind_of(n) for nest in self._program.nests for _, n in loops(nest.body) if variable_of(n) == loop}
        return "range" not in kinds

    @property
    def _program(self) -> Program:
        return self._s.programs[self._phase]
