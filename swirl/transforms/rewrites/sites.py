"""Loops of a program found by name, and a rewrite applied to each of them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace

from swirl.errors import CommandError, ValidationError, nearest
from swirl.ir.nest import Nest, Program, fresh, loop_of, names_in, variable_of
from swirl.ir.paths import Path, at, enclosing, loops, replace_at
from swirl.ir.trees import changed, declared_in
from swirl.transforms.arguments import Selection
from swirl.transforms.rewrites.checks.checked import checked


# --- finding loops --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Site:
    """A loop of a program: the nest's index and the path in its body."""

    nest: int
    path: Path


def loop_names(program: Program) -> list[str]:
    """Every loop variable of the program, in order of first appearance."""
    return list(dict.fromkeys(variable_of(node) for nest in program.nests for _, node in loops(nest.body)))


def resolve(program: Program, selected: str) -> tuple[str, ...]:
    """The loop variables that a name means: itself, or what the alias stands for (suffixes of tiling kept). Of a path
    it is the last name."""
    names = loop_names(program)
    if not isinstance(selected, str):
        raise CommandError(
            f"a loop is given by its name, not {selected!r}", way_out=f"the loops are {', '.join(names)}"
        )
    name = Selection.of(selected).name
    if name in names:
        return (name,)
    for alias, targets in program.aliases.items():
        suffix = name[len(alias) :]
        if name.startswith(alias) and (not suffix or suffix.startswith("_")):
            found = tuple(target + suffix for target in targets if target + suffix in names)
            if found:
                return found
    older = [
        alias + other[len(target) :]
        for alias, targets in program.aliases.items()
        for target in targets
        for other in names
        if other == target or other.startswith(f"{target}_")
    ]
    shown = [*names, *older]
    parts = [other for other in shown if other in (f"{name}_outer", f"{name}_inner")]
    hint = f"it is tiled: {' and '.join(parts)}; " if parts else nearest(name, shown)
    raise CommandError(
        f"no loop named {name!r} in {program.name}",
        way_out=f"{hint}the loops are {', '.join(names)}",
    )


def resolve_name(program: Program, name: str) -> tuple[str, ...]:
    """The loop variables that a name means, where a path would choose nothing.

    Raises:
        CommandError: it is a path.
    """
    if Selection.of(name) != Selection(name):
        raise CommandError(f"the loop is given by its name alone here, not {name!r}")
    return resolve(program, name)


def resolve_around(program: Program, selected: str) -> list[set[str]]:
    """The variables of the loops around, outermost first, that a path names."""
    return [set(resolve(program, name)) for name in Selection.of(selected).around]


def find_loops(program: Program, selected: str, nest: int | str | None = None) -> list[Site]:
    """The loops that are selected, last first, so that rewriting one leaves the paths of the others valid.

    Args:
        selected: see :class:`Selection`.
        nest: only this nest, by index or label.

    Raises:
        CommandError: there is no such loop.
    """
    selection = Selection.of(selected)
    wanted, around = set(resolve(program, selected)), resolve_around(program, selected)
    named = [
        Site(index, path)
        for index, candidate in enumerate(program.nests)
        if nest is None or nest in (index, candidate.label)
        for path, node in loops(candidate.body)
        if variable_of(node) in wanted
    ]
    if not named:
        labels = ", ".join(candidate.label for candidate in program.nests)
        raise CommandError(
            f"no loop {selected!r} in nest {nest!r} of {program.name}", way_out=f"the nests are {labels}"
        )
    sites = named
    if around:
        sites = [s for s in named if is_within(variables_around(program.nests[s.nest], s.path), around)]
    if not sites:
        raise CommandError(f"no loop {selected!r} in {program.name}", way_out=_those_named(program, named))
    if selection.occurrence is not None:
        if not -len(sites) <= selection.occurrence < len(sites):
            name = selected.partition("[")[0]
            there = "is 1 loop" if len(sites) == 1 else f"are {len(sites)} loops"
            raise CommandError(
                f"there {there} {name!r}, counted from 0: no {selection.occurrence!r}",
                way_out=_those_named(program, named),
            )
        sites = [sites[selection.occurrence]]
    return sites[::-1]


def _those_named(program: Program, sites: Iterable[Site]) -> str:
    """The loops of a name, as paths, for a message."""
    paths = (
        (*variables_around(program.nests[site.nest], site.path), variable_of(loop_at(program, site))) for site in sites
    )
    return f"loops of that name: {', '.join(dict.fromkeys(map('/'.join, paths)))}"


def variables_around(nest: Nest, path: Path) -> list[str]:
    """The variables of the loops around a statement, outermost first."""
    return [variable_of(node) for node in enclosing(nest.body, path) if isinstance(node, ast.For)]


def is_within(variables: Iterable[str], around: Sequence[Collection[str]]) -> bool:
    """Whether loops are inside of others.

    Args:
        variables: of the loops around, outermost first.
        around: for each that there must be the variables that it may have, outermost first.
    """
    rest = iter(variables)
    return all(any(variable in names for variable in rest) for names in around)


