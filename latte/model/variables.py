"""The variables of a function that was read: which names are assigned and which loop, and giving them other names."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar

from swirl.ir.trees import nodes

T = TypeVar("T", bound=ast.AST)


def names(tree: ast.AST) -> set[str]:
    """Every plain name, arguments included."""
    return {
        part.id if isinstance(part, ast.Name) else part.arg
        for part in nodes(tree)
        if isinstance(part, (ast.Name, ast.arg))
    }


def store_counts(tree: ast.AST) -> Counter[str]:
    """How often each plain name is assigned, or is a loop's; an update counts twice, since its target cannot be a
    constant."""
    counts: Counter[str] = Counter()
    for node in nodes(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            counts[node.id] += 1
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            counts[node.target.id] += 1
    return counts


def _looping(tree: ast.AST) -> Counter[str]:
    targets = (node.target for node in nodes(tree) if isinstance(node, ast.For))
    return Counter(part.id for target in targets for part in nodes(target) if isinstance(part, ast.Name))


def loop_names(tree: ast.AST) -> set[str]:
    """Names of all loop variables."""
    return set(_looping(tree))


def only_loop_names(tree: ast.AST) -> set[str]:
    """Names that are nothing but variables of loops."""
    counts = store_counts(tree)
    return {name for name, count in _looping(tree).items() if counts[name] == count}


def assigned_once(function: ast.FunctionDef) -> set[str]:
    """Names that are assigned once, by a statement that always runs."""
    counts = store_counts(function)
    always = [statement for statement in function.body if isinstance(statement, ast.Assign)]
    return {name for statement in always for name in store_counts(statement) if counts[name] == 1}


def read_where_assigned(function: ast.FunctionDef) -> set[str]:
    """Names that are assigned once, and read only by later statements of the same block, and what is inside these."""
    counts, reads = store_counts(function), _reads(function)
    blocks = (getattr(node, part, None) for node in nodes(function) for part in ("body", "orelse"))
    return {
        statement.targets[0].id
        for block in blocks
        if isinstance(block, list)
        for place, statement in enumerate(block)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        if counts[name := statement.targets[0].id] == 1 and _reads(*block[place + 1 :])[name] == reads[name]
    }


def _reads(*trees: ast.AST) -> Counter[str]:
    parts = (node for tree in trees for node in nodes(tree))
    return Counter(node.id for node in parts if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))


class Renamed(ast.NodeTransformer):
    """Names get other names, or expressions in their places; changes the tree."""

    def __init__(self, new: Mapping[str, ast.expr | str]):
        self.new = new

    def visit_Name(self, node: ast.Name) -> ast.expr:
        new = self.new.get(node.id, node.id)
        if isinstance(new, str):
            return ast.copy_location(ast.Name(new, node.ctx), node)
        return copy.deepcopy(new)


def located(node: Any, like: ast.AST) -> Any:
    """A new tree, all of it at the place of ``like``; parts that have a place keep it."""
    for part in nodes(node):
        if isinstance(part, (ast.stmt, ast.expr)) and not hasattr(part, "lineno"):
            ast.copy_location(part, like)
    return node


def with_line_offset(tree: T, lines: int) -> T:
    """A copy that shares no node with ``tree``, so many lines further down."""
    kind = tree.__class__
    new = kind.__new__(kind)
    attributes = new.__dict__
    attributes.update(tree.__dict__)
    for name in kind._fields:
        value = attributes.get(name)
        if value.__class__ is list:
            attributes[name] = [with_line_offset(item, lines) if isinstance(item, ast.AST) else item for item in value]
        elif isinstance(value, ast.AST):
            attributes[name] = with_line_offset(value, lines)
    for name in ("lineno", "end_lineno"):
        if attributes.get(name) is not None:
            attributes[name] += lines
    return new
