"""Integers of the generated code have 32 bits: this finds those of a nest that might not fit."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from swirl.ir.affine import Ranges, loop_range
from swirl.ir.names import on_loops
from swirl.ir.nest import Nest, loop_of, names_in, subscripts
from swirl.ir.paths import Path
from swirl.ir.printing import unparse
from swirl.ir.trees import children, nodes

LARGEST = 2**31 - 1


def too_large(nest: Nest) -> tuple[Path, str] | None:
    """The first loop, subscript or arithmetic on loop variables that may pass :data:`LARGEST`, itself or in an
    intermediate result: the statement's path, and what is too large; None where all fit.

    Data count as nothing: a program is responsible for what it reads from arrays.
    """
    return next(_found(nest.body, (), "body", {}), None)


def _found(body: Sequence[ast.stmt], prefix: Path, field: str, ranges: Ranges) -> Iterator[tuple[Path, str]]:
    for index, node in enumerate(body):
        path, inside = (*prefix, (field, index)), ranges
        if isinstance(node, ast.For):
            loop = loop_of(node)
            inside = {**ranges, **loop_range(loop, ranges)}
            last = max(_size(loop.start, ranges), _size(loop.stop, ranges))
            if last + abs(loop.step) > LARGEST:  # the value that ends the loop is one step further
                yield path, loop.var
        elif _most(tree := node.test if isinstance(node, ast.If) else node, ranges) > LARGEST:
            integers = _integers(tree, ranges)
            yield from ((path, unparse(each)) for each in integers if _size(each, ranges) > LARGEST)
        if isinstance(node, (ast.For, ast.If)):
            yield from _found(node.body, path, "body", inside)
            yield from _found(node.orelse, path, "orelse", inside)


def _most(node: ast.AST, ranges: Ranges) -> int:
    """A bound on every :func:`_size` in a tree, found in one walk: nearly all trees are far below :data:`LARGEST`."""
    kind = node.__class__
    if kind is ast.Name or kind is ast.Constant:
        return _size(node, ranges)  # type: ignore[arg-type]
    parts = [_most(child, ranges) for child in children(node)]
    if kind is ast.BinOp:
        left, right = parts
        return max(left + right, left * right)
    most = max(parts, default=0)
    if kind is not ast.Subscript:
        return most
    return 0 if most <= LARGEST else LARGEST + 1  # what it reads counts as nothing


def _integers(tree: ast.AST, ranges: Ranges) -> Iterator[ast.expr]:
    """Subscripts, and arithmetic on loop variables alone."""
    for node in nodes(tree):
        if isinstance(node, ast.Subscript):
            yield from subscripts(node)
        elif isinstance(node, ast.BinOp) and on_loops(node, ranges) and names_in(node):
            yield node


def _size(node: ast.expr, ranges: Ranges) -> int:
    """The sum of the magnitudes of an expression's parts: whatever order they are added in, no sum is larger."""
    if isinstance(node, ast.Constant):
        return abs(node.value) if isinstance(node.value, int) else 0
    if isinstance(node, ast.Name):
        return max(map(abs, ranges.get(node.id, (0, 0))))
    if isinstance(node, ast.UnaryOp):
        return _size(node.operand, ranges)
    if isinstance(node, ast.BinOp):
        left, right = _size(node.left, ranges), _size(node.right, ranges)
        if isinstance(node.op, ast.Mult):
            return left * right
        return left + right if isinstance(node.op, (ast.Add, ast.Sub)) else left
    if isinstance(node, ast.Call):
        return max((_size(argument, ranges) for argument in node.args), default=0)
    return 0
