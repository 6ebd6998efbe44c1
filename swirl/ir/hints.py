"""Hints: words in nests that change how memory is used, never what is computed."""

from __future__ import annotations

import ast
import keyword
from dataclasses import dataclass

from swirl.ir.nest import LOOP_KINDS, constant
from swirl.ir.operations import CALLS
from swirl.ir.spelling import normalised
from swirl.ir.trees import nodes

STREAM, PREFETCH = "stream", "prefetch"
LEVELS = (0, 1, 2, 3)
"""Into which cache a prefetch goes; 0 is for data that is used once."""

WORDS = frozenset({*CALLS, *LOOP_KINDS, STREAM, PREFETCH, "empty"})
"""Reserved names in a nest: no buffer, local or loop variable can have one."""


def is_name(name: object) -> bool:
    """Whether a buffer, a local or a loop can have this name: an identifier as Python's parser has them (NFKC), that is
    not reserved."""
    return (
        isinstance(name, str)
        and name.isidentifier()
        and normalised(name) == name
        and not keyword.iskeyword(name)
        and name not in WORDS
        and name not in ("inf", "INFINITY")
    )


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
    return any(isinstance(node, ast.Assign) and streamed(node.value) is not None for node in nodes(tree))


@dataclass(frozen=True)
class Prefetch:
    """``prefetch(x, (i, j + 1), 2)``: the line of ``x[i, j + 1]`` is fetched into the cache of that level.

    The element is named, not read: it may be outside of the array.
    """

    buffer: str
    indices: tuple[ast.expr, ...]
    level: int

    def node(self) -> ast.Expr:
        index = ast.Tuple(list(self.indices), ast.Load())
        args: list[ast.expr] = [ast.Name(self.buffer, ast.Load()), index, ast.Constant(self.level)]
        return ast.Expr(ast.Call(ast.Name(PREFETCH, ast.Load()), args, []))


def prefetch_of(node: ast.AST) -> Prefetch | None:
    """The prefetch that a statement is, else None."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == PREFETCH):
        return None
    if len(call.args) != 3 or call.keywords:
        return None
    buffer, index, level = call.args
    number = constant(level)
    if not isinstance(buffer, ast.Name) or not isinstance(index, ast.Tuple) or number is None:
        return None
    return Prefetch(buffer.id, tuple(index.elts), number)


def prefetches(tree: ast.AST) -> bool:
    """Whether a statement is a prefetch, or has one inside."""
    return any(prefetch_of(node) is not None for node in nodes(tree))
