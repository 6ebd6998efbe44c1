"""Walking and copying Python's trees. The standard library's functions ask each node for its fields by name, contexts
and operators included; these know which fields hold trees, and take a sixth of the time."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

T = TypeVar("T", bound=ast.AST)
R = TypeVar("R")

_LEAVES = {"ctx", "op", "ops", "id", "attr", "kind", "type_comment", "name", "arg", "simple", "kw_defaults"}


class _Fields(dict[type[ast.AST], tuple[str, ...]]):
    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        skipped = _LEAVES | {"value"} if kind is ast.Constant else _LEAVES
        fields = getattr(kind, "_fields", ())  # None, in the place of a key, has none
        self[kind] = tuple(name for name in fields if name not in skipped)
        return self[kind]


_CHILDREN = _Fields()
"""The fields of a kind of node that hold statements or expressions."""


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every statement and expression in ``tree``, in the order of ``ast.walk`` (outer before inner); no contexts and
    operators."""
    found = [tree]
    for node in found:  # it grows as we go
        yield node
        for name in _CHILDREN[node.__class__]:  # not by `children`: the call takes a third longer
            value = getattr(node, name, None)
            if value.__class__ is list:
                found += value
            elif isinstance(value, ast.AST):
                found.append(value)


def children(tree: ast.AST) -> list[ast.AST]:
    """The statements and expressions directly in ``tree``; no contexts and operators."""
    found: list[ast.AST] = []
    for name in _CHILDREN[tree.__class__]:
        value = getattr(tree, name, None)
        if value.__class__ is list:
            found += value
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def operands(tree: ast.AST) -> list[Any]:
    """The expressions that a statement or an expression computes with: neither subscripts nor names of functions."""
    if isinstance(tree, ast.Subscript):
        return []
    return tree.args if isinstance(tree, ast.Call) else children(tree)


def fold(tree: ast.AST, combine: Callable[[Any, list[R]], R]) -> R:
    """What an expression comes to, or a statement without others inside.

    Args:
        tree: the expression, or the statement.
        combine: what a node comes to, from what its :func:`operands` come to.
    """
    return combine(tree, [fold(part, combine) for part in operands(tree)])


Guard = tuple[ast.expr, bool]
"""A condition, and whether it holds."""


def guarded(tree: ast.AST) -> list[tuple[Any, tuple[Guard, ...]]]:
    """The statements and expressions directly in ``tree``, each with what holds whenever it is evaluated: selects,
    ``and``, ``or`` and comparisons in a row leave out what they do not need."""
    if isinstance(tree, ast.IfExp):
        return [(tree.test, ()), (tree.body, ((tree.test, True),)), (tree.orelse, ((tree.test, False),))]
    before: list[Guard] = []
    if isinstance(tree, ast.BoolOp):
        before = [(value, isinstance(tree.op, ast.And)) for value in tree.values]
        return [(value, tuple(before[:place])) for place, value in enumerate(tree.values)]
    if isinstance(tree, ast.Compare) and len(tree.ops) > 1:
        sides = [tree.left, *tree.comparators]
        rows = zip(sides, tree.ops, tree.comparators, strict=False)
        before = [(ast.Compare(left, [op], [right]), True) for left, op, right in rows]
        return [(side, tuple(before[: max(0, place - 1)])) for place, side in enumerate(sides)]
    return [(part, ()) for part in children(tree)]


def condition_of(guard: Guard) -> ast.expr:
    """What holds, as an expression."""
    test, holds = guard
    return test if holds else ast.UnaryOp(ast.Not(), test)


def certain_references(tree: ast.AST) -> list[ast.Subscript]:
    """The references that are evaluated whenever ``tree`` is."""
    found, left = [], [tree]
    for node in left:  # it grows as we go
        if isinstance(node, ast.Subscript):
            found.append(node)
        if isinstance(node, (ast.IfExp, ast.BoolOp, ast.Compare)):
            left += [part for part, guards in guarded(node) if not guards]
        else:
            left += children(node)
    return found


