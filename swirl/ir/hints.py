"""Hints: words in nests that change how memory is used, never what is computed."""

from __future__ import annotations

import ast

from swirl.ir.nest import CALLS, LOOP_KINDS

STREAM = "stream"

WORDS = frozenset({*CALLS, *LOOP_KINDS, STREAM, "empty"})
"""Names that mean something in a nest: no buffer, local or loop variable can have one."""


def streamed(value: ast.expr) -> ast.expr | None:
    """``e`` where the value of an assignment is ``stream(e)``, a non-temporal store; else None."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == STREAM:
        return value.args[0]
    return None


def stored_value(value: ast.expr) -> ast.expr:
    """What an assignment stores: ``e`` for ``e`` and for ``stream(e)``."""
    inner = streamed(value)
    return value if inner is None else inner


def stream(value: ast.expr) -> ast.Call:
    """``stream(value)``."""
    return ast.Call(ast.Name(STREAM, ast.Load()), [value], [])


def streams(tree: ast.AST) -> bool:
    """Whether a statement, or one inside it, has a non-temporal store."""
    return any(isinstance(node, ast.Assign) and streamed(node.value) is not None for node in ast.walk(tree))
