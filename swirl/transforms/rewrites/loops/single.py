"""Loops of one iteration, whose variables are numbers."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from swirl.ir.affine import simplify_body
from swirl.ir.nest import Loop, loop_of, substitute, with_inner
from swirl.ir.paths import loops

SINGLE = ("range", "unrolled")
"""Kinds of loops that can do without their variable."""


def is_single(loop: Loop) -> bool:
    """Whether a loop has one iteration, whose number needs no variable."""
    return loop.kind in SINGLE and loop.extent == 1


def with_numbers_of_single(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements with numbers in the place of variables of loops of one iteration; the loops stay. The same list where
    there are none.

    rewrite:
        for i in range(1):             for i in range(1):
            s[c + i] += x[c + i]   →       s[c] += x[c]
    """
    return simplify_body(_numbers(body)) if any(is_single(loop_of(node)) for _, node in loops(body)) else body


def _numbers(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    result: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.For):
            loop, inner = loop_of(node), node.body
            if is_single(loop):
                inner = [substitute(statement, {loop.var: loop.start}) for statement in inner]
            node = with_inner(node, _numbers(inner))
        elif isinstance(node, ast.If):
            node = ast.If(node.test, _numbers(node.body), _numbers(node.orelse))
        result.append(node)
    return result
