"""Expressions as polynomials with rational coefficients: the form in which algebraic commands compare and split them.

An *atom* is a part that the polynomial does not look into: a reference, a local, a call, a quotient by something that
is not a number. Two expressions with the same polynomial are equal for all values of their atoms, over the rationals.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import isfinite

from swirl.ir.nest import clone
from swirl.ir.printing import unparse

MAX_TERMS = 256
"""A product of sums that would have more terms stays a product."""

Monomial = tuple[str, ...]
"""Atoms as text, repeated by their power, in the order of :attr:`Polynomial.atoms`; ``()`` is 1."""


@dataclass(frozen=True)
class Atom:
    """A factor of a monomial: an expression, or one divided by it."""

    node: ast.expr
    inverse: bool = False

    @property
    def key(self) -> str:
        return f"1 / ({unparse(self.node)})" if self.inverse else unparse(self.node)


@dataclass(frozen=True)
class Polynomial:
    """``sum(coefficient * monomial)``.

    Args:
        terms: monomial → coefficient, none of them zero.
        atoms: key → atom, in order of first appearance.
    """

    terms: Mapping[Monomial, Fraction] = field(default_factory=dict)
    atoms: Mapping[str, Atom] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self._unordered == other._unordered

    def __hash__(self) -> int:
        return hash(frozenset(self._unordered.items()))

    @property
    def _unordered(self) -> dict[Monomial, Fraction]:
        return {tuple(sorted(monomial)): coefficient for monomial, coefficient in self.terms.items()}

    def _make(self, other: Polynomial, terms: Iterator[tuple[Monomial, Fraction]]) -> Polynomial:
        atoms = {**self.atoms, **other.atoms}
        places = {key: place for place, key in enumerate(atoms)}
        total: dict[Monomial, Fraction] = {}
        for monomial, coefficient in terms:
            monomial = tuple(sorted(monomial, key=places.__getitem__))
            total[monomial] = total.get(monomial, Fraction(0)) + coefficient
        return Polynomial({monomial: value for monomial, value in total.items() if value}, atoms)

    def __add__(self, other: Polynomial) -> Polynomial:
        return self._make(other, ((m, c) for terms in (self.terms, other.terms) for m, c in terms.items()))

    def __mul__(self, other: Polynomial) -> Polynomial:
        pairs = ((m + n, c * d) for m, c in self.terms.items() for n, d in other.terms.items())
        return self._make(other, pairs)

    def __neg__(self) -> Polynomial:
        return self * number(-1)

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def split(self, is_variable: Callable[[Atom], bool]) -> dict[Monomial, Polynomial]:
        """The polynomial as one in the atoms for which ``is_variable`` holds; coefficients are polynomials in the
        rest."""
        result: dict[Monomial, dict[Monomial, Fraction]] = {}
        for monomial, coefficient in self.terms.items():
            inside = tuple(key for key in monomial if is_variable(self.atoms[key]))
            rest = tuple(key for key in monomial if not is_variable(self.atoms[key]))
            result.setdefault(inside, {})[rest] = coefficient
        return {inside: Polynomial(terms, self.atoms) for inside, terms in result.items()}

    def product(self, monomial: Monomial) -> ast.expr | None:
        """The expression of one monomial; None for 1."""
        return _product([self.atoms[key] for key in monomial], Fraction(1)) if monomial else None

    def to_expr(self) -> ast.expr:
        """The expression: terms in order, a positive one first, constants last."""
        terms = sorted(self.terms.items(), key=lambda term: (not term[0], term[1] < 0))
        result: ast.expr | None = None
        for monomial, coefficient in terms:
            node = _product([self.atoms[key] for key in monomial], abs(coefficient))
            if result is None:
                result = node if coefficient > 0 else _negative(node)
            else:
                result = ast.BinOp(result, ast.Add() if coefficient > 0 else ast.Sub(), node)
        return ast.Constant(0.0) if result is None else result


def _product(atoms: list[Atom], size: Fraction) -> ast.expr:
    """``size`` times atoms; divisors come last."""
    whole = literal(size)
    above = [atom.node for atom in atoms if not atom.inverse]
    below = [atom.node for atom in atoms if atom.inverse]
    if whole is None:  # not a decimal number: a quotient of two
        below.append(ast.Constant(float(size.denominator)))
        size, whole = Fraction(size.numerator), ast.Constant(float(size.numerator))
    if size != 1 or not above:
        above.insert(0, whole)
    result = clone(above[0])
    for node in above[1:]:
        result = ast.BinOp(result, ast.Mult(), clone(node))
    for node in below:
        result = ast.BinOp(result, ast.Div(), clone(node))
    return result


def _negative(node: ast.expr) -> ast.expr:
    """``-node``, a leading literal with the sign: ``-2.0 * x``."""
    if isinstance(node, ast.BinOp):
        return ast.BinOp(_negative(node.left), node.op, node.right)
    return ast.UnaryOp(ast.USub(), node)


def number(value: int | Fraction) -> Polynomial:
    """A constant."""
    return Polynomial({(): Fraction(value)} if value else {})


def of_atom(atom: Atom) -> Polynomial:
    """One atom."""
    return Polynomial({(atom.key,): Fraction(1)}, {atom.key: atom})


def literal(value: Fraction) -> ast.Constant | None:
    """The literal that means exactly this number, or None."""
    shown = float(value)
    return ast.Constant(shown) if isfinite(shown) and Fraction(repr(shown)) == value else None


def polynomial(node: ast.expr, opaque: Callable[[ast.expr], bool] = lambda node: False) -> Polynomial:
    """The polynomial of an expression.

    Args:
        node: of floating-point type; an integer literal is the number.
        opaque: expressions for which it holds are atoms.
    """
    if opaque(node):
        return of_atom(Atom(node))
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return number(Fraction(repr(node.value))) if isfinite(node.value) else of_atom(Atom(node))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -polynomial(node.operand, opaque)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
        left, right = polynomial(node.left, opaque), polynomial(node.right, opaque)
        if isinstance(node.op, ast.Mult):
            small = len(left.terms) * len(right.terms) <= MAX_TERMS
            return left * right if small else of_atom(Atom(node))
        return left + right if isinstance(node.op, ast.Add) else left - right
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        divisor = polynomial(node.right, opaque)
        if set(divisor.terms) == {()}:
            return polynomial(node.left, opaque) * number(1 / divisor.terms[()])
        return polynomial(node.left, opaque) * of_atom(Atom(node.right, inverse=True))
    return of_atom(Atom(node))
