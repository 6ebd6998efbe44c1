"""Blocks of statements rebuilt: some replaced, empty and unused ones removed."""

from __future__ import annotations

import ast
from collections import Counter

from swirl.ir.names import Scope, whole_scope
from swirl.ir.nest import Nest, Program, names_in, with_inner
from swirl.ir.paths import Path, at, edit_at, walk
from swirl.ir.printing import unparse
from swirl.ir.trees import changed, nodes
from swirl.ir.types import dtype_of, folded, is_float


def block_at(nest: Nest, path: Path) -> list[ast.stmt]:
    """The block that contains the statement at ``path``."""
    if len(path) == 1:
        return nest.body
    return list(getattr(at(nest.body, path[:-1]), path[-1][0]))


def with_last(node: ast.stmt, last: ast.stmt) -> ast.stmt:
    assert isinstance(node, ast.For)
    return with_inner(node, [*node.body, last])


def rebuilt(body: list[ast.stmt], replaced: dict[int, list[ast.stmt]]) -> list[ast.stmt]:
    """The statements with some of them replaced, by their identity; loops and conditions left empty are removed."""
    result: list[ast.stmt] = []
    for node in body:
        if id(node) in replaced:
            result += replaced[id(node)]
        elif isinstance(node, (ast.For, ast.If)):
            body, orelse = rebuilt(node.body, replaced), rebuilt(node.orelse, replaced)
            if isinstance(node, ast.If) and orelse and not body:
                body = [ast.Pass()]
            result += [changed(node, body=body, orelse=orelse)] if body else []
        else:
            result.append(node)
    return result


def without_dead(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements without declarations of scalars that nothing uses, and without loops left empty by that."""
    while True:
        uses = Counter(n.id for s in body for n in nodes(s) if isinstance(n, ast.Name))
        dead: dict[int, list[ast.stmt]] = {
            id(s): []
            for _, s in walk(body)
            if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name) and uses[s.target.id] == 1
        }
        if not dead:
            return body
        body = rebuilt(body, dead)


def joined_updates(program: Program, nest: Nest, path: Path) -> Nest:
    """The nest with ``y[i] = a`` and ``y[i] += b`` right after it made one assignment, in the loop at ``path``."""

    scope = whole_scope(nest, program.buffers)

    def block(body: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for node in body:
            if isinstance(node, (ast.For, ast.If)):
                result.append(changed(node, body=block(node.body), orelse=block(node.orelse)))
            elif result and (one := _joined(result[-1], node, scope)) is not None:
                result[-1] = one
            else:
                result.append(node)
        return result

    return nest.with_body(edit_at(nest.body, path, lambda node: block([node])))


def _joined(first: ast.stmt, second: ast.stmt, scope: Scope) -> ast.stmt | None:
    if not isinstance(second, ast.AugAssign) or not isinstance(second.op, (ast.Add, ast.Sub)):
        return None
    if not isinstance(first, ast.Assign) and not (isinstance(first, ast.AugAssign) and isinstance(first.op, ast.Add)):
        return None
    target = first.target if isinstance(first, ast.AugAssign) else first.targets[0]
    if not isinstance(target, ast.Subscript) or unparse(target) != unparse(second.target):
        return None
    if unparse(target.value) in names_in(second.value):
        return None
    if not all(floating(node, scope) for node in (target, first.value, second.value)):
        return None  # integers are rounded when they are stored, truth values do not add up
    return changed(first, value=ast.BinOp(first.value, second.op, second.value))


def floating(node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is a floating-point number, or a literal that becomes one."""
    return is_float(dtype_of(node, scope)) or type(folded(node)) is int
