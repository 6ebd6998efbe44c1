"""What the statements of a nest refer to: array elements and locals, read, written or added to."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from swirl.analysis.isl_notation import condition_to_isl, to_isl
from swirl.ir.affine import Affine, affine
from swirl.ir.nest import names_in, subscripts, substitute
from swirl.ir.printing import unparse
from swirl.ir.trees import guarded, name_of, target_of


@lru_cache(maxsize=4096)
def parsed(text: str) -> ast.expr:
    """The expression for a text; not to be edited."""
    return ast.parse(text, mode="eval").body


LocalLoops = Mapping[str, tuple[str, ...]]
"""The locals that are visible somewhere, each with the variables of the loops around its declaration."""


@dataclass(frozen=True)
class Access:
    """One reference of a statement. ``kind``: ``read``, ``write``, or the reduction ``add``, ``mul``,
    ``max``, ``min``.

    ``when``: conditions of the selects, ``and`` and ``or`` around it in the statement; its value is needed only under
    these, but code may load the element anyway.
    """

    name: str
    indices: tuple[ast.expr, ...]
    kind: str
    text: str
    when: tuple[str, ...] = ()

    @property
    def own(self) -> tuple[ast.expr, ...]:
        """The subscripts that the reference has; ``indices`` has the loops around a local's declaration before them."""
        tree = parsed(self.text)
        return self.indices[len(self.indices) - len(subscripts(tree)) :] if isinstance(tree, ast.Subscript) else ()

    @cached_property
    def templates(self) -> tuple[str | None, ...]:
        """The subscripts for isl, see :func:`template`."""
        return tuple(template(index) for index in self.indices)

    @cached_property
    def names(self) -> tuple[set[str], ...]:
        """The names in each subscript."""
        return tuple(names_in(index) for index in self.indices)

    @cached_property
    def forms(self) -> tuple[Affine | None, ...]:
        """The subscripts in canonical form."""
        return tuple(affine(index) for index in self.indices)


def moves(access: Access, var: str) -> bool:
    """Whether an access moves with a loop; a local does with those around its declaration."""
    return any(var in names for names in access.names)


_AT = "_at_suffix"


def _with_at(node: ast.expr) -> ast.expr:
    """The expression with every variable marked, for :func:`template`."""
    names = names_in(node) - {"min", "max"}
    return substitute(node, {name: ast.Name(name + _AT, ast.Load()) for name in names})


def template(node: ast.expr) -> str | None:
    """The expression in isl's notation with ``@`` after every variable, to be replaced by a suffix; None if not
    affine."""
    text = to_isl(_with_at(node))
    return None if text is None else text.replace(_AT, "@")


def condition_template(node: ast.expr) -> str | None:
    """A condition on loop variables in isl's notation with ``@`` after every variable; None where it depends on
    data."""
    text = condition_to_isl(_with_at(node))
    return None if text is None else text.replace(_AT, "@")


def accesses_of(node: ast.stmt, scope: LocalLoops) -> Iterator[Access]:
    """The references of a statement (of a condition, those in its test); ``scope`` has the locals visible there."""
    if isinstance(node, ast.If):
        reads = [node.test]
    elif isinstance(node, ast.AnnAssign):
        if not is_empty_array(node.value):
            yield access(node.target, "write", scope)
        reads = [node.value] if node.value is not None and not is_empty_array(node.value) else []
    elif isinstance(node, ast.AugAssign):
        kinds: dict[type, str] = {ast.Add: "add", ast.Sub: "add", ast.Mult: "mul", ast.Div: "mul"}
        kind = kinds.get(type(node.op))
        yield access(node.target, kind or "write", scope)
        reads = [node.value] if kind else [node.value, node.target]
    elif isinstance(node, ast.Assign):
        extremum = reduction_extremum(node)
        yield access(node.targets[0], extremum[0] if extremum else "write", scope)
        reads = [extremum[1]] if extremum else [node.value]
    else:
        return
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        target = target_of(node)
        if isinstance(target, ast.Subscript):
            reads += subscripts(target)
    found: list[tuple[ast.expr, tuple[str, ...]]] = []
    for tree in reads:
        _add_references(found, tree, scope, ())
    for part, when in found:
        yield access(part, "read", scope, when)


def is_empty_array(value: ast.AST | None) -> bool:
    """Whether it is ``empty(…)``: a declared array without values."""
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "empty"


def _add_references(
    found: list[tuple[ast.expr, tuple[str, ...]]], tree: ast.expr, scope: LocalLoops, when: tuple[str, ...]
) -> None:
    """Add the references in an expression, those inside subscripts (index buffers) included, each with the conditions
    under which it is evaluated."""
    if isinstance(tree, ast.Subscript):
        found.append((tree, when))
        for index in subscripts(tree):
            if index.__class__ is not ast.Constant:
                _add_references(found, index, scope, when)
    elif isinstance(tree, ast.Name):
        if tree.id in scope:
            found.append((tree, when))
    elif isinstance(tree, ast.BinOp):
        _add_references(found, tree.left, scope, when)
        _add_references(found, tree.right, scope, when)
    elif not isinstance(tree, ast.Constant):
        for part, guards in guarded(tree):
            if isinstance(part, ast.expr):
                texts = [unparse(test) if holds else f"not ({unparse(test)})" for test, holds in guards]
                _add_references(found, part, scope, (*when, *texts))


def access(target: ast.expr, kind: str, scope: LocalLoops, when: tuple[str, ...] = ()) -> Access:
    """The access of a reference; a local is a new variable in each iteration of the loops around its declaration."""
    return _access_of(unparse(target), kind, scope.get(name_of(target), ()), when)


@lru_cache(maxsize=16384)
def _access_of(text: str, kind: str, around: tuple[str, ...], when: tuple[str, ...]) -> Access:
    """The access of a reference of that text: a command leaves most as they are, and what is known of them is kept."""
    target = parsed(text)
    own = subscripts(target) if isinstance(target, ast.Subscript) else []
    return Access(name_of(target), (*(ast.Name(var, ast.Load()) for var in around), *own), kind, text, when)


def reduction_extremum(node: ast.Assign) -> tuple[str, ast.expr] | None:
    """``("max", e)`` for ``x = max(x, e)`` (and min), else None."""
    call = node.value
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("max", "min")):
        return None
    target = unparse(node.targets[0])
    others = [arg for arg in call.args if unparse(arg) != target]
    return (call.func.id, others[0]) if len(call.args) == 2 and len(others) == 1 else None
