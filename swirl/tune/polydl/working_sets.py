"""The working sets of a program's data reuses: algorithm 1 of PolyDL (section 4.1).

A *reuse* is a dependence between two references to one buffer that a loop carries: of read after read, read after
write, write after read and write after write those that exist. Its first instance, the first and the last one that
use the same element again are found by isl; what is touched from the one to the others, both included, is counted by
:mod:`swirl.tune.polydl.instances`.

What the paper leaves open is decided here:

- Dependences are those of memory, as its example ``d2``: all later uses of an element, not only the next one. They are
  split by the loop that carries them, as isl's maps are by the order of iterations.
- ``D_all`` is a union: relations between instances that are written alike count once, whichever buffers and kinds they
  have.
- Where a source has one target only, there is one size.
- Across parallel loops, the outermost loop counts whose iterations differ, with what is inside of it. Loops outside
  have the values that they have for the first source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import islpy as isl

from swirl.analysis.accesses import Access
from swirl.analysis.dependences import pinned, touching
from swirl.analysis.sets import NotProved, limited, set_of
from swirl.ir.item_numbers import whole_batch
from swirl.ir.nest import Loop, Program, constant
from swirl.tune.polydl.instances import Placed, Region, Touching, WorkingSet

READS = ("read", "add", "mul", "max", "min")
"""Kinds of accesses that read an element; all but ``read`` write one."""


@dataclass(frozen=True)
class Reuse:
    """A dependence, seen as a reuse of data.

    Args:
        kinds: of ``RAR``, ``RAW``, ``WAR``, ``WAW``.
        source, target: the references, as in the program; of several pairs that are related alike, the first one.
        loop: that carries it; "" where the target comes after the source in one iteration of all common loops.
        parallel: whether it spans iterations of a parallel loop: then both sizes are that of all its iterations.
        least: what a cache must hold for the first reuse of an element.
        most: for the last one.
        several: whether a source has several targets.
    """

    kinds: tuple[str, ...]
    source: str
    target: str
    loop: str
    parallel: bool
    least: WorkingSet
    most: WorkingSet
    several: bool

    @property
    def sizes(self) -> tuple[WorkingSet, ...]:
        """The working sets that count."""
        return (self.least, self.most) if self.several else (self.least,)


def working_sets(program: Program) -> list[Reuse]:
    """The reuses of a program, in the order of its text, outer loops first.

    Args:
        program: of one nest or several, which count as one after the other, for a whole batch. Buffers count, locals
            do not: they are in registers. Conditions on data count as true, an indirect subscript as any; sizes are
            then not exact.

    Raises:
        ValidationError: the bounds of a loop are not quasi-affine.
    """
    program = whole_batch(program)
    touching_ = Touching(program)
    found: dict[tuple[Placed, Placed, str], Reuse] = {}
    for relation in _relations(touching_.places, program):
        key = relation.source, relation.target, relation.text
        known = found.get(key)
        if known is not None:
            kinds = dict.fromkeys((*known.kinds, *relation.kinds))
            found[key] = replace(known, kinds=tuple(kinds))
            continue
        made = _measured(relation, touching_)
        if made is not None:
            found[key] = made
    return list(found.values())


# --- relations ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class _Relation:
    """A dependence that may exist.

    Args:
        source, target: the statements.
        a, b: their references.
        level: of the common loops, the one that carries it; their number where none does.
        kinds: see :class:`Reuse`.
        constraints: for isl, on the variables of both.
        equal: variables that are the same in both, by the loops around and by equal subscripts.
    """

    source: Placed
    target: Placed
    a: Access
    b: Access
    level: int
    kinds: tuple[str, ...]
    constraints: tuple[str, ...]
    equal: frozenset[str]

    @property
    def text(self) -> str:
        """The same where the relations of instances are written alike."""
        return " and ".join(self.constraints)

    @property
    def common(self) -> Sequence[Loop]:
        """The loops around both."""
        return self.source.statement.loops[: self.source.common(self.target)]

    @property
    def loop(self) -> str:
        """The variable of the loop that carries it."""
        return self.common[self.level].var if self.level < len(self.common) else ""


def _relations(places: Sequence[Placed], program: Program) -> Iterator[_Relation]:
    for source in places:
        for target in places:
            shared = source.statement.touched & target.statement.touched & program.buffers.keys()
            if not shared:
                continue
            for a in dict.fromkeys(source.statement.accesses):
                for b in dict.fromkeys(target.statement.accesses):
                    if a.name == b.name and a.name in shared:
                        yield from _of_pair(source, target, a, b)


def _of_pair(source: Placed, target: Placed, a: Access, b: Access) -> Iterator[_Relation]:
    """One for each common loop that may carry it, and one for a target that comes later in the same iteration."""
    first, second, count = source.statement, target.statement, source.common(target)
    kinds = tuple(_kinds(a, b))
    constraints = [*touching(first, second, a, b), *first.evaluated(a, "_a"), *second.evaluated(b, "_b")]
    same: list[str] = []
    for level in range(count + _comes_later(source, target, count)):
        loop = first.loops[level] if level < count else None
        equal = pinned(first, second, a, b, {each.var for each in first.loops[:level]})
        if loop is None:
            yield _Relation(source, target, a, b, level, kinds, (*constraints, *same), frozenset(equal))
        elif loop.var not in equal:
            later = f"{loop.var}_a {'<' if loop.step > 0 else '>'} {loop.var}_b"
            yield _Relation(source, target, a, b, level, kinds, (*constraints, *same, later), frozenset(equal))
        if loop is not None:
            same.append(f"{loop.var}_a = {loop.var}_b")


def _kinds(a: Access, b: Access) -> Iterator[str]:
    for after, one in (("R", b.kind in READS), ("W", b.kind != "read")):
        for before, other in (("R", a.kind in READS), ("W", a.kind != "read")):
            if one and other:
                yield f"{after}A{before}"


def _comes_later(source: Placed, target: Placed, common: int) -> bool:
    """Whether a statement comes after another one, in one iteration of the loops around both."""
    if source is target:
        return False
    zeros = [dict.fromkeys(place.statement.variables(), 0) for place in (source, target)]
    return source.time(zeros[0]) < target.time(zeros[1])


# --- isl ----------------------------------------------------------------------------------------------------
Instance = Mapping[str, int]
"""Values of the loop variables of an instance."""


_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class _Variable:
    """A loop's variable in one of the two instances.

    Args:
        loop: itself.
        suffix: of the instance.
    """

    loop: Loop
    suffix: str

    @property
    def name(self) -> str:
        """For isl."""
        return self.loop.var + self.suffix

    @property
    def entry(self) -> str:
        """In a tuple in the order of execution: the negative, where the loop counts down."""
        return self.name if self.loop.step > 0 else f"{self.name}_down"

    def value(self, entry: int) -> int:
        """Of the variable where the entry has a value."""
        return entry if self.loop.step > 0 else -entry

    @property
    def ends(self) -> tuple[int, int]:
        """The first and the last value; the loop has constant bounds."""
        start = constant(self.loop.start) or 0
        return start, start + self.loop.step * ((self.loop.extent or 1) - 1)


@dataclass(frozen=True)
class _Question:
    """A relation for isl. Variables that are the same in source and target are those of the source; those that are in
    no constraint but the bounds of their loops are left out: they have their first value, or their last one.

    Args:
        relation: itself.
        more: further constraints.
    """

    relation: _Relation
    more: tuple[str, ...] = ()

    @cached_property
    def variables(self) -> list[_Variable]:
        """Those of the source, then those of the target that are not the source's."""
        source, target = self.relation.source.statement.loops, self.relation.target.statement.loops
        found = [_Variable(loop, "_a") for loop in source]
        return found + [_Variable(loop, "_b") for loop in target if loop.var not in self.relation.equal]

    @cached_property
    def parts(self) -> list[str]:
        """The constraints, without those that say nothing."""
        parts = [*self.relation.constraints, *self.more]
        if self.relation.equal:
            same = re.compile(rf"\b({'|'.join(sorted(self.relation.equal))})_b\b")
            parts = [same.sub(r"\1_a", part) for part in parts]
        return [part for part in dict.fromkeys(parts) if not _is_trivial(part)]

    @cached_property
    def free(self) -> set[str]:
        """Names of variables that may have any value of their loops, whatever the others have."""
        mentioned = [set(_NAME.findall(part)) for part in self.parts]
        names = {each.name for each in self.variables}
        found = set()
        for each in self.variables:
            own = [used & names for used in mentioned if each.name in used]
            bounds = 1 if abs(each.loop.step) == 1 else 2
            if each.loop.extent is not None and len(own) == bounds and all(used == {each.name} for used in own):
                found.add(each.name)
        return found

    @property
    def is_empty(self) -> bool:
        """Whether there are no pairs.

        Raises:
            NotProved: the question takes too much work.
        """
        return any(each.loop.extent == 0 for each in self.variables) or _solved(*self._asked) is None

    @property
    def _asked(self) -> tuple[str, int]:
        """The pairs of the variables that are not free, for isl; and how many of these are the source's."""
        kept = [each for each in self.variables if each.name not in self.free]
        bounds = [part for part in self.parts if not self.free & set(_NAME.findall(part))]
        down = [each.name for each in kept if each.loop.step < 0]
        parts = [*bounds, *(f"{name}_down = -{name}" for name in down)]
        bound = f"exists {', '.join(down)} : " if down else ""
        text = f"{{ [{', '.join(each.entry for each in kept)}] : {bound}{' and '.join(parts) or '1 = 1'} }}"
        return text, sum(each.suffix == "_a" for each in kept)

    def first_and_last(self) -> tuple[Instance, Instance, Instance] | None:
        """The first source, its first and its last target; None where there are none.

        Raises:
            NotProved: the question takes too much work.
        """
        if any(each.loop.extent == 0 for each in self.variables):
            return None
        solved = _solved(*self._asked)
        if solved is None:
            return None
        found: list[dict[str, int]] = []
        for point, end in zip(solved, (0, 1), strict=True):
            values = iter(point)
            found.append(
                {
                    each.name: each.ends[end if each.suffix == "_b" else 0]
                    if each.name in self.free
                    else each.value(next(values))
                    for each in self.variables
                }
            )
        source = {loop.var: found[0][f"{loop.var}_a"] for loop in self.relation.source.statement.loops}
        loops = self.relation.target.statement.loops
        same = {name: source[name] for name in self.relation.equal}
        targets = [{each.var: same.get(each.var, values.get(f"{each.var}_b", 0)) for each in loops} for values in found]
        return source, targets[0], targets[1]


