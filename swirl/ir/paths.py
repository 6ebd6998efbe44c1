"""Where a statement is in a body, and bodies with one statement replaced."""

from __future__ import annotations

import ast
from collections.abc import Callable

from swirl.ir.trees import changed

Path = tuple[tuple[str, int], ...]
"""The place of a statement in a nest: ``(("body", 0), ("body", 2))`` is the third statement of the first loop."""


def walk(body: list[ast.stmt], prefix: Path = ()) -> list[tuple[Path, ast.stmt]]:
    """Every statement with its path, outer before inner, in textual order."""
    found: list[tuple[Path, ast.stmt]] = []
    _add_walk(body, prefix, "body", found)
    return found


def _add_walk(body: list[ast.stmt], prefix: Path, name: str, found: list[tuple[Path, ast.stmt]]) -> None:
    for index, statement in enumerate(body):
        path = (*prefix, (name, index))
        found.append((path, statement))
        if isinstance(statement, (ast.For, ast.If)):
            _add_walk(statement.body, path, "body", found)
            if statement.orelse:
                _add_walk(statement.orelse, path, "orelse", found)


def loops(body: list[ast.stmt]) -> list[tuple[Path, ast.For]]:
    """Every loop with its path, outer before inner."""
    return [(path, statement) for path, statement in walk(body) if isinstance(statement, ast.For)]


def at(body: list[ast.stmt], path: Path) -> ast.stmt:
    """The statement at ``path``."""
    name, index = path[0]
    statement = body[index]
    for name, index in path[1:]:
        statement = getattr(statement, name)[index]
    return statement


def enclosing(body: list[ast.stmt], path: Path) -> list[ast.stmt]:
    """The loops and conditions around the statement at ``path``, outermost first."""
    return [at(body, path[:depth]) for depth in range(1, len(path))]


def replace_at(body: list[ast.stmt], path: Path, new: list[ast.stmt]) -> list[ast.stmt]:
    """A copy of ``body`` with the statement at ``path`` replaced by the statements ``new``."""
    return edit_at(body, path, lambda _: new)


def edit_at(body: list[ast.stmt], path: Path, edit: Callable[[ast.stmt], list[ast.stmt]]) -> list[ast.stmt]:
    """A copy of ``body`` with the statement at ``path`` replaced by what ``edit`` makes of it."""
    index = path[-1][1]
    return edit_block(body, path, lambda block: [*block[:index], *edit(block[index]), *block[index + 1 :]])


def edit_block(body: list[ast.stmt], path: Path, edit: Callable[[list[ast.stmt]], list[ast.stmt]]) -> list[ast.stmt]:
    """A copy of ``body`` with the block that holds the statement at ``path`` replaced by what ``edit`` makes of it."""
    (_, index), rest = path[0], path[1:]
    if not rest:
        return edit(body)
    parent, name = body[index], rest[0][0]
    inner = changed(parent, **{name: edit_block(getattr(parent, name), rest, edit)})
    return [*body[:index], inner, *body[index + 1 :]]
