"""References made physical: every buffer in its layout in memory, with halo, blocks and order."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from swirl.ir.affine import Ranges, loop_range
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.hints import prefetch_of
from swirl.ir.layouts import in_memory
from swirl.ir.nest import Nest, Program, loop_of, make_nest, reference, subscripts
from swirl.ir.trees import Transformer


def physical(program: Program) -> Program:
    """The same program on buffers of their physical shapes, without layouts.

    See :func:`swirl.ir.layouts.in_memory`. The result is runnable."""
    laid_out = {name: buffer for name, buffer in program.buffers.items() if buffer.layout != Layout()}
    if not laid_out:
        return program
    buffers = {
        name: replace(buffer, shape=buffer.physical_shape, layout=Layout()) for name, buffer in program.buffers.items()
    }
    nests = [_physical_nest(nest, laid_out, buffers) for nest in program.nests]
    return replace(program, nests=tuple(nests), buffers=buffers)


def _physical_nest(nest: Nest, laid_out: Mapping[str, Buffer], buffers: Mapping[str, Buffer]) -> Nest:
    if not laid_out.keys() & set(nest.arguments):
        return nest
    body = [_Physical(laid_out, {}).visit(statement) for statement in nest.body]
    return make_nest(nest.label, body, {name: buffers[name] for name in nest.arguments})


class _Physical(Transformer):
    """Rewrites references; builds new nodes, so the nest given stays unchanged."""

    def __init__(self, laid_out: Mapping[str, Buffer], ranges: Ranges):
        self.laid_out = laid_out
        self.ranges = ranges

    def generic_visit(self, node: ast.AST) -> ast.AST:
        fields = {}
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                fields[name] = [self.visit(item) if isinstance(item, ast.AST) else item for item in value]
            else:
                fields[name] = self.visit(value) if isinstance(value, ast.AST) else value
        return ast.copy_location(type(node)(**fields), node)

    def visit_For(self, node: ast.For) -> ast.AST:
        inside = {**self.ranges, **loop_range(loop_of(node), self.ranges)}
        body = [_Physical(self.laid_out, inside).visit(statement) for statement in node.body]
        return ast.copy_location(ast.For(node.target, node.iter, body, [], None), node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        found = prefetch_of(node)
        if found is None or found.buffer not in self.laid_out:
            return node
        return replace(found, indices=tuple(self._indices(found.buffer, list(found.indices)))).node()

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if not isinstance(node.value, ast.Name) or node.value.id not in self.laid_out:
            return self.generic_visit(node)
        indices = self._indices(node.value.id, [self.visit(index) for index in subscripts(node)])
        return reference(node.value.id, indices, isinstance(node.ctx, ast.Store))

    def _indices(self, buffer: str, indices: list[ast.expr]) -> list[ast.expr]:
        """The subscripts in memory."""
        return in_memory(self.laid_out[buffer].layout, indices, self.ranges)
