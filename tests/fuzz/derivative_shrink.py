"""A failing body made small: fewer statements, fewer loops and branches, simpler expressions."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator


def shrunk(source: str, fails: Callable[[str], str | None], tries: int = 600) -> str:
    """The smallest text found that fails in the same way (the first word of what is wrong)."""
    way = (fails(source) or "").split(" ")[0]
    changed = True
    while changed and tries > 0:
        changed = False
        for smaller in _smaller(source):
            tries -= 1
            if tries <= 0:
                break
            try:
                found = fails(smaller)
            except Exception:
                continue
            if found is not None and found.split(" ")[0] == way:
                source, changed = smaller, True
                break
    return source


def _smaller(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    inner = [node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.If))]
    for block in [tree.body, *(node.body for node in inner), *(node.orelse for node in inner)]:
        for index, statement in enumerate(list(block)):
            replacements: list[list[ast.stmt]] = [[]]
            if isinstance(statement, ast.If):
                replacements += [statement.body, statement.orelse]
            for new in replacements:
                old = list(block)
                block[index : index + 1] = new
                if all(node.body for node in (tree, *inner)):
                    yield ast.unparse(tree) + "\n"
                block[:] = old
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if name in ("slice", "annotation", "target", "iter") or not isinstance(value, ast.expr):
                continue
            if not isinstance(value, (ast.BinOp, ast.Call, ast.IfExp, ast.UnaryOp, ast.BoolOp, ast.Subscript)):
                continue
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "empty":
                continue
            parts = [child for child in ast.iter_child_nodes(value) if isinstance(child, ast.expr)]
            parts = parts[1:] if isinstance(value, ast.Call) else [] if isinstance(value, ast.Subscript) else parts
            for part in [*parts, ast.Constant(0.5)]:
                setattr(node, name, part)
                yield ast.unparse(tree) + "\n"
            setattr(node, name, value)
