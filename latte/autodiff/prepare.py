"""The form of a forward program that reversal works on: single assignment as far as derivatives need it.

Elements that one block computes step by step become locals with one declaration a version; updates become
``=`` or ``+=``; branches that only choose a value become selects. The forward program is not changed by this.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from latte.autodiff.adjoint_terms import negated, same
from latte.autodiff.uses import Use, sites, uses_of
from swirl.analysis.dependences import touched_once
from swirl.ir.buffers import Buffer
from swirl.ir.nest import LocalType, clone, declare, fresh, names_in, substitute
from swirl.ir.paths import Path, edit_block
from swirl.ir.printing import unparse
from swirl.ir.trees import ASSIGNMENTS, as_target, as_value, changed, nodes, target_of
from swirl.ir.types import is_float

Body = list[ast.stmt]
ELEMENT = "_element"


def origin(statement: ast.stmt) -> str:
    """The text of the statement as the program has it; of a branch, its test."""
    found: str | None = getattr(statement, "origin", None)
    return found or unparse(statement).splitlines()[0]


def with_origin(statement: ast.stmt, source: ast.stmt) -> ast.stmt:
    """``statement`` with the text, the line and the number of the statement from which it is made."""
    statement.origin = origin(source)  # type: ignore[attr-defined]
    statement.line = line_of(source)  # type: ignore[attr-defined]
    statement.number = getattr(source, "number", None)  # type: ignore[attr-defined]
    return statement


def line_of(statement: ast.stmt) -> int | None:
    """The line of the statement in the body that it comes from, where that is known."""
    return getattr(statement, "line", None) or getattr(statement, "lineno", None) or None


def assign(target: ast.expr, value: ast.expr) -> ast.stmt:
    return ast.fix_missing_locations(ast.Assign([as_target(target)], value, lineno=0))


def add_to(target: ast.expr, value: ast.expr) -> ast.stmt:
    return ast.fix_missing_locations(ast.AugAssign(as_target(target), ast.Add(), value))


def rebuild(body: Body, change: Callable[[ast.stmt], list[ast.stmt]]) -> Body:
    """``body`` with every statement replaced, innermost first."""
    result = []
    for statement in body:
        if isinstance(statement, (ast.For, ast.If)):
            body, orelse = rebuild(statement.body, change), rebuild(statement.orelse, change)
            statement = changed(statement, body=body, orelse=orelse)
        result += change(statement)
    return result


# --- updates ------------------------------------------------------------------------------------------------
def plain_updates(statement: ast.stmt) -> list[ast.stmt]:
    """``t -= e`` → ``t += -e``; ``t *= e`` → ``t = t * e``; ``t = t + e`` → ``t += e``."""
    if isinstance(statement, ast.AugAssign):
        target = as_value(statement.target)
        text = unparse(target)
        uses_itself = any(unparse(node) == text for node in nodes(statement.value) if isinstance(node, ast.expr))
        if isinstance(statement.op, (ast.Add, ast.Sub)) and not uses_itself:
            value = statement.value if isinstance(statement.op, ast.Add) else negated(statement.value)
            return [with_origin(add_to(target, value), statement)]
        return [with_origin(assign(target, ast.BinOp(target, statement.op, statement.value)), statement)]
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.BinOp):
        target, value = as_value(statement.targets[0]), statement.value
        text = unparse(target)
        for own, other in ((value.left, value.right), (value.right, value.left)):
            if not same(own, target) or text in {unparse(n) for n in nodes(other) if isinstance(n, ast.expr)}:
                continue
            if isinstance(value.op, ast.Add):
                return [with_origin(add_to(target, other), statement)]
            if isinstance(value.op, ast.Sub) and own is value.left:
                return [with_origin(add_to(target, negated(other)), statement)]
    return [with_origin(changed(statement), statement)]


# --- elements as locals -------------------------------------------------------------------------------------
def localise(nests: list[Body], buffers: Mapping[str, Buffer], taken: set[str]) -> list[Body]:
    """Elements that one block sets, updates and reads become locals, stored once after their last update.

    ``value[i] = 0.0; for j…: value[i] += …; value[i] = value[i] / 9`` is then straight arithmetic on a local.
    """
    for name, buffer in buffers.items():
        if is_float(buffer.dtype) and buffer.role not in ("param", "state", "constant", "scalar"):
            nests = _localise(nests, name, buffer.dtype, taken)
    return nests


def _localise(nests: list[Body], name: str, dtype: str, taken: set[str]) -> list[Body]:
    found = uses_of(name, sites(nests))
    writing = {use.site.path[0] for use in found if not use.reads}
    if len(writing) != 1:
        return nests
    inside = [use for use in found if use.site.path[0] in writing]
    block = _common_block([use.site.path for use in inside])
    if block is None or len({use.site.path for use in inside}) == 1:
        return nests
    depth = len(block)
    first = min(inside, key=lambda use: (use.site.path, use.reads))
    if not _is_element(first, inside, depth):
        return nests
    local = fresh(name + ELEMENT, taken)
    taken.add(local)
    last_write = max(use.site.path[depth][1] for use in inside if not use.reads)
    start = first.site.path[depth][1]

    def edit(body: Body) -> Body:
        result = list(body[:start])
        for index, statement in enumerate(body[start:], start):
            replaced = _Rename(name, local).visit(clone(statement)) if index != start else statement
            if index == start:
                replaced = with_origin(declare(local, LocalType(dtype), _first_value(statement)), statement)
            result.append(replaced)
            if index == last_write:
                target = target_of(body[start])
                result.append(with_origin(assign(target, ast.Name(local, ast.Load())), body[last_write]))
        return result

    nest = block[0][1]
    new = list(nests)
    new[nest] = edit_block(nests[nest], first.site.path[1 : depth + 1], edit)
    return new


def _first_value(statement: ast.stmt) -> ast.expr:
    """The first value of an element in its block; an update starts from what the buffer holds."""
    assert isinstance(statement, (ast.Assign, ast.AugAssign))
    if isinstance(statement, ast.Assign):
        return statement.value
    return ast.BinOp(as_value(statement.target), ast.Add(), statement.value)


def _common_block(paths: list[Path]) -> Path | None:
    """The path of the statement whose block contains all ``paths`` (the nest's own path at least)."""
    prefix = paths[0]
    for path in paths[1:]:
        common = 0
        while common < min(len(prefix), len(path)) and prefix[common] == path[common]:
            common += 1
        prefix = prefix[:common]
    while prefix and (prefix in paths or len({path[len(prefix)][0] for path in paths}) != 1):
        prefix = prefix[:-1]
    return prefix or None


def _is_element(first: Use, inside: list[Use], depth: int) -> bool:
    """Whether the block starts with ``name[e] = …`` and touches no other element of that buffer."""
    statement = first.site.node
    if not isinstance(statement, (ast.Assign, ast.AugAssign)) or len(first.site.path) != depth + 1:
        return False
    target = target_of(statement)
    texts = {use.text for use in inside}
    return (
        isinstance(target, ast.Subscript)
        and len(texts) == 1
        and names_in(target.slice) - {"min", "max"} <= set(first.site.variables())
        and touched_once(first.site, first.access, first.site.loops)
    )


class _Rename(ast.NodeTransformer):
    """``name[…]`` → ``local``."""

    def __init__(self, name: str, local: str):
        self.name, self.local = name, local

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id == self.name:
            return ast.Name(self.local, node.ctx)
        self.generic_visit(node)
        return node


def edited(nests: list[Body], edits: Mapping[Path, Body], before: Mapping[Path, Body] | None = None) -> list[Body]:
    """The nests with the statements at some paths replaced, and others put ``before`` those at some paths."""
    return [_edit(nest, (("body", index),), "body", edits, before or {}) for index, nest in enumerate(nests)]


def _edit(body: Body, prefix: Path, field: str, edits: Mapping[Path, Body], before: Mapping[Path, Body]) -> Body:
    result: Body = []
    for index, statement in enumerate(body):
        path = (*prefix, (field, index))
        if isinstance(statement, (ast.For, ast.If)):
            inner = _edit(statement.body, path, "body", edits, before)
            other = _edit(statement.orelse, path, "orelse", edits, before)
            statement = changed(statement, body=inner, orelse=other)
        result += [*before.get(path, []), *edits.get(path, [statement])]
    return result


# --- branches -> selects ------------------------------------------------------------------------------------
def selects(statement: ast.stmt) -> list[ast.stmt]:
    """``if c: t = a else: t = b`` → ``t = a if c else b``; without ``else`` where ``t`` is a local."""
    if not isinstance(statement, ast.If):
        return [statement]
    branches = [*statement.body, *statement.orelse]
    if not all(isinstance(s, (ast.Assign, ast.AugAssign)) for s in branches):
        return [statement]
    targets = [target_of(s) for s in branches]
    sets = [isinstance(s, ast.Assign) for s in branches]
    if len(statement.body) == len(statement.orelse) == 1 and all(sets) and same(targets[0], targets[1]):
        left, right = (s.value for s in branches)  # type: ignore[attr-defined]
        return [with_origin(assign(targets[0], ast.IfExp(statement.test, left, right)), statement)]
    written = {unparse(target) for target in targets}
    if not all(isinstance(target, ast.Name) for target in targets) or not any(sets):
        return [statement]
    if len(branches) > 1 and written & names_in(statement.test):
        return [statement]
    result = []
    for index, (part, target) in enumerate(zip(branches, targets, strict=True)):
        wanted = index < len(statement.body)
        value: ast.expr = part.value  # type: ignore[attr-defined]
        other = as_value(target) if sets[index] else ast.Constant(0.0)
        value = ast.IfExp(statement.test, value, other) if wanted else ast.IfExp(statement.test, other, value)
        result.append(with_origin((assign if sets[index] else add_to)(target, value), statement))
    return result


# --- versions of locals -------------------------------------------------------------------------------------
def versions(body: Body, taken: set[str]) -> Body:
    """A local that is set again in the block of its declaration gets a new name from there on."""
    current: dict[str, str] = {}
    types: dict[str, ast.AnnAssign] = {}
    read: set[str] = set()
    result: Body = []
    renaming: dict[str, ast.expr] = {}
    for old in body:
        target = _local_target(old)
        if isinstance(old, ast.AnnAssign):
            assert target is not None and old.value is not None
            statement = changed(old, value=substitute(old.value, renaming))
            current[target], types[target] = target, old
        elif target in types and isinstance(old, (ast.Assign, ast.AugAssign)):
            value = substitute(old.value, renaming)
            now = current[target]
            if isinstance(old, ast.AugAssign) and now not in read:
                statement = with_origin(add_to(ast.Name(now, ast.Load()), value), old)  # type: ignore[assignment]
            else:
                if isinstance(old, ast.AugAssign):
                    value = ast.BinOp(ast.Name(now, ast.Load()), ast.Add(), value)
                new = fresh(target, taken)
                taken.add(new)
                current[target] = new
                renaming[target] = ast.Name(new, ast.Load())
                statement = ast.AnnAssign(ast.Name(new, ast.Store()), types[target].annotation, value, 1)
                with_origin(statement, old)
        else:
            statement = substitute(old, renaming) if renaming else changed(old)  # type: ignore[assignment]
            for name in ("body", "orelse"):
                if isinstance(statement, (ast.For, ast.If)):
                    setattr(statement, name, versions(getattr(statement, name), taken))
        for node in nodes(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                read.add(node.id)
        result.append(statement)
    return result


def _local_target(statement: ast.stmt) -> str | None:
    target = target_of(statement) if isinstance(statement, ASSIGNMENTS) else None
    return target.id if isinstance(target, ast.Name) else None


# --- one name, one local ------------------------------------------------------------------------------------
def unique_locals(body: Body, seen: set[str], taken: set[str], renaming: Mapping[str, ast.expr]) -> Body:
    """A local whose name an earlier declaration has (in another block) gets a name of its own."""
    renaming = dict(renaming)
    result: Body = []
    for old in body:
        statement = changed(old)
        if isinstance(statement, ast.AnnAssign):
            assert isinstance(statement.target, ast.Name) and statement.value is not None
            statement.value = substitute(statement.value, renaming)
            name = statement.target.id
            renaming.pop(name, None)
            if name in seen:
                new = ast.Name(fresh(name, taken), ast.Load())
                taken.add(new.id)
                renaming[name] = new
                statement.target = ast.Name(new.id, ast.Store())
            seen.add(name)
        elif isinstance(statement, ast.For):
            statement.iter = substitute(statement.iter, renaming)
            statement.body = unique_locals(statement.body, seen, taken, renaming)
        elif isinstance(statement, ast.If):
            statement.test = substitute(statement.test, renaming)
            statement.body = unique_locals(statement.body, seen, taken, renaming)
            statement.orelse = unique_locals(statement.orelse, seen, taken, renaming)
        elif renaming:
            statement = substitute(statement, renaming)
        result.append(statement)
    return result


def prepare(nests: list[Body], buffers: Mapping[str, Buffer], taken: set[str]) -> list[Body]:
    """The nests in the form described above; ``taken`` grows by the names that were made."""
    nests = [rebuild(nest, plain_updates) for nest in nests]
    seen: set[str] = set()
    nests = [unique_locals(nest, seen, taken, {}) for nest in nests]
    nests = localise(nests, buffers, taken)
    nests = [rebuild(rebuild(nest, selects), plain_updates) for nest in nests]
    return [versions(nest, taken) for nest in nests]