class Transformer(ast.NodeTransformer):
    """``ast.NodeTransformer``, which here visits no contexts and operators."""

    _visitors: ClassVar[dict[type, Callable[[Any, Any], Any]]]

    def __init_subclass__(cls) -> None:
        cls._visitors = {}

    def visit(self, node: ast.AST) -> Any:
        kind = node.__class__
        visitor = self._visitors.get(kind)
        if visitor is None:
            visitor = getattr(type(self), f"visit_{kind.__name__}", None)
            if visitor is None or kind is ast.Constant and visitor is ast.NodeVisitor.visit_Constant:
                visitor = type(self).generic_visit
            self._visitors[kind] = visitor
        return visitor(self, node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name in _CHILDREN[node.__class__]:
            value = getattr(node, name, None)
            if value.__class__ is list:
                new: list[Any] = []
                for item in value:
                    visited = self.visit(item)
                    if isinstance(visited, ast.AST):
                        new.append(visited)
                    elif visited is not None:
                        new += visited
                value[:] = new
            elif isinstance(value, ast.AST):
                visited = self.visit(value)
                if visited is None:
                    delattr(node, name)
                elif visited is not value:
                    setattr(node, name, visited)
        return node


def statements_in(tree: ast.stmt) -> Iterator[ast.stmt]:
    """Every statement in ``tree``, itself included, in the order of ``ast.walk``; expressions are not looked into."""
    found = [tree]
    for node in found:  # it grows as we go
        yield node
        if isinstance(node, (ast.For, ast.If)):
            found += node.body
            found += node.orelse
        elif isinstance(node, ast.FunctionDef):
            found += node.body


def names_in(tree: ast.AST) -> set[str]:
    """Every plain name in ``tree`` (variables, buffers, called functions)."""
    names: set[str] = set()
    left: list[Any] = [tree]
    while left:  # not by `nodes`: most of the calls are for a few nodes
        node = left.pop()
        kind = node.__class__
        if kind is ast.Name:
            names.add(node.id)
        elif kind is ast.BinOp:  # most of what is neither a name nor a number
            left += (node.left, node.right)
        elif kind is ast.Subscript:
            left += (node.value, node.slice)
        elif kind is not ast.Constant:
            left += children(node)
    return names


def names_of(body: Iterable[ast.stmt]) -> set[str]:
    """The same of all statements of a nest, which stay as they are: most of them are in the nest before a rewrite, too,
    and have been looked into."""
    names: set[str] = set()
    left = list(body)
    while left:
        node = left.pop()
        if isinstance(node, ast.For):
            names |= names_in(node.target) | _names_of_part(node.iter)
            left += node.body
        elif isinstance(node, ast.If):
            names |= _names_of_part(node.test)
            left += [*node.body, *node.orelse]
        else:
            names |= _names_of_part(node)
    return names


@lru_cache(maxsize=2**14)
def _names_of_part(tree: ast.AST) -> frozenset[str]:
    return frozenset(names_in(tree))


def references(tree: ast.AST) -> Iterator[ast.Subscript]:
    """Every subscripted reference ``name[…]`` in ``tree``."""
    for node in nodes(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            yield node


def subscripts(reference: ast.Subscript) -> list[ast.expr]:
    """The subscripts of ``name[i, j]`` as a list."""
    index = reference.slice
    return list(index.elts) if isinstance(index, ast.Tuple) else [index]


def reference(name: str, indices: list[ast.expr], store: bool = False) -> ast.Subscript:
    """``name[indices]``."""
    index = indices[0] if len(indices) == 1 else ast.Tuple(list(indices), ast.Load())
    return ast.Subscript(ast.Name(name, ast.Load()), index, ast.Store() if store else ast.Load())


ASSIGNMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign)
"""What sets a local or an element; a declaration does, too."""


def target_of(statement: ast.stmt) -> ast.expr:
    """What one of :data:`ASSIGNMENTS` sets."""
    assert isinstance(statement, ASSIGNMENTS)
    return statement.targets[0] if isinstance(statement, ast.Assign) else statement.target


def name_of(target: ast.expr) -> str:
    """The local or the buffer that a name, or a reference to an element, names."""
    base = target.value if isinstance(target, ast.Subscript) else target
    assert isinstance(base, ast.Name)
    return base.id


def targets_in(body: Iterable[ast.stmt], declared: bool = False) -> Iterator[ast.expr]:
    """What statements, and those inside of them, assign or update, once for each; and declare, if ``declared``."""
    found = (node for statement in body for node in statements_in(statement))
    yield from (target_of(s) for s in found if isinstance(s, ASSIGNMENTS[: 3 if declared else 2]))


def declared_in(tree: ast.stmt) -> set[str]:
    """The names of the locals that a statement declares, or one inside of it."""
    return {name_of(s.target) for s in statements_in(tree) if isinstance(s, ast.AnnAssign)}


def clone(tree: T) -> T:
    """A copy that may be changed in place: it shares no statement and no expression with ``tree``, not even where
    ``tree`` holds one in two places. Only names and constants, which are never changed, are shared.

    Attributes that are not part of the tree (a loop's mark, a statement's number) are kept.
    """
    kind = tree.__class__
    if kind is ast.Name or kind is ast.Constant:
        return tree
    new = kind.__new__(kind)
    attributes = new.__dict__
    attributes.update(tree.__dict__)
    for name in _CHILDREN[kind]:
        value = attributes.get(name)
        if value.__class__ is list:
            attributes[name] = [clone(item) for item in value]
        elif isinstance(value, ast.AST):
            attributes[name] = clone(value)
    if kind is ast.Compare:
        attributes["ops"] = list(attributes["ops"])
    return new


def changed(tree: T, **fields: Any) -> T:
    """The same statement or expression with other fields; it shares its other parts with ``tree``."""
    kind = tree.__class__
    new = kind.__new__(kind)
    new.__dict__.update(tree.__dict__, **fields)
    return new


def as_target(element: ast.expr) -> ast.Name | ast.Subscript:
    """A copy of a local or an element, as the target of an assignment."""
    return _in_context(element, ast.Store())


def as_value(element: ast.expr) -> ast.Name | ast.Subscript:
    """A copy of a local or an element, as a value."""
    return _in_context(element, ast.Load())


def _in_context(element: ast.expr, context: ast.expr_context) -> ast.Name | ast.Subscript:
    assert isinstance(element, (ast.Name, ast.Subscript))
    if isinstance(element, ast.Name) and element.ctx.__class__ is context.__class__:
        return element
    return changed(clone(element), ctx=context)


def located(tree: T) -> T:
    """The tree, every node with a place in a source, as ``compile`` needs it."""
    for node in nodes(tree):
        attributes = node.__dict__
        if "lineno" not in attributes or "end_lineno" not in attributes:
            attributes.update(lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)
    return tree
