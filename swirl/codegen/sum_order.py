"""Sums that g++ must not change: several terms in each iteration, added to one number in the program's order."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import reduce

from swirl.codegen.context import Context
from swirl.ir.affine import Affine, Ranges, affine
from swirl.ir.nest import kind_of, loop_of, names_in, subscripts, substitute, variable_of
from swirl.ir.printing import unparse
from swirl.ir.trees import children, declared_in, name_of
from swirl.ir.types import is_float

UNROLLED = 16  # iterations, and
COPIES = 512  # up to this many copies of a statement, g++ may unroll loops before it vectorises the one around

Values = Mapping[str, Affine]
"""The variables of unrolled loops, in one copy of a statement."""
Copy = tuple[ast.stmt, Values]
Element = tuple[str, tuple[Hashable, ...]]
"""A local or buffer, and its subscripts in a form that is the same for equal ones."""


def adds_in_order(node: ast.For, context: Context) -> bool:
    """Whether an iteration of a loop, the small loops inside unrolled, adds to one floating-point number twice.

    g++ 12 at -O3 vectorises such a loop and then adds wrong elements, wherever the terms are not in memory in the order
    in which they are added (tests/regress/test_gcc_sums_in_order.py). Terms may go through locals on the way.
    """
    declared, var = declared_in(node), variable_of(node)
    low, high = context.ranges.get(var, (0, 1))
    if low == high:
        return False  # one iteration
    outer = {target for s in _one_lane(node.body) if (target := _target(s)) and name_of(target) not in declared}
    # Copies only add names to subscripts, and only floating-point sums depend on their order.
    if not any(is_float(context.dtype_of(name_of(t))) and var not in names_in(t) for t in outer):
        return False
    elements = _Elements(context.ranges)
    copies = list(_copies(node.body, elements, {}, 1))
    kept = {
        elements.key(target, values)
        for statement, values in copies
        if (target := _target(statement)) and target in outer and not elements.moves(target, values, var)
    }
    return _longest(copies, kept, elements) > 1


class _Elements:
    """Which elements the copies of statements touch."""

    def __init__(self, ranges: Ranges):
        self.ranges = ranges
        self.forms: dict[ast.expr, Affine | None] = {}

    def form(self, index: ast.expr, values: Values) -> Affine | ast.expr:
        """An index in a copy; an expression where it is not quasi-affine."""
        if index not in self.forms:
            self.forms[index] = affine(index)
        general = self.forms[index]
        if general is None or not all(isinstance(atom, ast.Name) for atom in general.atoms.values()):
            here = substitute(index, {var: value.to_expr() for var, value in values.items()})
            return affine(here, self.ranges, fix=True) or here
        parts = (self._value(var, values).scale(factor) for var, factor in general.terms.items())
        return reduce(Affine.add, parts, Affine(constant=general.constant))

    def _value(self, var: str, values: Values) -> Affine:
        found = values.get(var) or affine(ast.Name(var, ast.Load()), self.ranges, fix=True)
        assert found is not None, "a variable is affine"
        return found

    def key(self, target: ast.expr, values: Values) -> Element:
        """An element, the same for the same subscripts."""
        forms = (self.form(index, values) for index in _subscripts(target))
        return name_of(target), tuple(
            (form.constant, frozenset(form.terms.items())) if isinstance(form, Affine) else unparse(form)
            for form in forms
        )

    def moves(self, target: ast.expr, values: Values, var: str) -> bool:
        """Whether an element may be another one for each value of a variable."""
        forms = (self.form(index, values) for index in _subscripts(target))
        return any(form.mentions(var) if isinstance(form, Affine) else var in names_in(form) for form in forms)


def _longest(copies: Sequence[Copy], kept: set[Element], elements: _Elements) -> int:
    """The most operations between what an iteration takes from the one before and what it keeps for the next one."""
    depths = dict.fromkeys(kept, 0)
    written = {name_of(target) for statement, _ in copies if (target := _target(statement, declared=True))}
    sources: dict[ast.stmt, list[tuple[ast.expr, int]]] = {}
    for statement, values in copies:
        target = _target(statement, declared=True)
        if target is None:
            continue
        if statement not in sources:
            sources[statement] = [source for source in _sources(statement) if name_of(source[0]) in written]
        reached = [
            depths[key] + count
            for source, count in sources[statement]
            if (key := elements.key(source, values)) in depths
        ]
        if reached:
            depths[elements.key(target, values)] = max(reached)
        else:
            depths.pop(elements.key(target, values), None)
    return max((depths.get(key, 0) for key in kept), default=0)


def _sources(statement: ast.stmt) -> Iterator[tuple[ast.expr, int]]:
    """What an assignment reads, each with the number of operations between it and the result."""

    def below(node: ast.AST, operations: int) -> Iterator[tuple[ast.expr, int]]:
        if isinstance(node, (ast.Name, ast.Subscript)):
            yield node, operations
        else:
            for child in children(node):
                yield from below(child, operations + isinstance(node, ast.BinOp))

    if isinstance(statement, ast.AugAssign):
        yield statement.target, 1
        yield from below(statement.value, 1)
    elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
        yield from below(statement.value, 0)


def _target(statement: ast.stmt, declared: bool = False) -> ast.expr | None:
    """What a statement assigns to; a declaration only where asked for."""
    if isinstance(statement, ast.Assign):
        return statement.targets[0]
    if isinstance(statement, ast.AugAssign) or declared and isinstance(statement, ast.AnnAssign):
        return statement.target
    return None


def _subscripts(target: ast.expr) -> list[ast.expr]:
    return subscripts(target) if isinstance(target, ast.Subscript) else []


def _one_lane(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The assignments and declarations outside of vector loops."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _one_lane([*statement.body, *statement.orelse])
        elif not isinstance(statement, ast.For):
            yield statement
        elif kind_of(statement) != "vector":
            yield from _one_lane(statement.body)


def _copies(body: Sequence[ast.stmt], elements: _Elements, values: Values, copies: int) -> Iterator[Copy]:
    """The assignments and declarations of a body, one after the other, as they are when small loops are unrolled."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _copies([*statement.body, *statement.orelse], elements, values, copies)
        elif isinstance(statement, ast.For):
            loop = loop_of(statement)
            start, stop = elements.form(loop.start, values), elements.form(loop.stop, values)
            if loop.kind == "vector" or not (isinstance(start, Affine) and isinstance(stop, Affine)):
                continue
            length = stop.add(start, -1)
            if length.terms:
                continue
            extent = len(range(0, length.constant, loop.step))
            if loop.kind != "unrolled" and (extent > UNROLLED or copies * extent > COPIES):
                continue  # it stays a loop
            for distance in range(0, length.constant, loop.step):
                here = {**values, loop.var: start.add(Affine(constant=distance))}
                yield from _copies(statement.body, elements, here, copies * extent)
        else:
            yield statement, values
