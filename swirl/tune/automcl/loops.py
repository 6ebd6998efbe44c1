"""The loops of a contraction, cut into tiles; a register tile; copies of operands: what AutoMCL's schedules share."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product, zip_longest
from types import MappingProxyType

from swirl.errors import CommandError, LatteError
from swirl.ir.nest import fresh, variable_of
from swirl.ir.paths import enclosing, loops
from swirl.schedule.command_log import Recorded
from swirl.schedule.recipe import DEFAULT_SCHEDULE, Schedule
from swirl.target.targets import Target
from swirl.tune.problem import PhysicalLoop, Problem, problem_of


def alone(s: Schedule, phase: str, lanes: int) -> Problem:
    """The contraction of a phase, of which no loop has a name that another nest has. Where sums are around results,
    and other statements among them, it gets a nest of its own.

    Args:
        s: the schedule that commands are applied to.
        phase: that is scheduled.
        lanes: elements of a vector.

    Raises:
        CommandError: see :func:`swirl.tune.problem.problem_of`.
    """
    problem = problem_of(s.programs[phase], lanes)
    if not problem.perfect and not problem.around:
        nest = next(each for each in s.programs[phase].nests if each.label == problem.nest)
        own = {loop.name for each in problem.loops.values() for loop in each}
        for name in reversed(list(dict.fromkeys(variable_of(node) for _, node in loops(nest.body)))):
            if name in own:
                with suppress(LatteError):
                    s.distribute(phase, name, nest=problem.nest)
        problem = problem_of(s.programs[phase], lanes)
    nests = s.programs[phase].nests
    elsewhere = {variable_of(node) for nest in nests if nest.label != problem.nest for _, node in loops(nest.body)}
    same = [loop.name for each in problem.loops.values() for loop in each if loop.name in elsewhere]
    taken = {name for nest in nests for name in nest.names} | set(s.loops(phase))
    for name in same:
        s.rename(phase, name, fresh(name, taken), nest=problem.nest)
    return problem_of(s.programs[phase], lanes) if same else problem


@dataclass
class Part:
    """A part of a dimension whose tiles have one size.

    Args:
        outer: loops over its tiles, outermost first.
        inner: loops in a tile, outermost first.
        extent: of a tile.
    """

    outer: list[str]
    inner: list[PhysicalLoop]
    extent: int

    @property
    def inside(self) -> list[str]:
        """The names of the loops in a tile."""
        return [loop.name for loop in self.inner]


class Tiles:
    """The loops of a contraction by dimension, while they are cut into tiles.

    Args:
        s: the schedule that commands are applied to.
        phase: that is scheduled.
        problem: its contraction.
    """

    def __init__(self, s: Schedule, phase: str, problem: Problem):
        self._s, self._phase, self._problem = s, phase, problem
        self.parts: dict[str, list[Part]] = {}
        """Of each dimension: the whole tiles, then the smaller one, if there is one."""
        for dimension, own in problem.loops.items():
            # A loop over a single block stays where it is: it is not part of any tile.
            inner = [loop for loop in own if loop.count > 1] or [own[-1]]
            self.parts[dimension] = [Part([], inner, problem.extents[dimension])]

    def cut(self, dimension: str, size: int, together: int = 1) -> None:
        """Cut a dimension into tiles. Where they do not divide the extent of a dimension of the result, the last one
        has loops of its own, so that all sizes are constant; that of a sum is shorter.

        Args:
            dimension: that is cut; once.
            size: of a tile; one of the extent or more leaves the loops as they are.
            together: tiles that are one on a second level.

        Raises:
            CommandError: a tile crosses the blocks of an array.
        """
        extent, (part,) = self._problem.extents[dimension], self.parts[dimension]
        if size >= extent:
            return
        if extent % size and dimension in self._problem.results:
            if len(part.inner) > 1:
                raise CommandError(f"tiles of {size} do not divide {extent} along {dimension}, which is blocked")
            part = self._split(dimension, part.inner[0], extent // size * size)
        left = part.inner
        while len(left) > 1 and left[0].step >= size:
            part.outer.append(left.pop(0).name)
        if left[0].count * left[0].step > size:
            loop = left[0]
            if size % loop.step or (len(left) > 1 and loop.count % (size // loop.step)):
                raise CommandError(f"a tile of {size} along {dimension} crosses the blocks of {loop.step} of an array")
            outer, inner = self._tiled(loop.name, size // loop.step)
            left[0] = PhysicalLoop(inner, size // loop.step, loop.step)
            part.outer.append(outer)
        if left[0].count * left[0].step != size:
            raise CommandError(f"a tile of {size} along {dimension} crosses the blocks of an array")
        part.extent = size
        if 1 < together < (self._s.extent(self._phase, part.outer[-1]) or 1):
            part.outer[-1:] = self._tiled(part.outer[-1], together)

    def _split(self, dimension: str, loop: PhysicalLoop, whole: int) -> Part:
        """The last tile apart, with loops of its own around it; the part before it."""
        (rest,) = self._s.split(self._phase, loop.name, [whole])
        for name in self._around(loop.name):
            with suppress(LatteError):
                self._s.distribute(self._phase, name)
        last = loop.count - whole
        found = Part([], [PhysicalLoop(loop.name, whole, loop.step)], whole)
        self.parts[dimension] = [found, Part([], [PhysicalLoop(rest, last, loop.step)], last)]
        return found

    def _around(self, name: str) -> list[str]:
        """The names of the loops around a loop, innermost first."""
        found: dict[str, None] = {}
        for nest in self._s.programs[self._phase].nests:
            for path, node in loops(nest.body):
                if variable_of(node) == name:
                    around = enclosing(nest.body, path)
                    found |= dict.fromkeys(variable_of(n) for n in reversed(around) if isinstance(n, ast.For))
        return list(found)

    def _tiled(self, name: str, size: int) -> tuple[str, str]:
        made = self._s.tile_loop(self._phase, name, size)
        if len(made) != 2:
            raise CommandError(f"loops called {name} are tiled into {', '.join(made)}")
        return made[0], made[1]

    def vectors(self, dimension: str, width: int) -> None:
        """Cut tiles of whole vectors into a loop over vectors, and one over the lanes of each; others keep a single
        loop, whose last vector is smaller."""
        for part in self.parts[dimension]:
            loop = part.inner[-1]
            if loop.step == 1 and loop.count % width == 0 and loop.count > width:
                outer, inner = self._tiled(loop.name, width)
                part.inner[-1:] = [PhysicalLoop(outer, loop.count // width, width), PhysicalLoop(inner, width, 1)]

    def inside(self, dimension: str) -> list[str]:
        """The loops of a dimension that has one part, in a tile."""
        (part,) = self.parts[dimension]
        return part.inside

    def outside(self, dimension: str) -> list[str]:
        """The loops of a dimension that has one part, over tiles."""
        (part,) = self.parts[dimension]
        return part.outer

    def order(
        self,
        outer: Sequence[str],
        results: Sequence[str],
        sums: Sequence[str],
        inner: Sequence[str],
        last: Sequence[str] | None = None,
    ) -> None:
        """Put loops into their order: those over tiles, the outer level of all dimensions first; sums that stay inside
        of them; then those in tiles.

        Args:
            outer: dimensions that are not tiled, outermost.
            results: dimensions of the result, in the order of the loops over their tiles.
            sums: loops over tiles of the sum.
            inner: loops of the sum in a tile.
            last: dimensions of the result in the order of the loops in a tile; the others are around the tiles. By
                default that of ``results``.

        Raises:
            Refused: a dependence, or what is between the loops, forbids it.
        """
        untiled = [name for d in outer for name in self.inside(d)]
        last = results if last is None else last
        for parts in product(*(self.parts[d] for d in results)):
            own = dict(zip(results, parts, strict=True))
            levels = zip_longest(*(part.outer if d in last else part.inside for d, part in own.items()))
            heads = [name for level in levels for name in level if name]
            tails = [name for d in last for name in own[d].inside]
            if sums or self._problem.perfect:
                self._reorder([*untiled, *heads, *sums, *tails, *inner])
            else:  # what is around the sums stays there
                self._reorder([*untiled, *heads, *tails])
                self._reorder(inner)

    def _reorder(self, names: Sequence[str]) -> None:
        if len(names) > 1:
            self._s.reorder(self._phase, list(names))

    def share(self, outer: Sequence[str], results: Sequence[str], inside: bool) -> None:
        """Share the loops over tiles among threads: the outermost ones of all dimensions as one range, as far as they
        are directly in each other.

        Args:
            outer: dimensions that are not tiled.
            results: dimensions of the result.
            inside: whether loops in a tile may be shared, too, where a part has no others: sums are not around them.
        """
        names = [name for d in outer for name in self.inside(d)]
        names += [part.outer[0] for d in results for part in self.parts[d] if part.outer]
        names += [part.inside[0] for d in results for part in self.parts[d] if not part.outer and inside]
        for name in names:
            with suppress(LatteError):
                self._s.parallelize(self._phase, name)


def register_tile(rows: int, vectors: int, registers: int) -> tuple[int, int]:
    """How many rows and vectors of a tile are summed up in registers: those with the most multiply-adds for each load,
    beside which a vector of each column and one row's element have a register.

    Args:
        rows, vectors: of the tile.
        registers: of the target.
    """
    best, found = 0.0, (1, 1)
    for columns in range(1, vectors + 1):
        most = min(rows, (registers - 1 - columns) // columns)
        if most < 1:
            break
        even = -(-rows // -(-rows // most))  # passes of about the same number
        gain = even * columns / (even + columns)
        if gain > best + 1e-9:
            best, found = gain, (even, columns)
    return found


def sum_up(s: Schedule, phase: str, target: Target, rows: Sequence[Part], lanes: Sequence[Part]) -> None:
    """Copies of rows and vectors that are summed up in registers, and lanes.

    Args:
        s: the schedule, whose loops are in their order: sums are inside.
        phase: that is scheduled.
        target: its registers and lanes.
        rows, lanes: parts of the dimensions that become copies, and lanes; see :meth:`Tiles.vectors`.
    """
    most = max(part.inner[-2].count if len(part.inner) > 1 else 1 for part in lanes)
    for part in rows:
        copies, _ = register_tile(part.inner[-1].count, most, target.registers)
        s.unroll_and_jam(phase, part.inside[-1], copies)
    tallest = max(part.inner[-1].count for part in rows)
    for part in lanes:
        if len(part.inner) > 1:
            _, copies = register_tile(tallest, part.inner[-2].count, target.registers)
            s.unroll_and_jam(phase, part.inside[-2], copies)
    for name in dict.fromkeys(part.inside[-1] for part in lanes):
        s.vectorize(phase, name, target.simd_width, strided="gather")


def copied(
    s: Schedule,
    phase: str,
    problem: Problem,
    tensor: str,
    last: str,
    panel: int | None = None,
    blocks: Mapping[str, int] = MappingProxyType({}),
) -> tuple[str, dict[str, list[str]]]:
    """Copy an operand, with a dimension innermost in memory; or in panels, blocks of that dimension.

    Args:
        s: the schedule.
        phase: of it.
        problem: the contraction.
        tensor: the operand.
        last: the dimension.
        panel: size of a panel; None for a copy that is not in panels.
        blocks: of other dimensions: sizes.

    Returns:
        the name of the copy, and dimension → loops of the nest that makes it, outermost first.

    Raises:
        CommandError, Refused: it cannot be copied.
    """
    found, of = problem.tensor(tensor), _axes(problem, tensor)
    if last not in of:
        raise CommandError(f"no subscript of {tensor} is {last} alone", way_out="a schedule without this copy")
    wanted = {**blocks, **({last: panel} if panel is not None else {})}
    wanted = {d: size for d, size in wanted.items() if size < problem.extents[d]}
    rest = [n for n in range(len(found.subscripts)) if n != of[last]]
    first = [of[d] for d in (last, *blocks) if d in wanted]
    order = [*first, *(n for n in rest if n not in first), *([] if last in wanted else [of[last]])]
    options = (("order", [n - found.batch for n in order]),)
    before = set(s.buffers(phase))
    made = s.apply(Recorded("pack", (phase, tensor), options, DEFAULT_SCHEDULE))
    (name,) = set(s.buffers(phase)) - before
    loops_ = {d: [loop] for d, axis in of.items() for loop in made if loop.rpartition("_dim")[2] == str(axis)}
    for d, size in sorted(wanted.items(), key=lambda each: each[0] == last):  # the last one's blocks are innermost
        known = set(s.loops(phase))
        s.apply(Recorded("tile", (name, of[d], size), (), DEFAULT_SCHEDULE))
        loops_[d] = [loop for loop in s.loops(phase) if loop not in known] or loops_[d]
    return name, loops_


def _axes(problem: Problem, tensor: str) -> dict[str, int]:
    """Dimension → the first subscript that it is alone in."""
    found: dict[str, int] = {}
    for number, each in enumerate(problem.tensor(tensor).subscripts):
        if len(each.terms) == 1:
            found.setdefault(each.terms[0][0], number)
    return found


def fill(s: Schedule, phase: str, order: Sequence[str], row: str, lanes: int | None, shares: bool) -> None:
    """Schedule the nest of a copy.

    Args:
        s: the schedule.
        phase: of it.
        order: its loops, outermost first, of which the first one is shared; neighbours of the copy are along the last.
        row: the loop along which neighbours of the source are together; "" where rows are not turned.
        lanes: of a vector along the last loop: rows of the source are loaded whole, and turned in registers; None for
            no vectors.
        shares: whether threads share it.
    """
    with suppress(LatteError):
        s.reorder(phase, list(order))
    if lanes is not None:
        with suppress(LatteError):
            if row not in ("", order[-1]):
                s.unroll_and_jam(phase, row, lanes)
        with suppress(LatteError):
            s.vectorize(phase, order[-1], lanes, strided="gather")
    if shares and len(order) > 1:
        with suppress(LatteError):
            s.parallelize(phase, order[0])
