"""The instances of statements between two of them, and how many elements these touch.

Loops of all kinds count as if they ran one iteration after the other, in the order of their nests: a vector's lanes and
copies of a body too, as PolyDL analyses the loops that a micro-kernel is equivalent to.

Instances are *regions*: the outer variables have one value each, the next one an interval, those inside are free.
What a reference touches in a region is a product of sets, one for each group of subscripts that share loops; the
union of products is counted by cutting each axis where a set of it begins or ends. Numbers are exact where subscripts
and conditions are quasi-affine, and where loops that meet in a condition have at most
:data:`swirl.analysis.enumeration.LIMIT` points together; else they are upper bounds, and marked.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from math import prod

import numpy as np

from swirl.analysis.accesses import Access, parsed
from swirl.analysis.enumeration import Values, grouped, image, satisfied, variables
from swirl.analysis.footprints import listed
from swirl.analysis.statements import Statement, necessary, statements_of
from swirl.ir.affine import Affine, affine
from swirl.ir.buffers import Buffer
from swirl.ir.names import on_loops
from swirl.ir.nest import Program

ELSE = 1 << 20
"""Added to positions in the second branch of a condition: they come after those in the first one."""

Region = Mapping[str, tuple[int | None, int | None]]
"""Loop variable → least and greatest value; None where there is no bound but the loop's own."""


@dataclass(frozen=True)
class WorkingSet:
    """What instances touch.

    Args:
        elements: different ones, of all buffers.
        bytes: of these.
        exact: whether it is exactly that much, not at most that.
    """

    elements: int
    bytes: int
    exact: bool


@dataclass(frozen=True)
class _Step:
    """A loop on the way to a statement, or (with an empty name) a position in a body.

    Args:
        variable: of the loop.
        sign: -1 where the loop counts down.
        position: in the body.
    """

    variable: str = ""
    sign: int = 1
    position: int = 0


@dataclass(frozen=True, eq=False)
class Placed:
    """A statement of a program.

    Args:
        nest: number of its nest.
        statement: in it.
    """

    nest: int
    statement: Statement

    @cached_property
    def steps(self) -> tuple[_Step, ...]:
        """Positions and loops, outermost first."""
        found = [_Step(position=self.nest)]
        loops = dict(zip(self.statement.loop_depths, self.statement.loops, strict=True))
        for depth, (name, index) in enumerate(self.statement.path):
            found.append(_Step(position=index + (0 if name == "body" else ELSE)))
            if depth in loops:
                found.append(_Step(loops[depth].var, 1 if loops[depth].step > 0 else -1))
        return tuple(found)

    def time(self, values: Mapping[str, int]) -> tuple[int, ...]:
        """When an instance runs, to be compared with other instances' times entry by entry.

        Args:
            values: of the variables of its loops.
        """
        return tuple(step.sign * values[step.variable] if step.variable else step.position for step in self.steps)

    def common(self, other: Placed) -> int:
        """The number of loops that are around both."""
        if self.nest != other.nest:
            return 0
        pairs = zip(self.statement.loop_paths(), other.statement.loop_paths(), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0][0] == pair[1][0], pairs))

    @cached_property
    def boxes(self) -> Mapping[str, Values] | None:
        """Every value that each variable may take; None where a bound is unknown."""
        return self.statement.domain.boxes

    # --- regions
    def regions(self, first: Sequence[int], last: Sequence[int]) -> list[Region]:
        """The instances from one time to another one, both included, as regions that do not meet."""
        return list(self._regions(0, first, last, {}))

    def _regions(
        self, at: int, first: Sequence[int] | None, last: Sequence[int] | None, fixed: Region
    ) -> Iterator[Region]:
        if at == len(self.steps):
            # A condition is evaluated before what is inside of it.
            if first is None or len(first) == at:
                yield fixed
            return
        if first is not None and len(first) == at:
            first = None
        if last is not None and len(last) == at:
            return
        if first is None and last is None:
            yield fixed
            return
        step = self.steps[at]
        if step.variable:
            yield from self._of_loop(at, step, first, last, fixed)
            return
        if first is not None and step.position != first[at]:
            if step.position < first[at]:
                return
            first = None
        if last is not None and step.position != last[at]:
            if step.position > last[at]:
                return
            last = None
        yield from self._regions(at + 1, first, last, fixed)

    def _of_loop(
        self, at: int, step: _Step, first: Sequence[int] | None, last: Sequence[int] | None, fixed: Region
    ) -> Iterator[Region]:
        """The iterations of a loop: the first one, the last one, and those between; joined where they are whole."""
        low, high = None if first is None else first[at], None if last is None else last[at]
        if low is not None and low == high:
            yield from self._regions(at + 1, first, last, self._with(fixed, step, low, low))
            return
        begin, end = low, high
        if low is not None:
            one = self._with(fixed, step, low, low)
            inside = list(self._regions(at + 1, first, None, one))
            if inside != [one]:
                yield from inside
                begin = low + 1
        if high is not None:
            one = self._with(fixed, step, high, high)
            inside = list(self._regions(at + 1, None, last, one))
            if inside != [one]:
                yield from inside
                end = high - 1
        if begin is None or end is None or begin <= end:
            yield self._with(fixed, step, begin, end)

    def _with(self, fixed: Region, step: _Step, low: int | None, high: int | None) -> Region:
        """A region with bounds in the order of execution; without bounds that say nothing."""
        if step.sign < 0:
            low, high = None if high is None else -high, None if low is None else -low
        box = (self.boxes or {}).get(step.variable)
        if box is not None and box.count:
            ends = sorted((box.start, box.start + box.step * (box.count - 1)))
            low = None if low is not None and low <= ends[0] else low
            high = None if high is not None and high >= ends[1] else high
        return fixed if low is None and high is None else {**fixed, step.variable: (low, high)}


