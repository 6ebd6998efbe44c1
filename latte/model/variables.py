"""The variables of a function that was read: which names are assigned and which loop, and giving them other names."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Mapping
from typing import Any


def names(tree: ast.AST) -> set[str]:
    """Every plain name, arguments included."""
    arguments = {part.arg for part in ast.walk(tree) if isinstance(part, ast.arg)}
    return arguments | {part.id for part in ast.walk(tree) if isinstance(part, ast.Name)}


def store_counts(tree: ast.AST) -> Counter[str]:
    """How often each plain name is assigned, or is a loop's; an update counts twice, since its target cannot be a
    constant."""
    counts: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            counts[node.id] += 1
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            counts[node.target.id] += 1
    return counts


def _looping(tree: ast.AST) -> Counter[str]:
    targets = (node.target for node in ast.walk(tree) if isinstance(node, ast.For))
    return Counter(part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))


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
    for part in ast.walk(node):
        if isinstance(part, (ast.stmt, ast.expr)) and not hasattr(part, "lineno"):
            ast.copy_location(part, like)
    return node
