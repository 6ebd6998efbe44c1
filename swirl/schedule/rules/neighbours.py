"""Several statements that add to neighbours of one element become one that sums up neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swirl.analysis.accesses import Access
from swirl.analysis.statements import Statement, statements_of
from swirl.ir.affine import affine
from swirl.ir.nest import fresh, variable_of
from swirl.ir.paths import Path, loops
from swirl.schedule.rules.trials import Trials
from swirl.transforms.rewrites.sites import taken_names

WHY = "each iteration sums neighbours of its own element"


@dataclass(frozen=True)
class _Scattered:
    """Statements of one body that add to an array at places that differ by constants.

    Args:
        array: what they add to.
        loops: those around the body along which the places differ, and those inside of these; outermost first.
        locals: that the statements read.
    """

    array: str
    loops: tuple[str, ...]
    locals: tuple[str, ...]


def gather_neighbours(own: Trials) -> None:
    """Statements that add to neighbours of one element get loops of their own, over the elements that they add to, and
    these are joined: the element stays in a register, and is stored once.

    rewrite (in a loop over images):
        for x in range(512):                       for x in range(512):
            g[x] += a[x]                               g[x] += a[x]
            if x >= 1:                       →         if x < 511:
                g[x - 1] += a[x]                           g[x] += a[x + 1]
            if x < 511:                                if x >= 1:
                g[x + 1] += a[x]                           g[x] += a[x - 1]

    Hardware: an element that is loaded again soon after a part of its vector was stored waits for the store to reach
    the cache.
    """
    found = _found(own)
    if found is None:
        return
    trial = own.scratch()
    if found.locals and not trial.apply(WHY, "store_local", list(found.locals)):
        return
    for var in reversed(found.loops):
        trial.apply(WHY, "distribute", var)
    if any(not trial.apply(WHY, "inline", name) for name in found.locals):
        return
    if len(trial.program.nests) > len(own.program.nests):
        return  # no loop is around all of them
    if _over_elements(trial, found.array) and _joined(trial, found):
        own.accept(trial)


def _found(own: Trials) -> _Scattered | None:
    """Such statements in a nest; None where there are none, or others beside them."""
    nest, buffers = own.nests[0], own.program.buffers
    known = statements_of(nest)
    for path, _ in loops(nest.body):
        inside = [s for s in known if s.path[: len(path)] == path]
        if any(len(s.loops) > len(inside[0].loops) for s in inside) or not inside:
            continue  # loops inside
        adding = [(s, a) for s in inside for a in s.accesses if a.kind == "add" and a.name in buffers]
        names = {a.name for _, a in adding}
        if len(names) != 1 or len(adding) < 2:
            continue
        setting = [a for s in inside for a in s.accesses if a.kind == "write"]
        if any(a.name in buffers or a.own for a in setting):
            continue
        differ = _loops_that_differ(adding)
        if differ:
            around = inside[0].variables()
            first = min(map(around.index, differ))
            return _Scattered(names.pop(), tuple(around[first:]), tuple(dict.fromkeys(a.name for a in setting)))
    return None


def _loops_that_differ(adding: Sequence[tuple[Statement, Access]]) -> set[str]:
    """The loops along which the places of statements differ by constants; none where they differ otherwise."""
    found: set[str] = set()
    forms = [[affine(index, s.ranges) for index in access.own] for s, access in adding]
    for (s, _), own in zip(adding, forms, strict=True):
        for form, first in zip(own, forms[0], strict=True):
            if form is None or first is None or form.terms != first.terms:
                return set()
            if form.constant != first.constant:
                if list(form.terms.values()) != [1] or not form.terms.keys() <= set(s.variables()):
                    return set()
                found.update(form.terms)
    return found


def _over_elements(trial: Trials, array: str) -> bool:
    """Loops whose iterations add to other elements than their own are now over these; whether all are. Where one adds
    at several places, as in two statements under one condition, there are no such loops."""
    while (moved := _moved(trial, array)) is not None:
        path, var, shifts = moved
        if len(shifts) > 1:
            return False
        new, (shift,) = fresh(f"{var}_to", taken_names(trial.program)), shifts
        index = f"{var} {'+' if shift > 0 else '-'} {abs(shift)}"
        if not trial.apply(WHY, "reindex", _selection(trial, path), **{new: index}):
            return False
    return True


def _moved(trial: Trials, array: str) -> tuple[Path, str, set[int]] | None:
    """A loop whose iterations add to other elements than their own, and how far from it all those are."""
    shifts: dict[tuple[Path, str], set[int]] = {}
    for statement in statements_of(trial.nests[0]):
        around = statement.variables()
        for access in statement.accesses:
            for index in access.own if access.kind == "add" and access.name == array else ():
                form = affine(index, statement.ranges)
                if form is not None and list(form.terms.values()) == [1] and (var := next(iter(form.terms))) in around:
                    path = statement.path[: statement.loop_depths[around.index(var)] + 1]
                    shifts.setdefault((path, var), set()).add(form.constant)
    return next(((*loop, found) for loop, found in shifts.items() if found != {0}), None)


def _selection(trial: Trials, path: Path) -> str:
    """The text that selects the loop at a path of the nest."""
    by_path = dict(loops(trial.nests[0].body))
    var = variable_of(by_path[path])
    same = [each for each, node in by_path.items() if variable_of(node) == var]
    return var if len(same) == 1 else f"{var}[{same.index(path)}]"


def _joined(trial: Trials, found: _Scattered) -> bool:
    """The loops that store to the array are one again, at each depth; whether all of them are."""
    for _ in found.loops:
        pair = _neighbours(trial, found.array)
        while pair is not None:
            if not trial.apply("sums over one element", "fuse", *pair, guard=True):
                return False
            pair = _neighbours(trial, found.array)
    return True


def _neighbours(trial: Trials, array: str) -> tuple[str, str] | None:
    """The first two loops directly after each other that both store to the array, the outermost ones first."""
    nest = trial.nests[0]
    storing = {
        s.path[:length]
        for s in statements_of(nest)
        for a in s.accesses
        if a.name == array and a.kind != "read"
        for length in range(1, len(s.path))
    }
    by_path = dict(loops(nest.body))
    for path in sorted(storing & by_path.keys(), key=lambda path: (len(path), path)):
        field, index = path[-1]
        after: Path = (*path[:-1], (field, index + 1))
        if after in storing and after in by_path:
            return _selection(trial, path), variable_of(by_path[after])
    return None