def loop_at(program: Program, site: Site) -> ast.For:
    """The ``for`` at ``site``."""
    node = at(program.nests[site.nest].body, site.path)
    assert isinstance(node, ast.For)
    return node


def with_mark(program: Program, site: Site, mark: str) -> Program:
    """The program with the loop at ``site`` marked, so that :func:`take_mark` finds it after statements have
    moved."""
    loop = changed(loop_at(program, site), mark=mark)
    function = program.nests[site.nest].function
    body = replace_at(function.body, site.path, [loop])
    return program.with_nest(site.nest, Nest(changed(function, body=body)))


def take_mark(program: Program, mark: str) -> Site:
    """Where the marked loop is now; the mark is taken off."""
    site = _marked(program, mark)
    if site is None:
        raise ValidationError("a rewrite has lost the loop that it was about")
    return site


def _marked(program: Program, mark: str) -> Site | None:
    for index, nest in enumerate(program.nests):
        for path, node in loops(nest.body):
            if getattr(node, "mark", None) == mark:
                del node.mark  # type: ignore[attr-defined]
                nest.facts.clear()
                return Site(index, path)
    return None


def rewrite_each(
    program: Program,
    name: str,
    nest: int | str | None,
    rewrite: Callable[[Program, Site], Program],
    *,
    together: bool = False,
) -> Program:
    """``rewrite`` applied to every loop that ``name`` selects, wherever the rewrites before have moved it, and
    checked; one that disappears because its condition never holds is passed over.

    A loop that ``rewrite`` is refused for stays as it is, and the program's remarks say so.

    Args:
        name: see :class:`Selection`.
        together: whether all are left unchanged if one is refused.

    Raises:
        CommandError, Refused: no loop of that name qualifies; of the first one.
    """
    sites = find_loops(program, name, nest)
    if len(sites) > 1:  # checking takes as long as rewriting: all at once, and one by one only where that fails
        result = _rewritten(program, name, sites, rewrite, lambda _, after: after, together)
        with suppress(CommandError):
            return checked(program, result)
    return _rewritten(program, name, sites, rewrite, checked, together)


def _rewritten(
    program: Program,
    name: str,
    sites: Sequence[Site],
    rewrite: Callable[[Program, Site], Program],
    check: Callable[[Program, Program], Program],
    together: bool,
) -> Program:
    """``rewrite`` applied to each of the sites; ``check`` gets the program before and after it."""
    result = program
    for number, site in enumerate(sites):
        result = with_mark(result, site, f"{name} {number}")
    left = LeftAlone()
    for number in range(len(sites)):
        before, found = result, _marked(result, f"{name} {number}")
        if found is not None:
            with nullcontext() if together else left.noting(before, found):
                result = check(before, rewrite(before, found))
                left.changed |= result is not before
    return left.with_remarks(result, backwards=True)


class LeftAlone:
    """The loops that a command has left unchanged: one that does not qualify does not block the others.

    Attributes:
        changed: whether it has changed any of them.
    """

    def __init__(self) -> None:
        self.changed = False
        self._refused: list[tuple[str, CommandError]] = []

    @contextmanager
    def noting(self, program: Program, site: Site) -> Iterator[None]:
        """A refusal inside is noted for the loop at ``site``."""
        try:
            yield
        except CommandError as error:
            nest = program.nests[site.nest]
            around = variables_around(nest, site.path)
            inside = f" inside {', '.join(around)}" if around else ""
            self._refused.append((f"loop {loop_of(loop_at(program, site)).var}{inside} of {nest.label}", error))

    def with_remarks(self, result: Program, *, backwards: bool = False) -> Program:
        """The program with remarks on what was left; if nothing has changed, the first refusal is raised.

        Args:
            backwards: the loops were taken last first.
        """
        refused = self._refused[::-1] if backwards else self._refused
        if refused and not self.changed:
            raise refused[0][1]
        new = tuple(f"{where} stays as it is: {error.message}" for where, error in refused)
        return replace(result, remarks=(*result.remarks, *new)) if new else result


def inner_name(program: Program, site: Site, base: str, taken: Collection[str] = ()) -> str:
    """A name for a loop inside the one at ``site``: ``base``, unless it means something there already, or is taken.

    Loops that do not enclose each other may share a name; a command on that name then means all of them.
    """
    nest = program.nests[site.nest]
    around = {variable_of(n) for n in enclosing(nest.body, site.path) if isinstance(n, ast.For)}
    inside = names_in(at(nest.body, site.path))
    return fresh(base, {*program.buffers, *declared_in(nest.function), *around, *inside, *taken})


def taken_names(program: Program, nests: Iterable[Nest] | None = None) -> set[str]:
    """Names that a new loop or local must not have."""
    return set(program.buffers).union(*(nest.names for nest in (program.nests if nests is None else nests)))
