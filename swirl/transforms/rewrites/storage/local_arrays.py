"""Locals as arrays with an element for each iteration of a loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from swirl.errors import CommandError
from swirl.ir.affine import simplify
from swirl.ir.nest import (
    LocalType,
    Loop,
    Nest,
    Program,
    clone,
    declare,
    expr,
    kind_of,
    local_type,
    names_in,
    reference,
    subscripts,
    substitute,
)
from swirl.ir.paths import Path, at, edit_at, walk
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer, statements_in
from swirl.ir.validate import vector_lanes
from swirl.transforms.rewrites.checks.refusals import refuse

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


@dataclass(frozen=True)
class ExpandedLocal:
    """An array with an element for each iteration of a loop, instead of a local.

    Args:
        local: the local's name.
        name: the array's.
        expand: gives its references their subscript.
    """

    local: str
    name: str
    expand: ExpandLocals

    @staticmethod
    def over(loop: Loop, local: str, name: str) -> ExpandedLocal:
        """Of a local that is declared in the loop."""
        position = simplify(expr("v - start", v=loop.var, start=loop.start))
        if loop.step != 1:
            position = simplify(expr("p // step", p=position, step=loop.step))
        return ExpandedLocal(local, name, ExpandLocals({name}, position, loop.extent or 0, last=False))

    def instead(self, statement: ast.stmt) -> list[ast.stmt]:
        """A statement with the array; its declaration is left out."""
        found = self.expand.visit(substitute(statement, {self.local: ast.Name(self.name, ast.Load())}))
        listed = found if isinstance(found, list) else [found]
        return [s for s in listed if not (isinstance(s, ast.AnnAssign) and unparse(s.target) == self.name)]

    def in_place(self, body: list[ast.stmt], declared: Path) -> list[ast.stmt]:
        """A body with the array instead of the local that is declared at a path, in the rest of that block."""
        field, index = declared[-1]
        return edit_at(body, declared[:-1], lambda owner: [self._in_block(owner, field, index)])

    def _in_block(self, owner: ast.stmt, field: str, index: int) -> ast.stmt:
        result = clone(owner)
        block = getattr(result, field)
        block[index:] = [new for statement in block[index:] for new in self.instead(statement)] or [ast.Pass()]
        return result


def declarations(nest: Nest, name: str | None = None) -> Iterator[Path]:
    """Where locals (only those called ``name``) are declared."""
    for path, node in walk(nest.body):
        if isinstance(node, ast.AnnAssign) and name in (None, unparse(node.target)):
            yield path


def no_local(program: Program, name: str) -> CommandError:
    """The error for a local that there is not."""
    found = [at(target.body, path) for target in program.nests for path in declarations(target)]
    names = dict.fromkeys(unparse(node.target) for node in found if isinstance(node, ast.AnnAssign))
    return CommandError(
        f"no local named {name!r} in {program.name}",
        way_out=f"the locals are {', '.join(names)}" if names else "scalar_replace and hoist make locals",
    )
