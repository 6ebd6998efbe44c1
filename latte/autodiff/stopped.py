"""What ``stop_gradient`` is given, kept: for differences, which must not see it move."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace

from latte.autodiff.derive import strip_stop_gradient
from latte.autodiff.prepare import Body, assign
from latte.autodiff.tapes import conditions_of, element_of, where_one_holds
from swirl.analysis.sets import NotProved
from swirl.analysis.statements import statements_of
from swirl.ir.buffers import Buffer
from swirl.ir.names import changed_in
from swirl.ir.nest import Nest, Program, clone, fresh, local_type, make_nest, names_in, reference
from swirl.ir.printing import unparse
from swirl.ir.trees import name_of, statements_in
from swirl.ir.types import is_float
from swirl.transforms.rewrites.sites import taken_names


@dataclass(frozen=True)
class Stopped:
    """Two forms of a forward program.

    Args:
        keeping: keeps what ``stop_gradient`` is given, an element for each iteration of the loops that change it.
        held: reads the elements in its place.
        storage: of what is kept.
    """

    keeping: Program
    held: Program
    storage: tuple[str, ...]


def stopped(forward: Program) -> Stopped:
    """``value[n] = stop_gradient(x) * y`` as ``held[n] = x; value[n] = x * y`` and as ``value[n] = held[n] * y``.

    Whole numbers do not move, and are not kept.

    Args:
        forward: with ``stop_gradient(…)``.
    """
    taken = taken_names(forward)
    written = changed_in(*(statement for nest in forward.nests for statement in nest.body))
    buffers: dict[str, Buffer] = {}
    stores: dict[int, Body] = {}
    elements: dict[int, dict[str, ast.expr]] = {}
    for nest in forward.nests:
        types = {name: buffer.dtype for name, buffer in forward.buffers.items()} | _locals(nest)
        for site in statements_of(nest):
            for call in _calls(site.node):
                read = names_in(call) & types.keys()
                if not any(is_float(types[name]) for name in read):
                    continue
                given = read <= forward.buffers.keys() - written
                try:
                    around = [loop for loop in site.loops if not given or loop.var in names_in(call)]
                    shape, indices = element_of(site, around)
                except NotProved:
                    continue
                name = fresh("held", taken)
                taken.add(name)
                storage = f"{forward.name.split('.')[0]}.stop_gradient.{len(buffers)}"  # no field has such a name
                buffers[name] = Buffer(storage, shape, "float32", "value")
                element = reference(name, indices)
                store = where_one_holds(conditions_of(site.node, unparse(call)), assign(clone(element), clone(call)))
                stores.setdefault(id(site.node), []).append(store)
                elements.setdefault(id(site.node), {})[unparse(call)] = element
    known = {**forward.buffers, **buffers}

    def with_nests(change: _Change) -> Program:
        nests = [make_nest(nest.label, change.of(nest.body), known) for nest in forward.nests]
        used = {name for nest in nests for name in nest.arguments}
        own = {name: buffer for name, buffer in known.items() if name in used}
        return strip_stop_gradient(replace(forward, nests=tuple(nests), buffers=own))

    kept = tuple(buffer.name for buffer in buffers.values())
    return Stopped(with_nests(_Change(stores, {})), with_nests(_Change({}, elements)), kept)


def _locals(nest: Nest) -> dict[str, str]:
    """The types of the locals that are declared."""
    declared = [s for s in statements_in(nest.function) if isinstance(s, ast.AnnAssign)]
    return {name_of(s.target): local_type(s).dtype for s in declared}


@dataclass(frozen=True)
class _Change:
    """Statements put before others, and expressions put in the place of others, by the statements' identities."""

    stores: Mapping[int, Body]
    elements: Mapping[int, Mapping[str, ast.expr]]

    def of(self, body: Body) -> Body:
        """The body with the changes."""
        result: Body = []
        for statement in body:
            replaced = _Replaced(self.elements.get(id(statement), {}))
            if isinstance(statement, (ast.For, ast.If)):
                new = clone(statement)
                new.body, new.orelse = self.of(statement.body), self.of(statement.orelse)
                if isinstance(new, ast.If):
                    new.test = replaced.visit(new.test)
                else:
                    new.iter = replaced.visit(new.iter)
            else:
                new = replaced.visit(clone(statement))
            result += [*self.stores.get(id(statement), []), new]
        return result


class _Replaced(ast.NodeTransformer):
    """``stop_gradient(x)`` → what stands for it."""

    def __init__(self, elements: Mapping[str, ast.expr]):
        self.elements = elements

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if _stops(node) and (found := self.elements.get(unparse(node))) is not None:
            return clone(found)
        self.generic_visit(node)
        return node


def _stops(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "stop_gradient"


def _calls(statement: ast.stmt) -> list[ast.Call]:
    """The outermost ones in a statement, or in the test of a condition; each text once."""
    found: dict[str, ast.Call] = {}
    pending: list[ast.AST] = [statement.test if isinstance(statement, ast.If) else statement]
    while pending:
        node = pending.pop()
        if _stops(node):
            assert isinstance(node, ast.Call)
            found.setdefault(unparse(node), node)
        else:
            pending += ast.iter_child_nodes(node)
    return list(found.values())