def _is_trivial(part: str) -> bool:
    """Whether a constraint says that something is itself."""
    left, equals, right = part.partition(" = ")
    return bool(equals) and left == right


@lru_cache(maxsize=4096)
def _solved(text: str, count: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The least point of a set given as text, and the greatest one with the same first ``count`` coordinates; None
    where it is empty. Variants ask many questions alike.

    Raises:
        NotProved: the question takes too much work.
    """
    with limited() as context:
        points = set_of(context, text)
        if points.is_empty():
            return None
        least = _coordinates(points.lexmin())
        for dimension, value in enumerate(least[:count]):
            points = points.fix_val(isl.dim_type.set, dimension, isl.Val.int_from_si(context, value))
        return least, _coordinates(points.lexmax())


def _coordinates(points: isl.Set) -> tuple[int, ...]:
    count = points.dim(isl.dim_type.set)
    point = points.sample_point()
    if point.is_void():
        raise NotProved
    return tuple(point.get_coordinate_val(isl.dim_type.set, place).to_python() for place in range(count))


def _spans(relation: _Relation, loop: Loop) -> bool:
    """Whether source and target may be in different iterations of a common loop; also where that is not proved."""
    if loop.var in relation.equal:
        return False
    try:
        return not _Question(relation, (f"{loop.var}_a != {loop.var}_b",)).is_empty
    except NotProved:
        return True


# --- sizes --------------------------------------------------------------------------------------------------
def _measured(relation: _Relation, touched: Touching) -> Reuse | None:
    """The reuse of a relation; None where there is none. Where isl does not say, its sizes are that of all that the
    program touches."""
    reuse = Reuse(
        relation.kinds,
        relation.a.text,
        relation.b.text,
        relation.loop,
        False,
        WorkingSet(0, 0, True),
        WorkingSet(0, 0, True),
        False,
    )
    try:
        found = _Question(relation).first_and_last()
    except NotProved:
        every = touched.touched({place: [{}] for place in touched.places})
        bound = replace(every, exact=False)
        return replace(reuse, least=bound, most=bound)
    if found is None:
        return None
    source, first, last = found
    level = _parallel_level(relation)
    if level is not None:
        size = touched.touched(dict(_iterations(relation, level, source, touched.places)))
        return replace(reuse, parallel=True, least=size, most=size)
    start = relation.source.time(source)
    least = touched.between(start, relation.target.time(first))
    most = least if first == last else touched.between(start, relation.target.time(last))
    return replace(reuse, least=least, most=most, several=first != last)


def _parallel_level(relation: _Relation) -> int | None:
    """The outermost parallel loop whose iterations the relation spans."""
    for level, loop in enumerate(relation.common):
        if loop.kind == "parallel" and (level == relation.level or _spans(relation, loop)):
            return level
    return None


def _iterations(
    relation: _Relation, level: int, source: Instance, places: Sequence[Placed]
) -> Iterator[tuple[Placed, list[Region]]]:
    """All iterations of a parallel loop, for the values that the loops outside have."""
    paths = relation.source.statement.loop_paths()
    path = paths[level][0]
    region: Region = {loop.var: (source[loop.var], source[loop.var]) for _, loop in paths[:level]}
    for place in places:
        if place.nest == relation.source.nest and place.statement.path[: len(path)] == path:
            yield place, [region]
