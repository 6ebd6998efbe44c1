"""Loops of a nest in another order."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from swirl.analysis.dependences import NotProved
from swirl.errors import CommandError, Refused
from swirl.ir.affine import ranges_at
from swirl.ir.nest import Loop, Nest, Program, loop_of, names_in, variable_of
from swirl.ir.paths import Path, at, enclosing, loops, replace_at
from swirl.ir.printing import unparse
from swirl.transforms.arguments import Selection
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.checks.dependence_order import check_order, tagged
from swirl.transforms.rewrites.checks.refusals import WayOut, refuse
from swirl.transforms.rewrites.checks.ways_out import Step, nest_of, step, tried
from swirl.transforms.rewrites.loops.nesting import chain_to, conditions_inside, isolate, vars_below
from swirl.transforms.rewrites.loops.projection import projected
from swirl.transforms.rewrites.sites import (
    LeftAlone,
    Site,
    is_within,
    loop_at,
    resolve,
    resolve_around,
    variables_around,
)


def nests_with(program: Program, names: tuple[str, ...], nest: int | str | None) -> list[int]:
    """Nests in which all loops of ``names`` are on one path."""
    result = []
    for index, candidate in enumerate(program.nests):
        if nest is not None and nest not in (index, candidate.label):
            continue
        if any(set(names) <= _vars_along(candidate.body, path) for path, _ in loops(candidate.body)):
            result.append(index)
    return result


def _vars_along(body: list[ast.stmt], path: Path) -> set[str]:
    nodes = [at(body, path[: depth + 1]) for depth in range(len(path))]
    return {variable_of(node) for node in nodes if isinstance(node, ast.For)}


def loops_around(program: Program, selected: Sequence[str]) -> list[tuple[set[str], list[set[str]]]]:
    """What the paths among loops say: for each its own variables, and those that the loops around it may have.

    Raises:
        CommandError: one is chosen by its number.
    """
    for text in selected:
        if Selection.of(text).occurrence is not None:
            raise CommandError(f"of several loops a path chooses some, not {text!r}", way_out="'y/x' for x inside of y")
    return [(set(resolve(program, text)), resolve_around(program, text)) for text in selected]


def permuted(
    program: Program,
    index: int,
    names: list[str],
    left: LeftAlone,
    again: Step,
    inside: Sequence[tuple[set[str], Sequence[set[str]]]] = (),
    *,
    swap: bool = False,
) -> Program:
    """Every group of loops ``names`` on one path of a nest put into that order, or two of them swapped.

    Args:
        program: with the nest.
        index: of the nest.
        names: of the loops.
        left: notes those that do not qualify.
        again: the command as it was given.
        inside: only inside of these loops: see :func:`loops_around`.
        swap: whether two are swapped.
    """
    nest = program.nests[index]
    wanted = set(names)
    result = program
    for path, node in reversed(list(loops(nest.body))):
        outside = _vars_along(nest.body, path[:-1]) if len(path) > 1 else set()
        if variable_of(node) in wanted and not wanted & outside and wanted <= vars_below(node):
            chain = [*variables_around(nest, path), *_vars_towards(node, wanted)]
            if not all(is_within(_before(chain, own), around) for own, around in inside):
                continue
            present = [var for var in _vars_towards(node, wanted) if var in wanted]
            site = Site(index, path)
            way_out = way_to_nest(result, site, again)
            with left.noting(result, site):
                start = nest
                if len(present) < len(names):  # a condition is between, or they are side by side
                    around = {variable_of(n) for n in enclosing(nest.body, path) if isinstance(n, ast.For)}
                    node = conditions_inside(node, wanted, around)
                    start = nest.with_body(replace_at(nest.body, path, [node]))
                    present = [var for var in _vars_towards(node, wanted) if var in wanted]
                if len(present) < len(names):
                    raise _imperfect(nest, path, way_out)
                order = present[::-1] if swap else names
                new_nest = permute_at(program, start, path, dict(zip(present, order, strict=True)), way_out)
                result, nest = checked(result, result.with_nest(index, new_nest)), new_nest
                left.changed = True
    return result


def _before(chain: Sequence[str], own: set[str]) -> Iterable[str]:
    """The variables before the first of some."""
    return takewhile(lambda var: var not in own, chain)


def _vars_towards(node: ast.For, wanted: set[str]) -> list[str]:
    """Variables of the loops from ``node`` inwards, along the path that holds all of ``wanted``."""
    found = [variable_of(node)]
    rest = wanted - set(found)
    for statement in node.body:
        if rest and isinstance(statement, ast.For) and rest <= vars_below(statement):
            return found + _vars_towards(statement, rest)
    return found


def permute_at(program: Program, nest: Nest, path: Path, places: dict[str, str], way_out: WayOut = None) -> Nest:
    """``nest`` with the loops at and below ``path`` permuted: ``places[v]`` takes the place of loop ``v``.

    Args:
        way_out: if something is between the loops.
    """
    old = tagged(nest.body)
    body, start = old, path
    end = chain_to(body, path, set(places))
    if end is None:
        node = at(body, path)
        assert isinstance(node, ast.For)
        pieces = isolate(node, set(places))
        if pieces is None:
            raise _imperfect(nest, path, way_out)
        position = next(i for i, piece in enumerate(pieces) if set(places) <= vars_below(piece))
        body = replace_at(body, path, list(pieces))
        path = (*path[:-1], (path[-1][0], path[-1][1] + position))
        end = chain_to(body, path, set(places))
        if end is None:
            raise _imperfect(nest, start, way_out)
    chain: list[Loop] = []
    for depth in range(len(path), len(end) + 1):
        node = at(body, end[:depth])
        assert isinstance(node, ast.For)
        chain.append(loop_of(node))
    if any(loop.kind == "vector" and places.get(loop.var, loop.var) != loop.var for loop in chain):
        raise refuse("a vector loop stays innermost", nest, path, "asked to move", way_out="reorder, then vectorize")
    by_name = {loop.var: loop for loop in chain}
    new_chain = [by_name[places.get(loop.var, loop.var)] for loop in chain]
    moving = {
        loop.var: inner
        for position, loop in enumerate(new_chain)
        if (inner := names_in(loop.start) | names_in(loop.stop)) & {later.var for later in new_chain[position + 1 :]}
    }
    if moving:
        new_chain = _projected(nest, body, path, chain, [loop.var for loop in new_chain], moving)
    leaf = at(body, end)
    assert isinstance(leaf, ast.For)
    inner_body = leaf.body
    for loop in reversed(new_chain):
        inner_body = [loop.node(inner_body)]
    new = replace_at(body, path, inner_body)
    check_order(old, new, nest, start, "asked to move")
    return nest.with_body(new)


def _projected(
    nest: Nest, body: list[ast.stmt], path: Path, chain: list[Loop], order: list[str], moving: dict[str, set[str]]
) -> list[Loop]:
    """The loops of ``chain`` in another order, in which the bounds of some would move with loops inside of them.

    Args:
        body, path: where they are, ``body`` being that of ``nest`` or its loops distributed.
        moving: those loops' variables, and the names in their bounds.
    """
    around = [loop_of(n) for n in enclosing(body, path) if isinstance(n, ast.For)]
    try:
        found = projected(chain, order, around, ranges_at(body, path))
    except NotProved:
        found = None
    if found is not None:
        return found
    var, names = next(iter(moving.items()))
    inner = [name for name in order[order.index(var) + 1 :] if name in names]
    raise refuse(
        f"the bounds of {var} move with {', '.join(inner)}, and no bounds say the same in the other order",
        nest,
        path,
        "asked to move",
    )


def _imperfect(nest: Nest, path: Path, way_out: WayOut) -> Refused:
    return refuse(
        "the loops are not perfectly nested, and cannot be made so", nest, path, "asked to move", way_out=way_out
    )


def way_to_nest(program: Program, site: Site, again: Step) -> Callable[[], str | None]:
    """A way out for loops at and below ``site`` with something between them: a local with an element for each
    iteration, a distribution.

    Args:
        again: the command that was refused.
    """
    loop = loop_at(program, site)
    var, only = variable_of(loop), nest_of(program, site)
    locals_ = [unparse(node.target) for node in loop.body if isinstance(node, ast.AnnAssign)]
    alternatives = [(step("scalar_expand", name, var, nest=only), again) for name in locals_]
    if len(locals_) > 1:
        alternatives.append((step("scalar_expand", locals_, var, nest=only), again))
    return tried(program, *alternatives, (step("distribute", var, nest=only), again))
