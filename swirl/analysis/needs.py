"""What a program needs of what is in its buffers before it runs, and which of them it sets whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from swirl.analysis.accesses import Access
from swirl.analysis.coverage import touches_all_once, unwritten_read
from swirl.analysis.sets import NotProved
from swirl.analysis.statements import Statement, statements
from swirl.ir.nest import Program

Box = tuple[tuple[int, int], ...]
"""For each dimension the first subscript and the last."""


@dataclass(frozen=True)
class Needs:
    """How a program uses its buffers, by their names in its nests.

    Args:
        read: whose contents before the program may matter to what it computes.
        whole: of which it sets every element, whatever was there before.
        computed_from: those that the program changes → whose elements are in what it stores there, directly or by way
            of locals and other buffers.
    """

    read: frozenset[str]
    whole: frozenset[str]
    computed_from: dict[str, frozenset[str]]


def needs(program: Program) -> Needs:
    """What a program needs. What is not proved counts as needed, or as not set whole.

    Args:
        program: plain nests, as they are lowered or derived; with all of its loops and conditions.
    """
    known = statements([statement for nest in program.nests for statement in nest.body])
    read, whole = set(), set()
    for name, buffer in program.buffers.items():
        own = [(s, access) for s in known for access in s.accesses if access.name == name]
        if any(access.kind != "write" for _, access in own) and _reads_before(known, name):
            read.add(name)
        elif _sets_all([pair for pair in own if pair[1].kind == "write"], buffer.shape):
            whole.add(name)
    return Needs(frozenset(read), frozenset(whole), _sources(known, program.buffers))


def _reads_before(known: list[Statement], name: str) -> bool:
    """Whether some read of a buffer is not certain to follow a write of the same element."""
    try:
        return unwritten_read(known, name) is not None
    except NotProved:
        return True


def _sets_all(writes: Sequence[tuple[Statement, Access]], shape: Sequence[int]) -> bool:
    """Whether writes set every element of an array: the boxes that they fill, or one of them by itself."""
    plain = [(statement, access) for statement, access in writes if not statement.guards]
    boxes = [box for statement, access in plain if (box := _box(statement, access)) is not None]
    if _cover(boxes, shape):
        return True
    others = [(s, access) for s, access in plain if None not in s.subscripts(access) and _box(s, access) is None]
    return any(touches_all_once(statement, access, shape) for statement, access in others)


def _box(statement: Statement, access: Access) -> Box | None:
    """The elements that a write sets, where each subscript is a number, or a loop's variable and a number."""
    if any(not loop.extent for loop in statement.loops):
        return None  # its bounds are not numbers, or it does not run
    box, seen = [], set[str]()
    for form in access.forms:
        if form is None or len(form.terms) > 1:
            return None
        first = last = form.constant
        for name, coefficient in form.terms.items():
            loop = next((loop for loop in statement.loops if loop.var == name), None)
            if loop is None or name in seen or coefficient != 1 or loop.step != 1:
                return None
            seen.add(name)
            low, high = statement.ranges[name]
            first, last = first + low, last + high
        box.append((first, last))
    return tuple(box)


def _cover(boxes: Sequence[Box], shape: Sequence[int]) -> bool:
    """Whether boxes cover all elements of an array."""
    whole = tuple((0, extent - 1) for extent in shape)
    if whole in boxes:
        return True
    if len(boxes) < 2:
        return False
    cuts = [sorted({0, *(edge for box in boxes for edge in (box[d][0], box[d][1] + 1))}) for d in range(len(shape))]
    corners: Iterable[tuple[int, ...]] = product(
        *([cut for cut in of if 0 <= cut < extent] for of, extent in zip(cuts, shape, strict=True))
    )
    return all(
        any(all(low <= at <= high for at, (low, high) in zip(corner, box, strict=True)) for box in boxes)
        for corner in corners
    )


def _sources(known: Sequence[Statement], buffers: Iterable[str]) -> dict[str, frozenset[str]]:
    """Changed buffer → the buffers that it is computed from."""
    direct: dict[str, set[str]] = {}
    held: set[str] = set(buffers)
    for statement in known:
        changed = statement.changed
        for name in changed:
            direct.setdefault(name, set()).update(
                access.name for access in statement.accesses if access.kind == "read" or access.name not in changed
            )
    found = {name: set(sources) for name, sources in direct.items()}
    grown = True
    while grown:
        grown = False
        for sources in found.values():
            more = set().union(*(found.get(source, ()) for source in sources)) - sources
            sources |= more
            grown = grown or bool(more)
    return {name: frozenset(sources & held) for name, sources in found.items() if name in held}
