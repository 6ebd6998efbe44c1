"""Where a block of statements refers to buffers, and how."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache

from swirl.ir.hints import stored_value
from swirl.ir.nest import Loop, Program, loop_of, references, subscripts
from swirl.ir.printing import unparse
from swirl.ir.trees import certain_references, name_of, targets_in


@dataclass(frozen=True)
class Use:
    """A statement (or a condition) in which the reference occurs, and what is between it and the block."""

    node: ast.AST
    count: int
    loops: tuple[Loop, ...]
    conditional: bool
    move: bool
    stored: bool
    guards: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        """Whether it is executed whatever the data and the bounds are."""
        return not self.conditional and all(loop.extent or loop.kind == "vector" for loop in self.loops)


@dataclass(frozen=True)
class _Occurrence:
    """A reference in one statement or condition.

    Args:
        name: what it is an element of.
        count: how often it occurs.
        sure: whether it is evaluated for certain when the statement is.
        move: whether the statement only loads it into a local, or stores a local to it.
        stored: whether it is assigned.
    """

    text: str
    name: str
    count: int
    sure: bool
    move: bool
    stored: bool


@lru_cache(maxsize=4096)  # trees are values: each is in many blocks, and in the nest after the next replacement
def _occurrences(tree: ast.stmt | ast.expr) -> tuple[_Occurrence, ...]:
    """Every reference in a statement without others inside, or in a condition, in order of appearance."""
    counts: dict[str, int] = {}
    names: dict[str, str] = {}
    for ref in references(tree):
        text = unparse(ref)
        counts[text] = counts.get(text, 0) + 1
        names[text] = name_of(ref)
    sure = set(map(unparse, certain_references(tree)))
    written = {unparse(target) for target in targets_in([tree])} if isinstance(tree, ast.stmt) else set()
    return tuple(
        _Occurrence(text, names[text], number, text in sure, _is_move(tree, text), text in written)
        for text, number in counts.items()
    )


def uses_in(block: list[ast.stmt], buffer: str | None, program: Program) -> dict[str, list[Use]]:
    """Every reference to a buffer in the block, as text, with its uses; by buffer, in order of first
    appearance."""
    found: dict[str, dict[str, list[Use]]] = {}

    def count(tree: ast.stmt | ast.expr, heads: tuple[Loop, ...], conditional: bool, guards: tuple[str, ...]) -> None:
        for each in _occurrences(tree):
            if each.name not in program.buffers or (buffer is not None and each.name != buffer):
                continue
            use = Use(
                tree,
                each.count,
                heads,
                conditional or not each.sure,
                each.move,
                each.stored,
                guards if each.sure else (),
            )
            found.setdefault(each.name, {}).setdefault(each.text, []).append(use)

    def visit(body: list[ast.stmt], heads: tuple[Loop, ...], conditional: bool, guards: tuple[str, ...]) -> None:
        for node in body:
            if isinstance(node, ast.For):
                visit(node.body, (*heads, loop_of(node)), conditional, guards)
            elif isinstance(node, ast.If):
                test = unparse(node.test)
                count(node.test, heads, conditional, guards)
                visit(node.body, heads, True, (*guards, test))
                visit(node.orelse, heads, True, (*guards, f"not ({test})"))
            else:
                count(node, heads, conditional, guards)

    visit(block, (), False, ())
    return {text: uses for by_text in found.values() for text, uses in by_text.items()}


def _is_move(node: ast.AST, text: str) -> bool:
    """Whether the statement only loads the element into a local, or stores a local to it."""
    if isinstance(node, ast.AnnAssign):
        return node.value is not None and unparse(node.value) == text
    if isinstance(node, ast.Assign):
        target, value = node.targets[0], stored_value(node.value)
        other = value if unparse(target) == text else target
        simple = isinstance(other, ast.Name) or (
            isinstance(other, ast.Subscript) and all(isinstance(i, ast.Name) for i in subscripts(other))
        )
        return simple and text in (unparse(target), unparse(value))
    return False
