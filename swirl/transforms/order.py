"""Commands that change the order of iterations: interchange, reorder, reverse."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from itertools import pairwise

from swirl.errors import CommandError, Refused
from swirl.ir.affine import ranges_at, simplify, simplify_body
from swirl.ir.deps import NotProved, carried, reordered
from swirl.ir.nest import (
    Loop,
    Nest,
    Path,
    Program,
    at,
    clones,
    enclosing,
    expr,
    loop_of,
    loops,
    names_in,
    replace_at,
    substitute,
    with_inner,
)
from swirl.ir.statements import tag
from swirl.ir.trees import statements_in
from swirl.transforms.base import (
    LeftAlone,
    Site,
    WayOut,
    check_names,
    checked,
    command,
    loop_at,
    loop_names,
    refuse,
    resolve,
    rewrite_each,
)
from swirl.transforms.projection import projected
from swirl.transforms.ways import Step, nest_of, step, tried

# --- shared pieces ---------------------------------------------------------------------------------------


def check_order(
    old: list[ast.stmt], new: list[ast.stmt], nest: Nest, path: Path, note: str, way_out: WayOut = None
) -> None:
    """Raises Refused where ``new``, a rearrangement of the tagged statements of ``old``, turns a dependence
    round."""
    try:
        conflict = reordered(old, new)
    except NotProved:
        raise refuse("not proved within the time allowed", nest, path, note) from None
    if conflict is not None:
        raise refuse("a dependence would turn round", nest, path, note, witness=conflict, way_out=way_out)


def tagged(body: list[ast.stmt]) -> list[ast.stmt]:
    """A private copy of ``body`` whose leaf statements are numbered."""
    result = clones(body)
    tag(result)
    return result


def chain_to(body: list[ast.stmt], path: Path, names: set[str]) -> Path | None:
    """The path of the innermost of perfectly nested loops that start at ``path`` and cover ``names``; else
    None."""
    missing = set(names)
    while True:
        node = at(body, path)
        if not isinstance(node, ast.For):
            return None
        missing.discard(loop_of(node).var)
        if not missing:
            return path
        if len(node.body) != 1:
            return None
        path = (*path, ("body", 0))


# --- interchange ----------------------------------------------------------------------------------------
@command("swap_loops")
def interchange(program: Program, loop_vars: Sequence[str], *, nest: int | str | None = None) -> Program:
    """Swap two loops; an imperfect nest between them is distributed first where that is legal.

    rewrite:
        for n in range(N):                  for c in range(C):
            for c in range(C):      →           for n in range(N):
                s                                   s

    Where a bound of the inner loop moves with the outer one, the bounds in the other order follow by projection: a
    triangle ``for i in range(n): for j in range(i + 1)`` becomes ``for j in range(n): for i in range(j, n)``.

    Args:
        loop_vars: the two loops, outer first or inner first.
        nest: only in this nest (index or label).

    Raises:
        Refused: a dependence would turn round, or no bounds of the grammar say the same in the other order.

    Source: Lake, *Optimized Code Generation for Deep Learning Networks using LATTE and SWIRL*, section 3.2.
    """
    loop_vars = check_names(loop_vars)
    if len(loop_vars) != 2 or loop_vars[0] == loop_vars[1]:
        raise CommandError(f"interchange takes two loops, not {loop_vars}")
    done, left, again = False, LeftAlone(), step("interchange", loop_vars, nest=nest)
    for first in resolve(program, loop_vars[0]):
        for second in resolve(program, loop_vars[1]):
            for index in _nests_with(program, (first, second), nest):
                program, done = _permute(program, index, [first, second], left, again, swap=True), True
    if not done:
        raise CommandError(
            f"no nest of {program.name} holds {loop_vars[0]!r} and {loop_vars[1]!r} one inside the other",
            way_out=f"the loops are {', '.join(loop_names(program))}",
        )
    return left.told(program)


@command()
def reorder(program: Program, order: Sequence[str], *, nest: int | str | None = None) -> Program:
    """Put loops of one nest into the order given, outermost first.

    rewrite (order = c, n):
        for n in range(N):                  for c in range(C):
            for c in range(C):      →           for n in range(N):
                s                                   s

    Args:
        order: loop names, outermost first; loops not named keep their places.
        nest: only in this nest (index or label).

    Raises:
        Refused: a dependence would turn round, or no bounds of the grammar say the same in the new order.

    Source: Lake, section 3.2.
    """
    names = [resolve(program, name)[0] for name in check_names(order)]
    if len(set(names)) < len(names):
        raise CommandError(f"each loop has one place in an order, not {list(order)}")
    indices = _nests_with(program, tuple(names), nest)
    if not indices:
        raise CommandError(f"no nest of {program.name} holds the loops {', '.join(names)}")
    left = LeftAlone()
    for index in indices:
        program = _permute(program, index, names, left, step("reorder", list(order), nest=nest))
    return left.told(program)


def _nests_with(program: Program, names: tuple[str, ...], nest: int | str | None) -> list[int]:
    """Nests in which all loops of ``names`` stand on one path."""
    result = []
    for index, candidate in enumerate(program.nests):
        if nest is not None and nest not in (index, candidate.label):
            continue
        if any(set(names) <= _vars_along(candidate.body, path) for path, _ in loops(candidate.body)):
            result.append(index)
    return result


def _vars_along(body: list[ast.stmt], path: Path) -> set[str]:
    nodes = [at(body, path[: depth + 1]) for depth in range(len(path))]
    return {loop_of(node).var for node in nodes if isinstance(node, ast.For)}


def _permute(
    program: Program, index: int, names: list[str], left: LeftAlone, again: Step, swap: bool = False
) -> Program:
    """Every group of loops ``names`` on one path of a nest put into that order, or two of them swapped.

    ``again`` is the command as it was given.
    """
    nest = program.nests[index]
    wanted = set(names)
    result = program
    for path, node in reversed(list(loops(nest.body))):
        outside = _vars_along(nest.body, path[:-1]) if len(path) > 1 else set()
        if loop_of(node).var in wanted and not wanted & outside and wanted <= vars_below(node):
            present = [var for var in _vars_towards(node, wanted) if var in wanted]
            site = Site(index, path)
            way_out = way_to_nest(result, site, again)
            with left.noting(result, site):
                if len(present) < len(names):  # a condition stands between, or they lie side by side
                    raise _imperfect(nest, path, way_out)
                order = present[::-1] if swap else names
                moved = permute_at(program, nest, path, dict(zip(present, order, strict=True)), way_out)
                result, nest = checked(result, result.with_nest(index, moved)), moved
                left.changed = True
    return result


def _vars_towards(node: ast.For, wanted: set[str]) -> list[str]:
    """Variables of the loops from ``node`` inwards, along the path that holds all of ``wanted``."""
    found = [loop_of(node).var]
    rest = wanted - set(found)
    for statement in node.body:
        if rest and isinstance(statement, ast.For) and rest <= vars_below(statement):
            return found + _vars_towards(statement, rest)
    return found


def vars_below(node: ast.stmt) -> set[str]:
    return {loop_of(inner).var for inner in statements_in(node) if isinstance(inner, ast.For)}


def permute_at(program: Program, nest: Nest, path: Path, places: dict[str, str], way_out: WayOut = None) -> Nest:
    """``nest`` with the loops at and below ``path`` permuted: where loop ``v`` stood, ``places[v]`` will
    stand.

    Args:
        way_out: where something stands between the loops.
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
        raise refuse(
            "a vector loop stays innermost", nest, path, "asked to move", way_out="reorder, then vectorize"
        )
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