def placed(program: Program) -> list[Placed]:
    """The statements of a program, in the order of its text."""
    return [Placed(number, each) for number, nest in enumerate(program.nests) for each in statements_of(nest)]


# --- references ---------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class _Reference:
    """A reference of a statement to a buffer.

    Args:
        place: of the statement.
        indices: its subscripts, from 0 on; None where one is data.
        conditions: on loops, under which it is evaluated, each with its variables.
        exact: whether there are no others, on data.
    """

    place: Placed
    indices: tuple[ast.expr | None, ...]
    conditions: tuple[tuple[frozenset[str], ast.expr], ...]
    exact: bool

    @cached_property
    def linked(self) -> list[list[str]]:
        """The loop variables, those that meet in a condition together."""
        names = [loop.var for loop in self.place.statement.loops]
        return grouped(names, [each for each, _ in self.conditions])

    @cached_property
    def meeting(self) -> list[tuple[tuple[str, ...], list[ast.expr]]]:
        """The groups of variables that meet in conditions, with these."""
        found = []
        for names in self.linked:
            inside = [condition for used, condition in self.conditions if used & set(names)]
            if inside:
                found.append((tuple(names), inside))
        return found


@dataclass(frozen=True, eq=False)
class _Axis:
    """Some subscripts of a reference that are counted together.

    Args:
        indices: of them.
        extents: of the dimensions.
        names: of the variables that they, and conditions on these, depend on.
        conditions: on these.
    """

    indices: tuple[ast.expr | None, ...]
    extents: tuple[int, ...]
    names: tuple[str, ...]
    conditions: tuple[ast.expr, ...]

    def values(self, boxes: Mapping[str, Values]) -> tuple[Values | None, int]:
        """The values, several subscripts as one number, and how many there are at the most; None where they are not
        known."""
        own = {name: boxes[name] for name in self.names}
        if any(index is None for index in self.indices):
            return None, prod(self.extents)
        indices = [index for index in self.indices if index is not None]
        single = image(indices[0], own) if len(indices) == 1 else None
        single = None if single is None else single.within(self.extents[0])
        if single is not None and not self.conditions:
            return single, single.count
        found = listed(indices, own, self.conditions, self.extents, shifted=False)
        if found is not None:
            return found, found.count
        if single is not None:
            return None, single.count
        spans = [image(index, own) for index in indices]
        counts = [e if s is None else s.within(e).count for s, e in zip(spans, self.extents, strict=True)]
        return None, prod(counts)


