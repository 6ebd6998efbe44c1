"""Quasi-affine integer expressions: a canonical form, simplification under known ranges, bounds."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from itertools import pairwise

from swirl.ir.names import on_loops
from swirl.ir.nest import Loop, clone, constant, expr, kind_of, loop_of
from swirl.ir.paths import Path, at
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer, as_value, names_in, nodes
from swirl.ir.types import CASTS

FEW_VALUES = 8
"""Values of a variable that are looked at one by one."""

Ranges = Mapping[str, tuple[int, int]]
"""Least and greatest value (both included) of each loop variable in scope. A name that is not here may be a local of
any type: rules for integers do not apply to it."""


@dataclass
class Affine:
    """``sum(coefficient * atom) + constant``; an atom is a variable, a ``//``, a ``%``, a ``min`` or a
    ``max``."""

    terms: dict[str, int] = field(default_factory=dict)
    constant: int = 0
    atoms: dict[str, ast.expr] = field(default_factory=dict)

    def add(self, other: Affine, factor: int = 1) -> Affine:
        result = Affine(dict(self.terms), self.constant + factor * other.constant, {**self.atoms, **other.atoms})
        for atom, coefficient in other.terms.items():
            result.add_term(atom, factor * coefficient)
        return result

    def add_term(self, atom: str, coefficient: int) -> None:
        """Add a multiple of an atom, in place."""
        total = self.terms.get(atom, 0) + coefficient
        if total:
            self.terms[atom] = total
        else:
            self.terms.pop(atom, None)

    def scale(self, factor: int) -> Affine:
        return Affine().add(self, factor)

    def coefficient(self, var: str) -> int:
        """The coefficient of a plain variable."""
        return self.terms.get(var, 0)

    def mentions(self, var: str) -> bool:
        """Whether ``var`` occurs at all, inside atoms included."""
        return any(
            isinstance(node, ast.Name) and node.id == var for key in self.terms for node in nodes(self.atoms[key])
        )

    def plain(self, names: Set[str]) -> bool:
        """Whether variables occur by themselves alone, not inside of atoms."""
        return not any(key not in names and names & names_in(self.atoms[key]) for key in self.terms)

    def to_expr(self) -> ast.expr:
        """The expression: terms in order of appearance, a positive one first, the constant last."""
        parts = list(self.terms.items())
        first = next((i for i, (_, coefficient) in enumerate(parts) if coefficient > 0), None)
        if first:
            parts.insert(0, parts.pop(first))
        constant_first = first is None and self.constant > 0
        result: ast.expr | None = ast.Constant(self.constant) if constant_first else None
        for key, coefficient in parts:
            atom = self.atoms[key]
            size = abs(coefficient)
            term: ast.expr = atom if size == 1 else ast.BinOp(atom, ast.Mult(), ast.Constant(size))
            if result is None:
                result = term if coefficient > 0 else ast.UnaryOp(ast.USub(), term)
            else:
                result = ast.BinOp(result, ast.Add() if coefficient > 0 else ast.Sub(), term)
        if result is None:
            return expr(self.constant)
        if self.constant and not constant_first:
            operator = ast.Add() if self.constant > 0 else ast.Sub()
            result = ast.BinOp(result, operator, ast.Constant(abs(self.constant)))
        return result


def _atom(node: ast.expr) -> Affine:
    text = node.id if isinstance(node, ast.Name) else unparse(node)
    return Affine({text: 1}, 0, {text: node})


def affine(node: ast.expr, ranges: Ranges | None = None, *, fix: bool = False) -> Affine | None:
    """The canonical form of a quasi-affine expression, simplified under ``ranges``; None where it is not one.

    Args:
        node: the expression.
        ranges: of its variables.
        fix: replace a variable of one value by that value. By default it stays: the subscripts of a loop that happens
            to run once still show that they move with it.
    """
    form = Affine()
    return form if _add_to(form, node, 1, ranges or {}, fix) else None


def _add_to(form: Affine, node: ast.expr, factor: int, ranges: Ranges, fix: bool) -> bool:
    """Add a multiple of an expression to a form, without a form for each of its parts; whether it is quasi-affine."""
    part: Affine | None = None
    if isinstance(node, ast.Constant):
        if type(node.value) is not int:
            return False
        form.constant += factor * node.value
        return True
    if isinstance(node, ast.Name):
        low, high = ranges.get(node.id, (0, 1)) if fix else (0, 1)
        if low == high:
            form.constant += factor * low
        else:
            form.atoms[node.id] = as_value(node)
            form.add_term(node.id, factor)
        return True
    if isinstance(node, ast.BinOp):
        operation = node.op.__class__
        if operation is ast.Add or operation is ast.Sub:
            second = factor if operation is ast.Add else -factor
            return _add_to(form, node.left, factor, ranges, fix) and _add_to(form, node.right, second, ranges, fix)
        if operation is ast.Mult and (scale := constant(node.right)) is not None:
            return _add_to(form, node.left, factor * scale, ranges, fix)
        part = _binary(node, ranges, fix)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _add_to(form, node.operand, -factor, ranges, fix)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        part = _extremum(node.func.id, node.args, ranges, fix)
    if part is None:
        return False
    form.constant += factor * part.constant
    form.atoms.update(part.atoms)
    for atom, coefficient in part.terms.items():
        form.add_term(atom, factor * coefficient)
    return True


def _binary(node: ast.BinOp, ranges: Ranges, fix: bool) -> Affine | None:
    """A product, quotient or remainder."""
    left, right = affine(node.left, ranges, fix=fix), affine(node.right, ranges, fix=fix)
    if left is None or right is None:
        return None
    if isinstance(node.op, ast.Mult):
        if not right.terms:
            return left.scale(right.constant)
        return right.scale(left.constant) if not left.terms else None
    if isinstance(node.op, (ast.FloorDiv, ast.Mod)) and not right.terms and right.constant > 0:
        return _divide(left, right.constant, isinstance(node.op, ast.Mod), ranges)
    return None


def _divide(value: Affine, divisor: int, modulo: bool, ranges: Ranges) -> Affine:
    """``value // divisor`` or ``value % divisor``: multiples of the divisor are taken out, the rest by its
    bounds."""
    if divisor == 1:
        return Affine() if modulo else value
    quotient, rest = Affine(atoms=dict(value.atoms)), Affine(atoms=dict(value.atoms))
    for atom, coefficient in value.terms.items():
        (quotient if coefficient % divisor == 0 else rest).terms[atom] = coefficient
    quotient = Affine({k: c // divisor for k, c in quotient.terms.items()}, value.constant // divisor, quotient.atoms)
    rest.constant = value.constant % divisor
    limits = bounds(rest, ranges)
    if limits is not None and limits[0] // divisor == limits[1] // divisor:
        whole = limits[0] // divisor
        return rest.add(Affine(constant=-whole * divisor)) if modulo else quotient.add(Affine(constant=whole))
    line = _line(rest, divisor, modulo, ranges)
    if line is not None:
        return line if modulo else quotient.add(line)
    if modulo:
        return _atom(ast.BinOp(rest.to_expr(), ast.Mod(), ast.Constant(divisor)))
    return quotient.add(_atom(ast.BinOp(rest.to_expr(), ast.FloorDiv(), ast.Constant(divisor))))


def _line(value: Affine, divisor: int, modulo: bool, ranges: Ranges) -> Affine | None:
    """``value // divisor`` or ``value % divisor``, if linear in a variable of few values from 0 on, as in a tile."""
    if len(value.terms) != 1:
        return None
    ((key, coefficient),) = value.terms.items()
    low, high = ranges.get(key, (0, FEW_VALUES))
    if low != 0 or high >= FEW_VALUES:
        return None
    given = [coefficient * number + value.constant for number in range(high + 1)]
    values = [number % divisor if modulo else number // divisor for number in given]
    steps = {after - before for before, after in pairwise(values)}
    if len(steps) != 1:
        return None
    (step,) = steps
    return Affine({key: step} if step else {}, values[0], value.atoms)


def _extremum(name: str, args: list[ast.expr], ranges: Ranges, fix: bool) -> Affine | None:
    """``min`` or ``max`` without the arguments that another one always beats."""
    parts = []
    for arg in args:
        part = affine(arg, ranges, fix=fix)
        if part is None:
            return None
        parts.append(part)
    sign = 1 if name == "min" else -1
    kept: list[Affine] = []
    for index, part in enumerate(parts):
        rivals = kept + parts[index + 1 :]
        if not any(_never_above(rival, part, sign, ranges) for rival in rivals):
            kept.append(part)
    if len(kept) == 1:
        return kept[0]
    return _atom(ast.Call(ast.Name(name, ast.Load()), [part.to_expr() for part in kept], []))


def _never_above(a: Affine, b: Affine, sign: int, ranges: Ranges) -> bool:
    difference = bounds(b.add(a, -1).scale(sign), ranges)
    return difference is not None and difference[0] >= 0


def bounds(value: Affine | ast.expr, ranges: Ranges) -> tuple[int, int] | None:
    """Least and greatest value by interval arithmetic (exact for one occurrence a variable); None where
    unknown."""
    if isinstance(value, ast.expr):
        if value.__class__ is ast.Constant:  # most bounds of loops are
            known = constant(value)
            return None if known is None else (known, known)
        if isinstance(value, ast.Name):
            return ranges.get(value.id)
        form = affine(value, ranges)
        if form is None:
            return None
        value = form
    low = high = value.constant
    for key, coefficient in value.terms.items():
        limits = bounds_of_atom(value.atoms[key], ranges)
        if limits is None:
            return None
        ends = (coefficient * limits[0], coefficient * limits[1])
        low, high = low + min(ends), high + max(ends)
    return low, high


def bounds_of_atom(node: ast.expr, ranges: Ranges) -> tuple[int, int] | None:
    """The same of an atom of a form."""
    if isinstance(node, ast.Name):
        return ranges.get(node.id)
    if isinstance(node, ast.BinOp):
        divisor = constant(node.right)
        inner = bounds(node.left, ranges)
        if divisor is None:
            return None
        if isinstance(node.op, ast.Mod):
            return (0, divisor - 1)
        return inner and (inner[0] // divisor, inner[1] // divisor)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        limits = [bounds(arg, ranges) for arg in node.args]
        known = [limit for limit in limits if limit is not None]
        if len(known) < len(limits):
            return None
        choose = min if node.func.id == "min" else max
        return choose(low for low, _ in known), choose(high for _, high in known)
    return None


def simplify(node: ast.expr, ranges: Ranges | None = None, *, fix: bool = False) -> ast.expr:
    """The canonical expression equal to ``node`` within ``ranges``; ``node`` itself where it is not
    quasi-affine.

    ``fix``: see :func:`affine`.

    >>> unparse(simplify(expr("(c_outer * 16 + c_inner) // 16"), {"c_inner": (0, 15)}))
    'c_outer'
    """
    if node.__class__ is ast.Constant or (node.__class__ is ast.Name and not fix):  # most are
        return node
    form = affine(node, ranges, fix=fix)
    return node if form is None else form.to_expr()


def literal_lanes(stop: ast.expr) -> int | None:
    """``L`` of a vector loop's bound ``L`` or ``min(L, …)``; None where the bound has another form."""
    if isinstance(stop, ast.Call) and isinstance(stop.func, ast.Name) and stop.func.id == "min":
        return next((value for value in map(constant, stop.args) if value is not None), None)
    return constant(stop)


class _Simplifier(Transformer):
    """Simplifies subscripts, loop bounds, integer comparisons and what is cast of loop variables, in place (of a
    copy)."""

    def __init__(self, ranges: dict[str, tuple[int, int]]):
        self.ranges = ranges

    def visit_For(self, node: ast.For) -> ast.For:
        assert isinstance(node.iter, ast.Call)
        vector = kind_of(node) == "vector"
        lanes = literal_lanes(node.iter.args[0]) if vector else None
        # A vector loop keeps its bound on the number of lanes, whatever that number is here.
        fix = not vector
        node.iter.args = [simplify(arg, self.ranges, fix=fix) for arg in node.iter.args]
        if lanes is not None and literal_lanes(node.iter.args[0]) is None:  # the number of lanes stays visible
            node.iter.args = [ast.Call(ast.Name("min", ast.Load()), [ast.Constant(lanes), node.iter.args[0]], [])]
        loop = loop_of(node)
        outer, self.ranges = self.ranges, {**self.ranges, **loop_range(loop, self.ranges)}
        node.body = [self.visit(statement) for statement in node.body]
        self.ranges = outer
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.Subscript:
        if isinstance(node.slice, ast.Tuple):
            node.slice.elts = [self._index(element) for element in node.slice.elts]
        else:
            node.slice = self._index(node.slice)
        return node

    def _index(self, node: ast.expr) -> ast.expr:
        if node.__class__ is ast.Name or node.__class__ is ast.Constant:  # most are
            return node
        form = affine(node, self.ranges)
        if form is not None:
            return form.to_expr()
        if isinstance(node, ast.BinOp):  # data, with loop variables added
            node.left, node.right = self._index(node.left), self._index(node.right)
            return node
        return self.visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        cast = isinstance(node.func, ast.Name) and node.func.id in CASTS
        node.args = [self._side(arg) if cast else self.visit(arg) for arg in node.args]
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        node.left, node.comparators = self._side(node.left), [self._side(side) for side in node.comparators]
        return node

    def _side(self, node: ast.expr) -> ast.expr:
        return simplify(node, self.ranges) if on_loops(node, self.ranges) else self.visit(node)


def simplify_body(body: list[ast.stmt], ranges: Ranges | None = None) -> list[ast.stmt]:
    """A copy of ``body`` with every subscript, loop bound and comparison of loop variables in canonical form.

    Args:
        body: statements one after the other.
        ranges: of the loops around them.
    """
    simplifier = _Simplifier(dict(ranges or {}))
    return [simplifier.visit(clone(statement)) for statement in body]


def loop_range(loop: Loop, ranges: Ranges) -> dict[str, tuple[int, int]]:
    """``{variable: (least, greatest)}`` of a loop whose bounds are known within ``ranges``; else empty."""
    start, stop = bounds(loop.start, ranges), bounds(loop.stop, ranges)
    if start is not None and stop is None and loop.step > 0:
        stop = _bounded_by(loop.stop, start[0], ranges)
    if start is None or stop is None:
        return {}
    if loop.step < 0:
        return {loop.var: (stop[0] + 1, start[1])}
    low, high = start[0], stop[1] - 1
    if start[0] == start[1]:
        high = low + max(0, (high - low)) // loop.step * loop.step
    return {loop.var: (low, max(low, high))}


def _bounded_by(stop: ast.expr, start: int, ranges: Ranges) -> tuple[int, int] | None:
    """The limits of a bound ``min(8, items[0])``, of which one part is known: one after ``start`` at the least."""
    if not (isinstance(stop, ast.Call) and isinstance(stop.func, ast.Name) and stop.func.id == "min"):
        return None
    known = [limit for limit in (bounds(part, ranges) for part in stop.args) if limit is not None]
    most = min((high for _, high in known), default=None)
    return None if most is None else (min(start + 1, most), most)


def ranges_at(body: list[ast.stmt], path: Path) -> dict[str, tuple[int, int]]:
    """The ranges of the variables of the loops around the statement at ``path``."""
    ranges: dict[str, tuple[int, int]] = {}
    for depth in range(1, len(path)):
        statement = at(body, path[:depth])
        if isinstance(statement, ast.For):
            ranges |= loop_range(loop_of(statement), ranges)
    return ranges


def coefficients(node: ast.expr, var: str) -> int | None:
    """The coefficient of ``var`` in an affine expression; None where ``var`` occurs inside ``//``, ``%``,
    ``min``…, or the expression is not affine."""
    form = affine(node)
    if form is None:
        return None if var in names_in(node) else 0
    return form.coefficient(var) if form.plain({var}) else None