def _projected(nest: Nest, body: list[ast.stmt], path: Path, chain: list[Loop], order: list[str],
               moving: dict[str, set[str]]) -> list[Loop]:  # fmt: skip
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
    raise refuse(f"the bounds of {var} move with {', '.join(inner)}, and no bounds say the same in the other order",
                 nest, path, "asked to move")  # fmt: skip


def _imperfect(nest: Nest, path: Path, way_out: WayOut) -> Refused:
    return refuse("the loops are not perfectly nested, and cannot be made so", nest, path, "asked to move",
                  way_out=way_out)  # fmt: skip


def way_to_nest(program: Program, site: Site, again: Step) -> Callable[[], str | None]:
    """What to do about loops at and below ``site`` that something stands between: a local with an element for each
    iteration, a distribution.

    Args:
        again: the command that was refused.
    """
    loop = loop_at(program, site)
    var, only = loop_of(loop).var, nest_of(program, site)
    locals_ = [ast.unparse(node.target) for node in loop.body if isinstance(node, ast.AnnAssign)]
    alternatives = [(step("scalar_expand", name, var, nest=only), again) for name in locals_]
    if len(locals_) > 1:
        alternatives.append((step("scalar_expand", locals_, var, nest=only), again))
    return tried(program, *alternatives, (step("distribute", var, nest=only), again))


