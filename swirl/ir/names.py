"""The meaning of a name at a place of a nest: the loop variable, local or buffer, and its type.

A name has no meaning by itself: sibling blocks may use one name for a loop and for locals of several types. So code
that needs its meaning asks for the :class:`Scope` of the place.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from swirl.ir.buffers import Buffer
from swirl.ir.nest import LocalType, Nest, fresh, local_type, names_in, substitute
from swirl.ir.paths import Path, walk
from swirl.ir.paths import loops as loops_of
from swirl.ir.trees import ASSIGNMENTS, changed, name_of, nodes, statements_in, target_of, targets_in

Kind = Literal["loop", "local", "buffer"]

INDEX_CALLS = frozenset({"min", "max"})
"""What quasi-affine expressions may call."""


@dataclass(frozen=True)
class Named:
    """What a name means.

    Args:
        kind: loop variable, local or buffer.
        dtype: of the number, or of the elements of an array; ``int32`` for a loop variable.
        shape: extents of a buffer or a local array; ``()`` for a number.
        declared: path of the loop, or of the local's declaration; None for a buffer.
        formula: of a scalar buffer that depends on the number of items.
    """

    kind: Kind
    dtype: str
    shape: tuple[int, ...] = ()
    declared: Path | None = None
    formula: str = ""


Scope = Mapping[str, Named]
"""What each name that is visible at a place means there."""


def buffers_in_scope(buffers: Mapping[str, Buffer]) -> Scope:
    """The scope around a nest."""
    return {name: Named("buffer", b.dtype, b.shape, formula=b.formula) for name, b in buffers.items()}


def of_loop(node: ast.For, path: Path | None = None) -> Scope:
    """What a loop adds to the scope of its body."""
    assert isinstance(node.target, ast.Name)
    return {node.target.id: Named("loop", "int32", (), path)}


def of_declaration(node: ast.AnnAssign, path: Path | None = None) -> Scope:
    """What a declaration adds to the scope of the statements after it."""
    assert isinstance(node.target, ast.Name)
    kind = local_type(node)
    return {node.target.id: Named("local", kind.dtype, kind.shape, path)}


def whole_scope(nest: Nest, buffers: Mapping[str, Buffer]) -> Scope:
    """What all names mean, in a nest in which each has one meaning (:func:`with_distinct_names`)."""
    scope = dict(buffers_in_scope(buffers))
    for _, node in walk(nest.body):
        if isinstance(node, ast.For):
            scope |= of_loop(node)
        elif isinstance(node, ast.AnnAssign):
            scope |= of_declaration(node)
    return scope


def scope_at(body: Sequence[ast.stmt], path: Path, buffers: Mapping[str, Buffer]) -> Scope:
    """The scope in which the statement at ``path`` is read.

    Args:
        body: of a nest.
        path: of one of its statements.
        buffers: of the program.
    """
    scope = dict(buffers_in_scope(buffers))
    block = body
    for depth, (field, index) in enumerate(path):
        if depth:
            owner = block[path[depth - 1][1]]
            if isinstance(owner, ast.For):
                scope |= of_loop(owner, path[:depth])
            assert isinstance(owner, (ast.For, ast.If))
            block = owner.body if field == "body" else owner.orelse
        for place, node in enumerate(block[:index]):
            if isinstance(node, ast.AnnAssign):
                scope |= of_declaration(node, (*path[:depth], (field, place)))
    return scope


def with_distinct_names(nest: Nest) -> Nest:
    """The nest in which each local's name is only that of locals of one type, and not of a loop: others are renamed.

    Sibling blocks may use a name for several things; moved together, they would hide each other.
    """
    loops = {node.target.id for _, node in loops_of(nest.body) if isinstance(node.target, ast.Name)}
    kinds: dict[str, set[LocalType]] = {}
    for _, node in walk(nest.body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            kinds.setdefault(node.target.id, set()).add(local_type(node))
    if not any(name in loops or len(types) > 1 for name, types in kinds.items()):
        return nest
    taken = set(nest.names)
    first: dict[str, LocalType] = {}

    def block(body: Sequence[ast.stmt], names: Mapping[str, ast.expr]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for node in body:
            if isinstance(node, (ast.For, ast.If)):
                field = "iter" if isinstance(node, ast.For) else "test"
                head = {field: substitute(getattr(node, field), names)}
                result.append(changed(node, **head, body=block(node.body, names), orelse=block(node.orelse, names)))
                continue
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name, value = node.target.id, node.value
                assert value is not None
                value = substitute(value, names)
                names = {other: renamed for other, renamed in names.items() if other != name}
                if name in loops or first.setdefault(name, local_type(node)) != local_type(node):
                    names |= renaming([name], taken)
                target = substitute(node.target, names)
                assert isinstance(target, ast.Name)
                result.append(ast.AnnAssign(target, node.annotation, value, 1))
                continue
            result.append(substitute(node, names))
        return result

    return nest.with_body(block(nest.body, {}))


def renaming(names: Iterable[str], taken: set[str]) -> dict[str, ast.expr]:
    """For each name one that is not taken, to substitute; the new ones are taken after that."""
    mapping: dict[str, ast.expr] = {}
    for name in names:
        new = fresh(name, taken)
        taken.add(new)
        mapping[name] = ast.Name(new, ast.Load())
    return mapping


class Unwrapping:
    """Branches that become part of the block around them.

    Args:
        body: of the nest, or a part of it.
        taken: names around it that a local must not hide.
    """

    def __init__(self, body: Sequence[ast.stmt], taken: Iterable[str] = ()):
        self.taken = set(taken).union(*map(names_in, body))
        nodes = (node for statement in body for node in statements_in(statement))
        self.declared = Counter(name_of(node.target) for node in nodes if isinstance(node, ast.AnnAssign))

    def own(self, branch: list[ast.stmt]) -> list[ast.stmt]:
        """The statements of a branch, with locals renamed so that no other statement declares the same name."""
        declared = (name_of(node.target) for node in branch if isinstance(node, ast.AnnAssign))
        names = renaming((name for name in declared if self.declared[name] > 1), self.taken)
        return [substitute(node, names) for node in branch] if names else branch


def changed_in(*body: ast.stmt) -> frozenset[str]:
    """The names whose value statements change or make: their loops' variables, the locals that they declare or assign,
    the arrays that they store to."""
    found = set()
    for inner in (inner for statement in body for inner in statements_in(statement)):
        if isinstance(inner, ast.For):
            found.add(name_of(inner.target))
        elif isinstance(inner, ASSIGNMENTS):
            found.add(name_of(target_of(inner)))
    return frozenset(found)


def stored_in(body: Iterable[ast.stmt], declared: bool = False) -> list[str]:
    """The locals and buffers that statements, or those inside of them, assign or update, each once in order of first
    appearance; and those that they declare, if ``declared``."""
    return list(dict.fromkeys(map(name_of, targets_in(body, declared))))


def on_loops(node: ast.expr, loops: Mapping[str, object] | frozenset[str] | set[str]) -> bool:
    """Whether an expression is of loop variables and literals alone, so that it is exact arithmetic on integers.

    Args:
        node: the expression.
        loops: the loop variables in whose scope it is, by name.
    """
    for part in nodes(node):
        if isinstance(part, ast.Name):
            if part.id not in loops and part.id not in INDEX_CALLS:
                return False
        elif isinstance(part, ast.Constant):
            if type(part.value) not in (int, bool):
                return False
        elif isinstance(part, (ast.Subscript, ast.IfExp)) or (
            isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div)
        ):
            return False
    return True
