"""How loops are nested: perfect chains, bodies split, nests of one statement each."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import pairwise

from swirl.analysis.isl_notation import condition_to_isl
from swirl.ir.nest import Nest, Program, clone, fresh, loop_of, make_nest, names_in, variable_of, with_inner
from swirl.ir.paths import Path, at
from swirl.ir.trees import statements_in


def nest_each(program: Program, nest: Nest, body: list[ast.stmt]) -> list[Nest]:
    """One nest for each statement of ``body``; a single one where locals connect them."""
    if len(body) == 1 or any(isinstance(statement, ast.AnnAssign) for statement in body):
        return [nest.with_body(body)]
    labels = {other.label for other in program.nests}
    result = [make_nest(nest.label, body[:1], program.buffers)]
    for statement in body[1:]:
        label = fresh(nest.label, labels)
        labels.add(label)
        result.append(make_nest(label, [statement], program.buffers))
    return result


def chain_to(body: list[ast.stmt], path: Path, names: set[str]) -> Path | None:
    """The path of the innermost of perfectly nested loops that start at ``path`` and cover ``names``; else
    None."""
    missing = set(names)
    while True:
        node = at(body, path)
        if not isinstance(node, ast.For):
            return None
        missing.discard(variable_of(node))
        if not missing:
            return path
        if len(node.body) != 1:
            return None
        path = (*path, ("body", 0))


def vars_below(node: ast.stmt) -> set[str]:
    return {variable_of(inner) for inner in statements_in(node) if isinstance(inner, ast.For)}


def conditions_inside(node: ast.For, names: set[str], around: set[str]) -> ast.For:
    """The loop with conditions that are between the loops ``names`` moved into the inner ones.

    Args:
        node: the outermost of the loops.
        names: the variables of all.
        around: the variables of the loops outside: conditions on anything else stay.
    """
    known, below = {*around, variable_of(node)}, names - {variable_of(node)}
    return with_inner(node, [part for statement in node.body for part in _parts(statement, below, known)])


def _parts(statement: ast.stmt, below: set[str], known: set[str]) -> list[ast.stmt]:
    """A statement, or of a condition around some of the loops ``below`` what is in it, with the condition inside."""
    if not below & vars_below(statement):
        return [statement]
    if isinstance(statement, ast.For):
        return [conditions_inside(statement, below, known)]
    assert isinstance(statement, ast.If)
    declares = any(isinstance(inner, ast.AnnAssign) for inner in statement.body)
    on_loops = condition_to_isl(statement.test) is not None and names_in(statement.test) <= {*known, "min", "max"}
    if statement.orelse or declares or not on_loops:
        return [statement]
    parts = [part for inner in statement.body for part in _parts(inner, below, known)]
    return [_under(statement.test, part) for part in parts]


def _under(test: ast.expr, node: ast.stmt) -> ast.stmt:
    """A statement under a condition, which is inside of a loop; around what a loop declares and its uses, one."""
    if isinstance(node, ast.For):
        if any(isinstance(inner, ast.AnnAssign) for inner in node.body):
            return with_inner(node, [ast.If(clone(test), node.body, [])])
        return with_inner(node, [_under(test, inner) for inner in node.body])
    return ast.If(clone(test), [node], [])


def isolate(node: ast.For, names: set[str]) -> list[ast.For] | None:
    """The loop distributed so that one of the pieces is a perfect chain covering ``names``; None where it
    cannot be.

    Whether the distribution is legal is checked with the permutation that follows.
    """
    rest = names - {variable_of(node)}
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
        declared = {s.target.id for s in group if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)}
        later = {name for other in groups[index + 1 :] for statement in other for name in names_in(statement)}
        if declared & later:
            return None
    loop = loop_of(node)
    return [loop.node(group) for group in groups]