def isolate(node: ast.For, names: set[str]) -> list[ast.For] | None:
    """The loop distributed so that one of the pieces is a perfect chain covering ``names``; None where it
    cannot be.

    Whether the distribution is legal is checked with the permutation that follows.
    """
    rest = names - {loop_of(node).var}
    if not rest:
        return [node]
    holders = [i for i, s in enumerate(node.body) if isinstance(s, ast.For) and rest <= vars_below(s)]
    if len(holders) != 1:
        return None
    holder = node.body[holders[0]]
    assert isinstance(holder, ast.For)
    pieces = isolate(holder, rest)
    if pieces is None:
        return None
    whole = loop_of(node).node([*node.body[: holders[0]], *pieces, *node.body[holders[0] + 1 :]])
    chain = holders[0] + next(i for i, piece in enumerate(pieces) if rest <= vars_below(piece))
    return split_body(whole, [chain, chain + 1])


def split_body(node: ast.For, cuts: Sequence[int]) -> list[ast.For] | None:
    """The loop distributed over its body cut at ``cuts``; None where a local would be cut off from its
    declaration."""
    groups = []
    edges = [0, *[cut for cut in cuts if 0 < cut < len(node.body)], len(node.body)]
    for start, stop in pairwise(edges):
        if start < stop:
            groups.append(node.body[start:stop])
    for index, group in enumerate(groups):
        declared = {
            s.target.id for s in group if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
        }
        later = {name for other in groups[index + 1 :] for statement in other for name in names_in(statement)}
        if declared & later:
            return None
    loop = loop_of(node)
    return [loop.node(group) for group in groups]


# --- reverse --------------------------------------------------------------------------------------------
@command()
def reverse(
    program: Program, loop_var: str, *, occurrence: int | None = None, nest: int | str | None = None
) -> Program:
    """Run a loop backwards: a second pass begins with what the first one left in the cache.

    rewrite:
        for n in range(N):                  for n in range(N):
            s[n]                    →           s[N - 1 - n]

    The loop still counts upwards, so every other command applies to it.

    Args:
        loop_var: the loop, plain; where its step is not 1, its bounds are constant.
        occurrence: only one of the loops of that name, counted from 0 in order of appearance (-1 is the last): the
            second of two passes over the images.
        nest: only in this nest (index or label).

    Raises:
        CommandError: no such loop.
        Refused: an iteration needs what an earlier one made, or the loop is no plain loop.

    Source: Wolfe, *High Performance Compilers for Parallel Computing*, chapter 9 (loop reversal).
    """

    def rewrite(before: Program, site: Site) -> Program:
        target, node = before.nests[site.nest], loop_at(before, site)
        loop, note = loop_of(node), "asked to run backwards"
        if loop.kind != "range":
            raise refuse(f"{loop.var} is a {loop.kind} loop", target, site.path, note,
                         way_out="give this command before the one that made it so")  # fmt: skip
        if loop.step != 1 and loop.extent is None:
            raise refuse(f"{loop.var} has a step of {loop.step} and bounds that are not constant",
                         target, site.path, note)  # fmt: skip
        try:
            conflict = carried(target.body, site.path, reductions=False)
        except NotProved:
            raise refuse("not proved within the time allowed", target, site.path, note) from None
        if conflict is not None:
            raise refuse("a dependence would turn round", target, site.path, note, witness=conflict,
                         way_out=tried(before, (step("distribute", loop.var, nest=nest_of(before, site)),
                                                step("reverse", loop.var, nest=nest_of(before, site)))))  # fmt: skip
        last = expr("stop - 1", stop=loop.stop) if loop.step == 1 else _last(loop)
        value = simplify(expr("last - (v - start)", last=last, v=loop.var, start=loop.start))
        body = [substitute(statement, {loop.var: value}) for statement in node.body]
        new = simplify_body([with_inner(node, body)], ranges_at(target.body, site.path))
        return before.with_nest(site.nest, target.with_body(replace_at(target.body, site.path, new)))

    return rewrite_each(program, loop_var, nest, rewrite, occurrence)


def _last(loop: Loop) -> ast.expr:
    """The last value of a loop with constant bounds."""
    assert loop.extent is not None
    return simplify(expr("start + steps", start=loop.start, steps=max(0, loop.extent - 1) * loop.step))
