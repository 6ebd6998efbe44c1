"""Small clean-ups of one derived block: declarations at their first use, no locals that only rename."""

from __future__ import annotations

import ast

from latte.autodiff.adjoint_terms import leading_minus, negated, same, summed
from swirl.ir.names import changed_in
from swirl.ir.nest import names_in, substitute
from swirl.ir.trees import name_of, nodes, target_of

Body = list[ast.stmt]


def merge_first(body: Body, declaration: ast.AnnAssign) -> Body:
    """``body`` with ``name: type = 0.0`` before its first use; a first ``name += e`` becomes that."""
    assert isinstance(declaration.target, ast.Name)
    name = declaration.target.id
    for index, statement in enumerate(body):
        if name not in names_in(statement):
            continue
        value: ast.expr | None = None
        if isinstance(statement, ast.AugAssign) and _is_name(statement.target, name):
            value = statement.value if isinstance(statement.op, ast.Add) else ast.UnaryOp(ast.USub(), statement.value)
        elif isinstance(statement, ast.Assign) and _is_name(statement.targets[0], name):
            value = statement.value
        if value is not None and name not in names_in(value):
            first = ast.AnnAssign(declaration.target, declaration.annotation, value, 1)
            return [*body[:index], first, *body[index + 1 :]]
        return [*body[:index], declaration, *body[index:]]
    return body


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def cleaned(body: Body) -> Body:
    """Locals that stand for one reference, or are used once, are written out in place; unused ones are removed.

    Updates of one element in one block become one statement.
    """
    return join_updates(_inlined(body))


def join_updates(body: Body) -> Body:
    """``t = a; …; t += b`` → ``…; t = a + b``, where nothing between touches ``t`` or changes ``a``."""
    index = 0
    while index < len(body):
        first = body[index]
        later = _joinable(body, index)
        if later is not None and isinstance(first, (ast.Assign, ast.AugAssign)):
            body = [*body[:index], *body[index + 1 : later], _joined(first, body[later]), *body[later + 1 :]]
        else:
            index += 1
    return body


def _joinable(body: Body, index: int) -> int | None:
    first = body[index]
    if not isinstance(first, ast.Assign) and not _adds(first):
        return None
    assert isinstance(first, (ast.Assign, ast.AugAssign))
    target = target_of(first)
    name = name_of(target)
    if name in names_in(first.value):
        return None
    for later in range(index + 1, len(body)):
        second = body[later]
        if _adds(second) and same(target_of(second), target):
            assert isinstance(second, ast.AugAssign)
            return None if name in names_in(second.value) else later
        if name in names_in(second) or changed_in(second) & names_in(first):
            return None
    return None


def _adds(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.AugAssign) and isinstance(statement.op, (ast.Add, ast.Sub))


def _joined(first: ast.Assign | ast.AugAssign, second: ast.stmt) -> ast.stmt:
    assert isinstance(second, ast.AugAssign)
    value = first.value
    if isinstance(first, ast.AugAssign) and isinstance(first.op, ast.Sub):
        value = negated(value)
    other = negated(second.value) if isinstance(second.op, ast.Sub) else second.value
    total = summed([other] if isinstance(value, ast.Constant) and value.value == 0 else [value, other])
    if isinstance(first, ast.Assign):
        return ast.Assign([first.targets[0]], total, lineno=0)
    if leading_minus(value) and leading_minus(other):
        return ast.AugAssign(first.target, ast.Sub(), summed([negated(value), negated(other)]))
    return ast.AugAssign(first.target, ast.Add(), total)


def _inlined(body: Body) -> Body:
    index = 0
    while index < len(body):
        statement = body[index]
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            name, rest = statement.target.id, body[index + 1 :]
            if name not in changed_in(*rest):
                uses, in_loops = _uses(rest, name)
                last = max((i for i, s in enumerate(rest) if name in names_in(s)), default=-1)
                stable = not names_in(statement.value) & changed_in(*rest[:last], *_inner(rest, last))
                plain = isinstance(statement.value, (ast.Name, ast.Subscript, ast.Constant))
                if uses == 0 or (stable and (plain or (uses == 1 and not in_loops))):
                    mapping = {name: statement.value}
                    body = [*body[:index], *(substitute(s, mapping) for s in rest)]
                    continue
        index += 1
    return body


def _inner(rest: Body, last: int) -> Body:
    """The last user itself, where it is a block: its inside may write before it reads."""
    return [rest[last]] if last >= 0 and isinstance(rest[last], (ast.For, ast.If)) else []


def _uses(body: Body, name: str) -> tuple[int, bool]:
    """How often ``body`` reads ``name``, and whether inside a loop."""
    count, looped = 0, False
    for statement in body:
        here = sum(isinstance(node, ast.Name) and node.id == name for node in nodes(statement))
        count += here
        looped = looped or (here > 0 and any(isinstance(node, ast.For) for node in nodes(statement)))
    return count, looped
