"""What statements touch, each reference at its place, with the item of the batch that it belongs to."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from swirl.ir.affine import Affine, Ranges, loop_range
from swirl.ir.buffers import Buffer
from swirl.ir.hints import stored_value
from swirl.ir.nest import loop_of, names_in, subscripts
from swirl.ir.printing import unparse
from swirl.ir.trees import ASSIGNMENTS, name_of, nodes, target_of


@dataclass(frozen=True)
class Item:
    """Which item something belongs to: the one of number ``place // parts``.

    Args:
        place: affine in loop variables.
        parts: of an item; more than one where the batch and other dimensions are one loop.
    """

    place: Affine
    parts: int = 1

    @property
    def key(self) -> str:
        """The same for equal ones."""
        return repr((sorted(self.place.terms.items()), self.place.constant, self.parts))


@dataclass
class Touch:
    """A reference to an element, or to a scalar local, at its place.

    Args:
        name: of the buffer or local.
        indices: the subscripts.
        store: whether it is stored to; an update is a store and a read.
        node: the reference.
        statement: that does it.
        loops: around it, outermost first.
        ranges: of their variables.
        home: the number of loops around the local's declaration; -1 for a buffer.
        item: that it belongs to; None where it belongs to none.
    """

    name: str
    indices: Sequence[ast.expr]
    store: bool
    node: ast.expr
    statement: ast.stmt
    loops: tuple[ast.For, ...]
    ranges: Ranges
    home: int
    item: Item | None = None

    @property
    def text(self) -> str:
        return f"{self.name}[{', '.join(map(unparse, self.indices))}]" if self.indices else self.name

    @property
    def updates(self) -> bool:
        """Whether the new value is made of the old one."""
        value = self.statement.value if isinstance(self.statement, ast.Assign) else None
        return isinstance(self.statement, ast.AugAssign) or (value is not None and self.name in names_in(value))


def touches(
    body: Sequence[ast.stmt],
    buffers: Mapping[str, Buffer],
    loops: tuple[ast.For, ...] = (),
    ranges: Ranges | None = None,
    homes: Mapping[str, int] | None = None,
) -> Iterator[Touch]:
    """Every reference in statements, with its place; ``home`` is -1 for buffers."""
    ranges, homes = ranges or {}, dict(homes or {})

    def at(statement: ast.stmt, node: ast.expr, store: bool) -> Touch | None:
        name = name_of(node)
        if name in homes:
            home = homes[name]
        elif name in buffers:
            home = -1
        else:
            return None  # a loop variable
        indices = subscripts(node) if isinstance(node, ast.Subscript) else []
        return Touch(name, indices, store, node, statement, loops, ranges, home)

    def reads(statement: ast.stmt, tree: ast.AST) -> Iterator[Touch]:
        of_arrays: set[int] = set()
        for node in nodes(tree):
            if isinstance(node, ast.Subscript):
                of_arrays.add(id(node.value))
            if isinstance(node, ast.Subscript) or (isinstance(node, ast.Name) and id(node) not in of_arrays):
                found = at(statement, node, False)
                if found is not None:
                    yield found

    for node in body:
        if isinstance(node, ast.For):
            loop = loop_of(node)
            yield from reads(node, loop.start)
            yield from reads(node, loop.stop)
            inside = {**ranges, **loop_range(loop, ranges)}
            yield from touches(node.body, buffers, (*loops, node), inside, homes)
        elif isinstance(node, ast.If):
            yield from reads(node, node.test)
            for branch in (node.body, node.orelse):
                yield from touches(branch, buffers, loops, ranges, homes)
        elif isinstance(node, ASSIGNMENTS):
            target = target_of(node)
            assert node.value is not None
            if isinstance(node, ast.AnnAssign):
                homes[name_of(target)] = len(loops)
                if isinstance(node.annotation, ast.Subscript):
                    continue  # an array, without values yet
            yield from reads(node, stored_value(node.value))
            for index in subscripts(target) if isinstance(target, ast.Subscript) else []:
                yield from reads(node, index)
            found = at(node, target, True)
            assert found is not None
            yield found
