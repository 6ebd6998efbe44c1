"""Bodies for any number of sources: ``def forward(self, value, *sources)``, with one copy of a loop for each source."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from latte.frontend.constants import Constants, attribute, called, literal
from latte.model.body import Body
from latte.model.checks import is_integer, is_number
from latte.model.ensemble import Ensemble
from swirl.ir.nest import fresh, names_in
from swirl.ir.printing import unparse
from swirl.ir.trees import nodes

WAY_OUT = "for source in sources: …; for source, first in zip(sources, self.firsts): …; sources[0]; len(sources)"


def spelled_out(body: Body, ensemble: Ensemble) -> Body:
    """A body with explicit loops in which each source has a parameter of its own.

    Args:
        body: whose last parameter may be ``*sources``: all sources that no other parameter names, in the order of
            their connection.
        ensemble: whose body it is.

    Raises:
        BodyError: the parameter is used in another way than in :data:`WAY_OUT`.
    """
    star = body.tree.args.vararg
    if star is None:
        return body
    if star.arg in ensemble.fields():
        body.fail(star, f"*{star.arg} has the name of a field", "choose another name")
    names = [edge.name for edge in ensemble.connections if not edge.is_label and edge.name not in body.parameters]
    tree = copy.deepcopy(body.tree)
    tree.args.vararg = None
    tree.args.args += [ast.copy_location(ast.arg(name), star) for name in names]
    tree = _Expansion(body, ensemble, star.arg, names).visit(tree)
    return replace(body, tree=ast.fix_missing_locations(tree))


class _Expansion(ast.NodeTransformer):
    """Replaces what the body says of all sources.

    Args:
        body: for messages and constants.
        ensemble: whose body it is.
        star: the parameter that stands for all sources.
        names: of the sources.
    """

    def __init__(self, body: Body, ensemble: Ensemble, star: str, names: list[str]):
        self.body, self.star, self.names = body, star, names
        self.constants = Constants(body, {}, partial(attribute, ensemble), {star})
        self.taken = {*names_in(body.tree), *ensemble.fields(), *names}

    def _is_star(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id == self.star

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if self._is_star(node):
            self.body.fail(node, f"{self.star} stands for {len(self.names)} sources here", WAY_OUT)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if not self._is_star(node.value):
            return self.generic_visit(node)
        index = self.constants.fold(node.slice)
        if not is_integer(index) or not -len(self.names) <= index < len(self.names):
            which = f"a number from 0 to {len(self.names) - 1}"
            self.body.fail(node, f"{unparse(node)}: a source is chosen by {which}", WAY_OUT)
        return ast.copy_location(ast.Name(self.names[index], ast.Load()), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if called(node.func) == "len" and len(node.args) == 1 and self._is_star(node.args[0]):
            return ast.copy_location(ast.Constant(len(self.names)), node)
        return self.generic_visit(node)

    def visit_For(self, node: ast.For) -> ast.AST | list[ast.stmt]:
        columns = self._columns(node.iter)
        if columns is None:
            return self.generic_visit(node)
        targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        plain = [target.id for target in targets if isinstance(target, ast.Name)]
        if len(plain) != len(columns) or len(targets) != len(columns) or node.orelse:
            self.body.fail(node, f"for {unparse(node.target)} in {unparse(node.iter)}", WAY_OUT)
        copies: list[ast.stmt] = []
        inside, everywhere = _locals(node), _locals(self.body.tree)
        inner = [name for name in inside if inside[name] == everywhere[name]]
        for number, row in enumerate(zip(*columns, strict=True)):
            # A local of the loop is one of each copy, so that constants are: ``N, C = source.shape``.
            last = number == len(columns[0]) - 1
            own = {} if last else {name: ast.Name(self._fresh(f"{name}_{number}")) for name in inner}
            chosen = _Replacement(own | dict(zip(plain, row, strict=True)))
            for statement in node.body:
                changed = self.visit(chosen.visit(copy.deepcopy(statement)))
                copies += changed if isinstance(changed, list) else [changed]
        return copies

    def _fresh(self, name: str) -> str:
        self.taken.add(found := fresh(name, self.taken))
        return found

    def _columns(self, node: ast.expr) -> list[list[ast.expr]] | None:
        """What each variable of a loop over the sources stands for, in turn; None for another loop."""
        parts = [node]
        if isinstance(node, ast.Call) and called(node.func) in ("zip", "enumerate"):
            parts = node.args
        sources = next((some for part in parts if (some := self._sources(part)) is not None), None)
        if sources is None:
            return None
        columns = [self._column(part, len(sources)) for part in parts]
        if isinstance(node, ast.Call) and called(node.func) == "enumerate":
            columns.insert(0, [literal(number) for number in range(len(sources))])
        return columns

    def _sources(self, node: ast.expr) -> list[str] | None:
        """The sources that ``sources``, ``sources[1:]`` stand for; None for anything else."""
        if self._is_star(node):
            return self.names
        if not (isinstance(node, ast.Subscript) and self._is_star(node.value) and isinstance(node.slice, ast.Slice)):
            return None
        part = node.slice
        bounds = [None if end is None else self.constants.fold(end) for end in (part.lower, part.upper, part.step)]
        if not all(end is None or is_integer(end) for end in bounds):
            self.body.fail(node, f"{unparse(node)}: the bounds must be constants", WAY_OUT)
        return self.names[slice(*bounds)]

    def _column(self, node: ast.expr, count: int) -> list[ast.expr]:
        if (sources := self._sources(node)) is not None:
            values: list[ast.expr] = [ast.Name(name, ast.Load()) for name in sources]
        else:
            constants = self.constants.fold(node)
            known = isinstance(constants, tuple) and all(map(is_number, constants))
            values = [literal(value) for value in constants] if known else []
        if len(values) != count:
            self.body.fail(node, f"{unparse(node)} must be {count} constants, one for each source", WAY_OUT)
        return values


class _Replacement(ast.NodeTransformer):
    """Replaces names by expressions."""

    def __init__(self, meaning: Mapping[str, Any]):
        self.meaning = meaning

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.meaning:
            return node
        new = copy.deepcopy(self.meaning[node.id])
        if isinstance(new, ast.Name):
            new.ctx = node.ctx
        return ast.copy_location(new, node)


def _locals(node: ast.AST) -> Counter[str]:
    """How often each local is assigned inside of a node; variables of loops are not locals."""
    loops = {id(part) for loop in nodes(node) if isinstance(loop, ast.For) for part in nodes(loop.target)}
    names = (part for part in nodes(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store))
    return Counter(part.id for part in names if id(part) not in loops)