@dataclass(frozen=True, eq=False)
class _BufferUses:
    """The references of a program to one buffer.

    Args:
        buffer: itself.
        references: to it.
    """

    buffer: Buffer
    references: Sequence[_Reference]

    @cached_property
    def groups(self) -> list[list[int]]:
        """The dimensions, grouped if one loop, or loops that meet in a condition, move several of them."""
        together = []
        for reference in self.references:
            used = [set() if index is None else variables(index) for index in reference.indices]
            for names in reference.linked:
                together.append([str(d) for d, own in enumerate(used) if own & set(names)])
        rank = range(len(self.buffer.shape))
        return [sorted(map(int, group)) for group in grouped(map(str, rank), together)]

    @cached_property
    def axes(self) -> list[list[_Axis]]:
        """Of each reference, one for each group of dimensions."""
        spans = self.buffer.layout.readable(self.buffer.shape)
        found = []
        for reference in self.references:
            made = []
            for group in self.groups:
                indices = [reference.indices[d] for d in group]
                used = {name for index in indices if index is not None for name in variables(index)}
                names = [name for several in reference.linked if set(several) & used for name in several]
                inside = [condition for own, condition in reference.conditions if own & set(names)]
                extents = tuple(spans[d][1] - spans[d][0] for d in group)
                made.append(_Axis(tuple(indices), extents, tuple(names), tuple(inside)))
            found.append(made)
        return found


@dataclass(eq=False)
class Touching:
    """What the instances of a program touch. What was found out is kept: working sets of one program have most sets in
    common.

    Args:
        program: with its buffers; locals are in registers, or on a stack that stays in the first cache.
        written: whether only what is written counts.
    """

    program: Program
    written: bool = False
    places: list[Placed] = field(init=False)
    _uses: list[_BufferUses] = field(init=False)
    _known: dict[Hashable, tuple[Values | None, int]] = field(init=False, default_factory=dict)
    _empty: dict[Hashable, bool] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.places = placed(self.program)
        found: dict[str, list[_Reference]] = {}
        for place in self.places:
            for access in dict.fromkeys(place.statement.accesses):
                if access.name in self.program.buffers and not (self.written and access.kind == "read"):
                    found.setdefault(access.name, []).append(_reference(place, access, self.program.buffers))
        self._uses = [_BufferUses(self.program.buffers[name], uses) for name, uses in found.items()]

    def between(self, first: Sequence[int], last: Sequence[int]) -> WorkingSet:
        """What is touched from one time to another one, both included; see :meth:`Placed.time`."""
        return self.touched({place: place.regions(first, last) for place in self.places})

    def touched(self, regions: Mapping[Placed, Sequence[Region]]) -> WorkingSet:
        """What is touched in regions, by statement."""
        elements = size = 0
        exact = True
        for use in self._uses:
            boxes: list[tuple[Values, ...]] = []
            unknown = 0
            for reference, axes in zip(use.references, use.axes, strict=True):
                for region in regions.get(reference.place, ()):
                    box, count = self._box(reference, axes, region)
                    if not count:
                        continue
                    exact = exact and reference.exact and box is not None
                    if box is None:
                        unknown += count
                    else:
                        boxes.append(box)
            spans = use.buffer.layout.readable(use.buffer.shape)
            count = min(union_size(boxes) + unknown, prod(high - low for low, high in spans))
            elements, size = elements + count, size + count * use.buffer.itemsize
        return WorkingSet(elements, size, exact)

    def _box(
        self, reference: _Reference, axes: Sequence[_Axis], region: Region
    ) -> tuple[tuple[Values, ...] | None, int]:
        """What a reference touches in a region, as a product, and how many elements that are at the most; None where it
        is not known."""
        known = reference.place.boxes
        if known is None:
            return None, prod(extent for axis in axes for extent in axis.extents)
        boxes = {name: _cut(box, *region[name]) if name in region else box for name, box in known.items()}
        if not all(box.count for box in boxes.values()) or self._is_empty(reference, boxes):
            return (), 0
        found: list[Values] = []
        count, sure = 1, True
        for axis in axes:
            key = axis, *((boxes[name].start, boxes[name].count) for name in axis.names)
            if key not in self._known:
                self._known[key] = axis.values(boxes)
            values, most = self._known[key]
            count *= most
            if values is None:
                sure = False
            else:
                found.append(values)
        return (tuple(found) if sure else None), count

    def _is_empty(self, reference: _Reference, boxes: Mapping[str, Values]) -> bool:
        """Whether no point satisfies the conditions; of too many points, some do."""
        for names, conditions in reference.meeting:
            key = reference, *((boxes[name].start, boxes[name].count) for name in names)
            if key not in self._empty:
                mask = satisfied({name: boxes[name] for name in names}, conditions)
                self._empty[key] = mask is not None and not mask.any()
            if self._empty[key]:
                return True
        return False


