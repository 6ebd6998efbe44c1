"""Loops over one range, the first of which sets what the next one adds to, become one."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from swirl.analysis.accesses import Access
from swirl.analysis.loop_facts import moves
from swirl.analysis.statements import Statement, statements_of
from swirl.ir.affine import coefficients
from swirl.ir.nest import loop_of
from swirl.ir.paths import Path, loops
from swirl.ir.printing import unparse
from swirl.ir.trees import names_in
from swirl.schedule.rules.trials import Step, Trials, step


def join(trials: Trials) -> None:
    """Loops that only set what the next loop, over the same range, adds to are joined with it.

    rewrite:
        for k in range(64):                          for k in range(64):
            y[k] = 0.0                                   y[k] = 0.0
        for k in range(64):                    →         for i in range(512):
            for i in range(512):                             y[k] += w[k, i] * a[i]
                y[k] += w[k, i] * a[i]

    Hardware: the element begins in a register, and is neither stored nor loaded in between.
    """
    for number in range(len(trials.program.nests) - 1):
        replace(trials, nest=number).together(_as_after(trials, number))
    refused: set[tuple[int, str, str]] = set()
    while (pair := _set_before(trials, refused)) is not None:
        number, first, second = pair
        own = replace(trials, nest=number)
        if own.apply("sums begin where they are made", "fuse", first, second):
            refused.clear()  # nests have other numbers now
        else:
            refused.add(pair)


def _set_before(trials: Trials, refused: Collection[tuple[int, str, str]]) -> tuple[int, str, str] | None:
    """Two neighbouring loops of one range, and the nest of the first one, which sets what the second adds to."""
    for number, first, second in _neighbours(trials):
        one, two = loop_of(first.node), loop_of(second.node)
        if one.extent is not None and one.extent == two.extent and (number, one.var, two.var) not in refused:
            added = {access.name for access in second.accesses if access.kind == "add"}
            made = [access for access in first.accesses if access.names and any(access.names)]
            if made and all(access.kind in ("read", "write") and access.name in added for access in made):
                return number, one.var, two.var
    return None


def _as_after(trials: Trials, number: int) -> list[Step]:
    """What makes the loops of a nest, which sets an array, run as those of the next one, which adds to it, in the
    same strips; empty if they already do, or if the nests are of another kind."""
    known = [s for s in statements_of(trials.program.nests[number]) if s.accesses]
    if len(known) != 1:
        return []
    (sets,) = known
    target = next((a for a in sets.accesses if a.kind == "write"), None)
    after = statements_of(trials.program.nests[number + 1])
    adds = [(s, a) for s in after for a in s.accesses if a.kind == "add" and target and a.name == target.name]
    if target is None or len(adds) != 1 or len(sets.loops) != len(target.own):
        return []
    statement, added = adds[0]
    own = {_dimension(loop.var, target): loop.var for loop in sets.loops}
    placed = [_place(loop.var, added) for loop in statement.loops if moves(added, loop.var)]
    if None in placed or any(not moves(added, loop.var) for loop in statement.loops[: len(placed)]):
        return []
    sizes = {own.get(dim): size for dim, size in filter(None, placed) if size > 1}
    named = [(own.get(dim), size) for dim, size in filter(None, placed)]
    wanted = [f"{var}_{'outer' if size > 1 else 'inner'}" if var in sizes else var for var, size in named]
    if None in wanted or len(set(wanted)) != len(wanted) or {var for var, _ in named} != set(own.values()):
        return []
    why = "in the order of the loops that add to what these set"
    tiles = [step(why, "tile_loop", var, size) for var, size in sizes.items()]
    return [*tiles, step(why, "reorder", wanted)] if wanted != sets.variables() else []


def _neighbours(trials: Trials) -> Iterator[tuple[int, _Inside, _Inside]]:
    """Loops one after the other, in one body or as the outermost ones of two nests, with the number of the nest of
    the first."""
    before: _Inside | None = None
    for number, nest in enumerate(trials.program.nests):
        known, by_path = statements_of(nest), dict(loops(nest.body))
        every = {path: _Inside(node, _accesses_in(known, path)) for path, node in by_path.items()}
        first = every.get((("body", 0),))
        if before is not None and first is not None:
            yield number - 1, before, first
        for path, inside in every.items():
            after = (*path[:-1], (path[-1][0], path[-1][1] + 1))
            if after in every:
                yield number, inside, every[after]
        before = every.get((("body", len(nest.body) - 1),))


@dataclass(frozen=True)
class _Inside:
    """A loop, and what is accessed in it."""

    node: ast.For
    accesses: Sequence[Access]


def _dimension(var: str, access: Access) -> int | None:
    """The dimension whose subscript is a loop's variable."""
    return next((dim for dim, index in enumerate(access.own) if unparse(index) == var), None)


def _place(var: str, access: Access) -> tuple[int, int] | None:
    """The one dimension whose subscript moves with a loop, and by how much."""
    found = [(dim, coefficients(index, var)) for dim, index in enumerate(access.own) if var in names_in(index)]
    return (found[0][0], found[0][1]) if len(found) == 1 and found[0][1] is not None else None


def _accesses_in(known: Sequence[Statement], path: Path) -> list[Access]:
    return [access for s in known if s.path[: len(path)] == path for access in s.accesses]
