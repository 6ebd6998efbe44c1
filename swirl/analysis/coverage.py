"""Which elements of an array a program certainly sets, by integer sets: all of them, or those that it reads."""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from swirl.analysis.accesses import Access
from swirl.analysis.dependences import before, touched_once
from swirl.analysis.sets import NotProved, least_point, limited, set_of
from swirl.analysis.statements import Statement


def unwritten_read(known: list[Statement], name: str, depth: int = 0) -> str | None:
    """A read of ``name`` that no earlier write of the same iteration certainly sets, in words; None where there is
    none.

    Args:
        known: the statements of the program in textual order.
        name: a buffer.
        depth: the number of loops, from the outermost, whose iterations are told apart: they contain all of ``known``
            that touch the buffer.

    Raises:
        NotProved: the question takes too much work, or a subscript is indirect.
    """
    writes = [(s, a) for s in known for a in s.accesses if a.name == name and a.kind == "write" and _certain(s, a)]
    for statement in known:
        for access in statement.accesses:
            if access.name != name or access.kind == "write":
                continue
            if any(_dominates(write, own, statement, access) for write, own in writes):
                continue
            point = _uncovered(statement, access, writes, depth)
            if point is not None:
                where = ", ".join(f"{var}={value}" for var, value in point.items()) or "an iteration"
                place = statement.text.splitlines()[0]
                what = f"{where} reads {access.text}, which nothing before it in the same iteration certainly sets"
                return f"in {place}, {what}"
    return None


def _certain(statement: Statement, access: Access) -> bool:
    """Whether the statement's instances are known exactly, so that the write certainly happens."""
    return statement.domain.exact and None not in statement.subscripts(access)


def _dominates(write: Statement, own: Access, read: Statement, access: Access) -> bool:
    """Whether the write is before the read in a block around it, and sets the same element."""
    block = write.path[:-1]
    return (
        own.text == access.text
        and block == read.path[: len(block)]
        and write.path[-1][0] == read.path[len(block)][0]
        and write.path[-1][1] < read.path[len(block)][1]
    )


def _uncovered(
    read: Statement, access: Access, writes: list[tuple[Statement, Access]], depth: int
) -> dict[str, int] | None:
    """The least instance of the read that no write covers."""
    subscripts = read.subscripts(access)
    if None in subscripts:
        raise NotProved
    domain = [*read.domain.for_isl("_b"), *read.evaluated(access, "_b")]
    names = [var + "_b" for var in read.variables()]
    head = f"{{ [{', '.join(names)}] : "

    def uncovered(context: isl.Context) -> isl.Set:
        rest = set_of(context, f"{head}{' and '.join(domain or ['1 = 1'])} }}")
        for write, own in writes:
            constraints = [*domain, *write.domain.for_isl("_a"), *_meeting(write, own, read, access)]
            constraints += [f"{loop.var}_a = {loop.var}_b" for loop in read.loops[:depth]]
            bound = ", ".join(var + "_a" for var in write.variables())
            exists = f"exists {bound} : " if bound else ""
            text = f"{head}{exists}{' and '.join(constraints)} }}"
            rest = rest.subtract(set_of(context, text))
        return rest

    point = least_point(uncovered, len(names), f"the accesses of {access.text}")
    return None if point is None else dict(zip(read.variables(), point, strict=True))


def _meeting(first: Statement, access: Access, second: Statement, own: Access) -> list[str]:
    """The constraints that an instance of ``first`` (``_a``) touches the element that a later one of ``second``
    (``_b``) does."""
    pairs = zip(first.subscripts(access), second.subscripts(own), strict=True)
    same = (f"{str(mine).replace('@', '_a')} = {str(theirs).replace('@', '_b')}" for mine, theirs in pairs)
    return [before(first, second), *same]


def touched_again(first: Statement, access: Access, later: Statement, own: Access) -> bool:
    """Whether a later statement certainly touches each element that a statement touches, once, after it."""
    if not (_certain(first, access) and _certain(later, own) and touched_once(later, own, later.loops)):
        return False
    names = [var + "_a" for var in first.variables()]
    head = f"{{ [{', '.join(names)}] : "
    constraints = [*first.domain.for_isl("_a"), *later.domain.for_isl("_b"), *_meeting(first, access, later, own)]
    bound = ", ".join(var + "_b" for var in later.variables())
    exists = f"exists {bound} : " if bound else ""

    def left(context: isl.Context) -> isl.Set:
        every = set_of(context, f"{head}{' and '.join(first.domain.for_isl('_a') or ['1 = 1'])} }}")
        return every.subtract(set_of(context, f"{head}{exists}{' and '.join(constraints)} }}"))

    try:
        return least_point(left, len(names), f"the elements of {access.text}") is None
    except NotProved:
        return False


def touches_all_once(statement: Statement, access: Access, shape: Sequence[int]) -> bool:
    """Whether a statement, under no condition, certainly touches each element of an array of ``shape`` exactly once."""
    if statement.guards or not touched_once(statement, access, statement.loops):
        return False
    names, axes = statement.variables(), [f"i{axis}" for axis in range(len(shape))]
    at = [f"{axis} = {index}" for axis, index in zip(axes, statement.subscripts(access), strict=True)]
    constraints = [part.replace("@", "_") for part in (*statement.domain.for_isl("@"), *at)]
    exists = f"exists {', '.join(f'{name}_' for name in names)} : " if names else ""
    box = " and ".join(f"0 <= {axis} < {extent}" for axis, extent in zip(axes, shape, strict=True))
    try:
        with limited(f"the elements of {access.text}") as context:
            touched = f"{{ [{', '.join(axes)}] : {exists}{' and '.join(constraints)} }}"
            whole = set_of(context, f"{{ [{', '.join(axes)}] : {box} }}")
            return bool(whole.is_subset(set_of(context, touched)))
    except NotProved:
        return False