def _reference(place: Placed, access: Access, buffers: Mapping[str, Buffer]) -> _Reference:
    buffer, statement = buffers[access.name], place.statement
    spans = buffer.layout.readable(buffer.shape)
    indices = []
    for index, (low, _) in zip(access.own, spans, strict=True):
        form = affine(index) if variables(index) <= statement.domain.known else None
        indices.append(None if form is None else form.add(Affine(constant=-low)).to_expr())
    conditions = list(statement.domain.constraints())
    exact = not statement.domain.on_data
    for text in access.when:
        for part in necessary(parsed(text)):
            if on_loops(part, statement.variable_set):
                conditions.append((frozenset(variables(part)), part))
            else:
                exact = False
    return _Reference(place, tuple(indices), tuple(conditions), exact)


def _cut(box: Values, low: int | None, high: int | None) -> Values:
    """The values of a loop from one number to another one."""
    first = 0 if low is None else max(0, -((box.start - low) // box.step))
    last = box.count - 1 if high is None else min(box.count - 1, (high - box.start) // box.step)
    return Values(box.start + first * box.step, box.step, max(0, last - first + 1))


# --- unions -------------------------------------------------------------------------------------------------
def union_size(boxes: Sequence[tuple[Values, ...]]) -> int:
    """The number of points in a union of products of sets: each axis is cut into pieces of which each set has all or
    nothing, and the pieces' products are marked."""
    different = list({tuple(map(_identity, box)): box for box in boxes}.items())
    if not different:
        return 0
    total, members, sizes = 1, [], []
    for axis in range(len(different[0][1])):
        sets = {keys[axis]: box[axis] for keys, box in different}
        if len(sets) == 1:
            total *= next(iter(sets.values())).count
            continue
        number = {key: place for place, key in enumerate(sets)}
        inside, counts = _pieces(list(sets.values()))
        members.append([inside[number[keys[axis]]] for keys, _ in different])
        sizes.append(counts)
    if not members:
        return total
    covered = np.zeros([len(counts) for counts in sizes], bool)
    for box in zip(*members, strict=True):
        covered[np.ix_(*box)] = True
    found: np.ndarray = covered.astype(np.int64)
    for counts in reversed(sizes):
        found = found @ counts
    return total * int(found)


def _identity(values: Values) -> Hashable:
    return (values.start, values.step, values.count) if values.array is None else id(values)


def _pieces(sets: Sequence[Values]) -> tuple[list[np.ndarray], np.ndarray]:
    """The pieces of each set, by number, and how many values each piece has."""
    if all(each.array is None and (each.step == 1 or each.count < 2) for each in sets):
        edges = np.unique([end for each in sets for end in (each.start, each.start + each.count)])
        inside = [np.arange(*np.searchsorted(edges, (each.start, each.start + each.count))) for each in sets]
        return inside, np.diff(edges)
    every = np.unique(np.concatenate([each.listed() for each in sets]))
    marks = np.zeros((len(sets), len(every)), bool)
    for row, each in zip(marks, sets, strict=True):
        row[np.searchsorted(every, each.listed())] = True
    packed = np.ascontiguousarray(np.packbits(marks, axis=0).T)
    words = packed.view([("", packed.dtype)] * packed.shape[1]).ravel()
    _, where, counts = np.unique(words, return_index=True, return_counts=True)
    return [np.flatnonzero(row[where]) for row in marks], counts
