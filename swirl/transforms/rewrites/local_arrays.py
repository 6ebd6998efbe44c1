"""Locals as arrays with an element for each iteration of a loop."""

from __future__ import annotations

import ast

from swirl.ir.nest import (
    LocalType,
    Loop,
    Nest,
    clone,
    declare,
    kind_of,
    local_type,
    names_in,
    reference,
    subscripts,
)
from swirl.ir.paths import Path, at
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer, statements_in
from swirl.ir.validate import vector_lanes
from swirl.transforms.rewrites.refusals import refuse

MAX_ELEMENTS = 1 << 17
"""Of one local array: locals live on the stacks of threads, which have 8 MiB by default."""


def expand_locals(nest: Nest, path: Path, loop: Loop) -> ast.For:
    """The loop at ``path`` with one more dimension, and a subscript, for every local that moves with it.

    An unrolled loop's dimension comes first, a vector loop's last, so that the lane is always the last
    subscript.
    """
    node = at(nest.body, path)
    assert isinstance(node, ast.For)
    moving = moving_locals(node, loop.var)
    extent = vector_lanes(node) if loop.kind == "vector" else loop.extent
    if moving and extent is None:
        raise refuse(
            f"{loop.var} has no constant extent, so its locals cannot be expanded",
            nest,
            path,
            "asked to move inwards",
        )
    position: ast.expr = ast.Name(loop.var, ast.Load())
    if loop.kind != "vector" and unparse(loop.start) != "0":
        position = ast.BinOp(position, ast.Sub(), loop.start)
    expanded = ExpandLocals(moving, position, extent or 0, loop.kind == "vector").visit(clone(node))
    assert isinstance(expanded, ast.For)
    return expanded


def moving_locals(node: ast.For, var: str) -> set[str]:
    """Locals declared in the loop whose value may differ between its iterations."""
    declared: dict[str, list[ast.expr]] = {}
    lanes_only = {
        statement.target.id
        for inner in statements_in(node)
        if isinstance(inner, ast.For) and inner is not node and kind_of(inner) == "vector"
        for statement in statements_in(inner)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }
    stored: set[str] = set()
    assigned: set[str] = set()
    for statement in statements_in(node):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            declared[statement.target.id] = [statement.value] if statement.value is not None else []
            if local_type(statement).shape:
                assigned.add(statement.target.id)
        elif isinstance(statement, (ast.Assign, ast.AugAssign)):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            named = target.value if isinstance(target, ast.Subscript) else target
            assert isinstance(named, ast.Name)
            (stored if isinstance(target, ast.Subscript) else assigned).add(named.id)
    # A local that is assigned again may accumulate over anything: it is assumed to move.
    moving = {name for name in declared if name in assigned or name in stored}
    changed = True
    while changed:
        changed = False
        for name, values in declared.items():
            uses = {used for value in values for used in names_in(value)}
            if name not in moving and (var in uses or uses & moving or uses & stored):
                moving.add(name)
                changed = True
    return moving - lanes_only


class ExpandLocals(Transformer):
    """Gives locals one more dimension of ``extent``, the last or the first one, and each use the subscript
    ``position`` there."""

    def __init__(self, names: set[str], position: ast.expr, extent: int, last: bool):
        self.names, self.position, self.extent, self.last = names, position, extent, last

    def _place(self, name: str, own: list[ast.expr], context: ast.expr_context) -> ast.Subscript:
        extra = clone(self.position)
        indices = [*own, extra] if self.last else [extra, *own]
        return reference(name, indices, isinstance(context, ast.Store))

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._place(node.id, [], node.ctx) if node.id in self.names else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        indices = [self.visit(index) for index in subscripts(node)]
        if isinstance(node.value, ast.Name) and node.value.id in self.names:
            return self._place(node.value.id, indices, node.ctx)
        assert isinstance(node.value, ast.Name)
        return reference(node.value.id, indices, isinstance(node.ctx, ast.Store))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt | list[ast.stmt]:
        assert isinstance(node.target, ast.Name) and node.value is not None
        type_ = local_type(node)
        if not type_.shape:
            node.value = self.visit(node.value)
        if node.target.id not in self.names:
            return node
        shape = (*type_.shape, self.extent) if self.last else (self.extent, *type_.shape)
        declaration = declare(node.target.id, LocalType(type_.dtype, shape))
        if type_.shape:
            return declaration
        return [declaration, ast.Assign([self._place(node.target.id, [], ast.Store())], node.value)]
