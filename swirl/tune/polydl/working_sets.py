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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import islpy as isl

from swirl.analysis.accesses import Access
from swirl.analysis.dependences import pins, touching
from swirl.analysis.sets import NotProved, limited, set_of
from swirl.ir.nest import Loop, Program
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
        program: of one nest or several, which count as one after the other. Buffers count, locals do not: they are in
            registers. Conditions on data count as true, an indirect subscript as any; sizes are then not exact.

    Raises:
        ValidationError: the bounds of a loop are not quasi-affine.
    """
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
    """

    source: Placed
    target: Placed
    a: Access
    b: Access
    level: int
    kinds: tuple[str, ...]
    constraints: tuple[str, ...]

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
    for level, loop in enumerate(first.loops[:count]):
        if not pins(first, second, a, b, {each.var for each in first.loops[:level]}, loop.var):
            later = f"{loop.var}_a {'<' if loop.step > 0 else '>'} {loop.var}_b"
            yield _Relation(source, target, a, b, level, kinds, (*constraints, *same, later))
        same.append(f"{loop.var}_a = {loop.var}_b")
    if _comes_later(source, target, count):
        yield _Relation(source, target, a, b, count, kinds, (*constraints, *same))


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


@dataclass(frozen=True)
class _Names:
    """The variables of an instance for isl, in the order of execution: loops that count down have their negatives.

    Args:
        place: of the statement.
        suffix: of its variables.
    """

    place: Placed
    suffix: str

    @property
    def entries(self) -> list[str]:
        """Of a tuple."""
        loops = self.place.statement.loops
        return [each.var + self.suffix if each.step > 0 else f"{each.var}{self.suffix}_down" for each in loops]

    @property
    def down(self) -> list[str]:
        """Variables that are not entries themselves."""
        return [each.var + self.suffix for each in self.place.statement.loops if each.step < 0]

    def instance(self, values: Sequence[int]) -> Instance:
        """The variables where the entries have values."""
        loops = self.place.statement.loops
        return {each.var: value if each.step > 0 else -value for each, value in zip(loops, values, strict=True)}


def _set(relation: _Relation, names: Sequence[_Names], more: Sequence[str] = ()) -> str:
    """The pairs of a relation, for isl."""
    entries = [entry for each in names for entry in each.entries]
    down = [variable for each in names for variable in each.down]
    parts = [*relation.constraints, *(f"{variable}_down = -{variable}" for variable in down), *more]
    inside = " and ".join(parts or ["1 = 1"])
    bound = f"exists {', '.join(down)} : " if down else ""
    return f"{{ [{', '.join(entries)}] : {bound}{inside} }}"


def _first_and_last(relation: _Relation) -> tuple[Instance, Instance, Instance] | None:
    """The first source, its first and its last target; None where there are none.

    Raises:
        NotProved: the question takes too much work.
    """
    names = _Names(relation.source, "_a"), _Names(relation.target, "_b")
    count = len(names[0].entries)
    with limited() as context:
        pairs = set_of(context, _set(relation, names))
        if pairs.is_empty():
            return None
        first = _coordinates(pairs.lexmin())
        targets = pairs
        for dimension, value in enumerate(first[:count]):
            targets = targets.fix_val(isl.dim_type.set, dimension, isl.Val.int_from_si(context, value))
        last = _coordinates(targets.lexmax())
    return names[0].instance(first[:count]), names[1].instance(first[count:]), names[1].instance(last[count:])


def _coordinates(point: isl.Set) -> list[int]:
    found = point.sample_point()
    if found.is_void():
        raise NotProved
    count = point.dim(isl.dim_type.set)
    return [found.get_coordinate_val(isl.dim_type.set, place).to_python() for place in range(count)]


def _spans(relation: _Relation, loop: Loop) -> bool:
    """Whether source and target may be in different iterations of a common loop; also where that is not proved."""
    names = _Names(relation.source, "_a"), _Names(relation.target, "_b")
    try:
        with limited() as context:
            return not set_of(context, _set(relation, names, [f"{loop.var}_a != {loop.var}_b"])).is_empty()
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
        found = _first_and_last(relation)
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
        if loop.kind != "parallel" or level < relation.level:
            continue
        if level == relation.level or _spans(relation, loop):
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
