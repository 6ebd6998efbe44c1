"""One copy of unrolled loops at a time: the copies' number becomes the variable of a loop around them."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

from swirl.ir.nest import LocalType, clones, declare, local_type, loop_of
from swirl.ir.trees import Transformer, declared_in, name_of, names_in, reference, references, subscripts, target_of


def one_copy(
    body: Sequence[ast.stmt], variables: Collection[str], number: str, buffers: Collection[str]
) -> list[ast.stmt] | None:
    """Statements for copy ``number`` alone of the unrolled loops over ``variables`` in them.

    rewrite:
        t: float32[4, 16] = empty(4, 16)                t: float32[1, 16] = empty(1, 16)
        for u in unrolled(4):                           for n_lane in vector(16):
            for n_lane in vector(16):             →         t[0, n_lane] = x[n + v * 16 + n_lane]
                t[u, n_lane] = x[n + u * 16 + n_lane]

    Locals that are declared in ``body`` keep the elements of one copy. None where that is not so simple: where one of
    them has a copy's elements at other subscripts than the number of the copy, another local than these (which is none
    of ``buffers``) may be kept in registers for each copy, or something that outlives ``body`` is set outside of the
    copies, once for all of them.
    """
    made = clones(list(body))
    own = set[str]().union(*map(declared_in, made))
    if not all(_outlives_nothing(statement, own, variables) for statement in made):
        return None
    dims = _dims_of_copies(made, own, set(variables), buffers)
    if dims is None:
        return None
    rewrite = _OneCopy(variables, number, dims)
    return [part for statement in made for part in rewrite.statement(statement)]


def _outlives_nothing(statement: ast.stmt, own: Collection[str], variables: Collection[str]) -> bool:
    """Whether statements outside of the copies set locals of the body alone."""
    if isinstance(statement, ast.For) and loop_of(statement).var in variables:
        return True
    if isinstance(statement, (ast.For, ast.If)):
        return all(_outlives_nothing(part, own, variables) for part in (*statement.body, *statement.orelse))
    if isinstance(statement, (ast.Assign, ast.AugAssign)):
        return name_of(target_of(statement)) in own
    return True


def _dims_of_copies(
    body: Sequence[ast.stmt], own: Collection[str], variables: set[str], buffers: Collection[str]
) -> dict[str, set[int]] | None:
    """The dimensions of the locals of a body along which there is an element for each copy; None where these, or other
    locals, have them at other subscripts."""
    found: dict[str, set[int]] = {}
    for node in (node for statement in body for node in references(statement)):
        name, indices = name_of(node), subscripts(node)
        if name in buffers:
            continue
        dims = {dim for dim, index in enumerate(indices) if isinstance(index, ast.Name) and index.id in variables}
        elsewhere = any(names_in(index) & variables for dim, index in enumerate(indices) if dim not in dims)
        if elsewhere or found.setdefault(name, dims) != dims or (dims and name not in own):
            return None
    return found


class _OneCopy(Transformer):
    def __init__(self, variables: Collection[str], number: str, dims: dict[str, set[int]]):
        self.variables, self.number, self.dims = variables, number, dims

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        """What becomes of a statement."""
        result = self.visit(node)
        return result if isinstance(result, list) else [result]

    def visit_For(self, node: ast.For) -> ast.For | list[ast.stmt]:
        self.generic_visit(node)
        return node.body if loop_of(node).var in self.variables else node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        self.generic_visit(node)
        name = node.target.id if isinstance(node.target, ast.Name) else ""
        if not self.dims.get(name):
            return node
        type_ = local_type(node)
        shape = tuple(1 if dim in self.dims[name] else extent for dim, extent in enumerate(type_.shape))
        return declare(name, LocalType(type_.dtype, shape))

    def visit_Subscript(self, node: ast.Subscript) -> ast.Subscript:
        if isinstance(node.value, ast.Name) and self.dims.get(node.value.id):
            dims, indices = self.dims[node.value.id], subscripts(node)
            kept = [ast.Constant(0) if dim in dims else self.visit(index) for dim, index in enumerate(indices)]
            return reference(node.value.id, kept, isinstance(node.ctx, ast.Store))
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.number, node.ctx) if node.id in self.variables else node
