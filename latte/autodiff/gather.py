"""Terms of one gradient that sibling loops add one after the other are added by the last of them.

``for i: g[i] = a``, later ``for i: g[i] += b`` → ``for i: g[i] = a + b``: what ``a`` reads is read again,
and ``g`` is not stored and fetched in between. Done where that moves fewer bytes and nothing that ``a``
reads changes meanwhile.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from itertools import pairwise

from latte.autodiff.adjoint_terms import negated, summed
from latte.autodiff.cleanup import cleaned
from latte.autodiff.prepare import Body
from latte.autodiff.uses import Use, uses_of
from swirl.analysis.dependences import touched_once
from swirl.analysis.statements import statements
from swirl.ir.buffers import Buffer
from swirl.ir.names import changed_in, stored_in
from swirl.ir.nest import names_in, references, substitute
from swirl.ir.paths import Path, at, replace_at
from swirl.ir.printing import unparse
from swirl.ir.trees import name_of, nodes


def gather(body: Body, adjoints: Collection[str], buffers: Mapping[str, Buffer]) -> tuple[Body, list[str]]:
    """``body`` with the terms gathered, and a note on each.

    Args:
        adjoints: the gradients to look at.
        buffers: every buffer that ``body`` names.
    """
    notes: list[str] = []
    for name in adjoints:
        changed = True
        while changed:
            changed = False
            touching = uses_of(name, statements(body))
            for first, second in pairwise(touching):
                pair = _siblings(body, touching, first, second)
                if pair is None or not _same_place(first, second, *pair):
                    continue
                term = _term(body, first, *pair)
                if term is None or not _available(body, term, name, *pair):
                    continue
                saved = _bytes_saved(term, at(body, second.site.path), first, buffers)
                if saved <= 0:
                    continue
                notes.append(f"a term of {name} is added with the next one: {saved} bytes fewer to move")
                body = _move(body, first.site.path, second.site.path, term)
                changed = True
                break
    return body, notes


def _siblings(body: Body, touching: list[Use], first: Use, second: Use) -> tuple[Path, Path] | None:
    """The two loops of one block that contain the additions; nothing else in them touches the gradient."""
    a, b = first.site.path, second.site.path
    depth = 0
    while depth < min(len(a), len(b)) and a[depth] == b[depth]:
        depth += 1
    if depth >= min(len(a), len(b)) or a[depth][0] != b[depth][0]:
        return None
    left, right = a[: depth + 1], b[: depth + 1]
    alone = all(sum(t.site.path[: depth + 1] == side for t in touching) == 1 for side in (left, right))
    loops = isinstance(at(body, left), ast.For) and isinstance(at(body, right), ast.For)
    adds = all(isinstance(t.site.node, ast.AugAssign) and not t.reads for t in (first, second))
    return (left, right) if alone and loops and adds else None


def _same_place(first: Use, second: Use, left: Path, right: Path) -> bool:
    """Whether both add to the same elements, each once, unconditionally, by the same loops."""

    def key(use: Use, side: Path) -> tuple[object, ...]:
        inner = {
            (loop.var, unparse(loop.start), unparse(loop.stop), abs(loop.step))
            for depth, loop in zip(use.site.loop_depths, use.site.loops, strict=True)
            if depth >= len(side) - 1
        }
        return frozenset(inner), use.text

    return (
        key(first, left) == key(second, right)
        and not first.site.guards
        and not second.site.guards
        and touched_once(first.site, first.access, first.site.loops)
    )


def _term(body: Body, first: Use, left: Path, right: Path) -> ast.expr | None:
    """What ``first`` adds, the locals of its loop written out; None where one is not a plain definition."""
    statement = first.site.node
    assert isinstance(statement, ast.AugAssign)
    inside = at(body, left)
    declared = {
        s.target.id: s.value
        for s in nodes(inside)
        if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name) and s.value
    }
    changed = set(stored_in([inside]))
    term = statement.value
    while used := names_in(term) & set(declared):
        if used & changed:
            return None
        term = substitute(term, {name: declared[name] for name in used})
    return negated(term) if isinstance(statement.op, ast.Sub) else term


def _available(body: Body, term: ast.expr, name: str, left: Path, right: Path) -> bool:
    """Whether nothing from the first loop to the end of the second writes what ``term`` reads."""
    between = [at(body, (*left[:-1], (left[-1][0], index))) for index in range(left[-1][1], right[-1][1] + 1)]
    loops = {
        node.target.id
        for s in between
        for node in nodes(s)
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name)
    }
    return not names_in(term) & (changed_in(*between) - loops) and name not in names_in(term)


def _bytes_saved(term: ast.expr, second: ast.stmt, first: Use, buffers: Mapping[str, Buffer]) -> int:
    """Bytes saved: a store and a fetch of the gradient, less what ``term`` reads that ``second`` does not read."""
    gradient = buffers[first.name].nbytes
    there = {unparse(reference) for reference in references(second)}
    again = {unparse(r): buffers[name_of(r)].nbytes for r in references(term)}
    dear = [
        node
        for node in nodes(term)
        if isinstance(node, ast.Call) and any(buffers[name_of(r)].nbytes >= gradient for r in references(node))
    ]
    return 0 if dear else 2 * gradient - sum(size for text, size in again.items() if text not in there)


def _move(body: Body, source: Path, destination: Path, term: ast.expr) -> Body:
    second = at(body, destination)
    assert isinstance(second, ast.AugAssign)
    total = summed([term, negated(second.value) if isinstance(second.op, ast.Sub) else second.value])
    new = ast.AugAssign(second.target, ast.Add(), total)
    body = replace_at(body, destination, [new])
    body = replace_at(body, source, [])
    return _pruned(body)


def _pruned(body: Body) -> Body:
    """Blocks tidied again, innermost first; loops and branches without a body are gone."""
    result: Body = []
    for statement in body:
        if isinstance(statement, (ast.For, ast.If)):
            inner, other = _pruned(statement.body), _pruned(statement.orelse)
            if not inner and not other:
                continue
            if isinstance(statement, ast.For):
                result.append(ast.For(statement.target, statement.iter, inner, [], None))
            else:
                result.append(ast.If(statement.test, inner or [ast.Pass()], other))
        else:
            result.append(statement)
    return cleaned(result)
