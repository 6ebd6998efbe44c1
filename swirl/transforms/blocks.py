"""Blocks of statements rebuilt: some replaced, what is left empty or unused gone."""

from __future__ import annotations

import ast
import copy
from collections import Counter

from swirl.ir.nest import Nest, Path, at, walk, with_inner


def block_at(nest: Nest, path: Path) -> list[ast.stmt]:
    """The block that the statement at ``path`` stands in."""
    if len(path) == 1:
        return nest.body
    return list(getattr(at(nest.body, path[:-1]), path[-1][0]))


def with_last(node: ast.stmt, last: ast.stmt) -> ast.stmt:
    assert isinstance(node, ast.For)
    return with_inner(node, [*node.body, last])


def rebuilt(body: list[ast.stmt], replaced: dict[int, list[ast.stmt]]) -> list[ast.stmt]:
    """The statements with some of them replaced, by their identity; loops and conditions left empty go."""
    result: list[ast.stmt] = []
    for node in body:
        if isinstance(node, (ast.For, ast.If)):
            new = copy.copy(node)
            new.body, new.orelse = rebuilt(node.body, replaced), rebuilt(node.orelse, replaced)
            if isinstance(new, ast.If) and new.orelse and not new.body:
                new.body = [ast.Pass()]
            result += [new] if new.body else []
        else:
            result += replaced.get(id(node), [node])
    return result


def without_dead(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements without declarations of scalars that nothing uses, and without loops left empty by that."""
    while True:
        uses = Counter(n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name))
        dead: dict[int, list[ast.stmt]] = {
            id(s): [] for _, s in walk(body)
            if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name) and uses[s.target.id] == 1
        }  # fmt: skip
        if not dead:
            return body
        body = rebuilt(body, dead)
