"""Derivatives of one expression: the share of its adjoint that each reference in it gets."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from latte.autodiff.adjoint_terms import Term, is_call, literal, same, selected
from swirl.errors import DerivativeError
from swirl.ir.nest import LocalType, declare, expr
from swirl.ir.operations import CALLS, NO_SLOPE, SLOPE_ONE
from swirl.ir.printing import unparse
from swirl.ir.trees import name_of, nodes, operands

RESULT = "result__"
"""A placeholder for the value of the whole expression; the caller replaces it by the target or the expression."""


def _derivative(name: str) -> str | None:
    """The table's, of a function of one argument; None where there is none."""
    return CALLS[name].derivative if name in CALLS else None


def _passing(node: ast.expr) -> list[ast.expr]:
    """The operands through which a gradient may flow: no tests, and no arguments of what has no slope."""
    match node:
        case ast.Compare():
            return []
        case ast.IfExp(_, body, orelse):
            return [body, orelse]
        case ast.Call(ast.Name(name)) if name == "stop_gradient" or _derivative(name) == NO_SLOPE:
            return []
    return operands(node)


def active_in(node: ast.expr, is_active: Callable[[str], bool]) -> bool:
    """Whether a gradient flows through ``node``: an active name outside subscripts, tests and constants."""
    if isinstance(node, (ast.Name, ast.Subscript)):
        return is_active(name_of(node))
    return any(active_in(part, is_active) for part in _passing(node))


def active_references(node: ast.expr, is_active: Callable[[str], bool]) -> list[ast.expr]:
    """The names and references in ``node`` through which a gradient flows."""
    if isinstance(node, (ast.Name, ast.Subscript)):
        return [node] if is_active(name_of(node)) else []
    return [reference for part in _passing(node) for reference in active_references(part, is_active)]


@dataclass
class Partials:
    """Walks one expression from the outside in.

    Args:
        is_active: whether the gradient of a local or buffer is wanted.
        fresh_local: makes a new name for a shared part.
        dtype: of the shared parts.

    After :meth:`walk`, ``shared`` are declarations of locals that the terms use, and ``found`` are the active
    references with their terms, in the order of the text.
    """

    is_active: Callable[[str], bool]
    fresh_local: Callable[[], str]
    dtype: str
    shared: list[ast.stmt] = field(default_factory=list)
    found: list[tuple[ast.expr, Term]] = field(default_factory=list)

    def walk(self, node: ast.expr, term: Term, result: ast.expr | None = None) -> None:
        """Send ``term``, the adjoint of ``node``, to the references in ``node``.

        Args:
            result: the value of ``node`` where it is at hand.

        Raises:
            DerivativeError: an operation without a rule.
        """
        if not active_in(node, self.is_active):
            return
        if isinstance(node, (ast.Name, ast.Subscript)):
            self.found.append((node, term))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            self.walk(node.operand, term.scaled(Fraction(-1)))
        elif isinstance(node, ast.BinOp):
            self._binary(node, term, result)
        elif isinstance(node, ast.IfExp):
            self.walk(node.body, term.when(node.test), result)
            self.walk(node.orelse, term.when(node.test, wanted=False), result)
        elif isinstance(node, ast.BoolOp):
            self._choice(node, term)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            self._call(node, node.func.id, term, node if result is None else result)
        else:
            raise DerivativeError(f"no derivative of `{unparse(node)}`")

    def share(self, term: Term) -> Term:
        """The same term, put into a local if it is more than a name."""
        if term.simple:
            return term
        name = self.fresh_local()
        self.shared.append(declare(name, LocalType(self.dtype), selected(term.product(), term.conditions)))
        return Term(over=(ast.Name(name, ast.Load()),), conditions=term.conditions)

    def _binary(self, node: ast.BinOp, term: Term, result: ast.expr | None) -> None:
        left, right = node.left, node.right
        both = active_in(left, self.is_active) and active_in(right, self.is_active)
        if isinstance(node.op, ast.Mult) and same(left, right):
            self.walk(left, term.scaled(Fraction(2)).times(left))
        elif isinstance(node.op, ast.Div):
            self._quotient(left, right, term, result)
        elif isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            term = self.share(term) if both else term
            if isinstance(node.op, ast.Mult):
                self.walk(left, term.times(right))
                self.walk(right, term.times(left))
            else:
                self.walk(left, term)
                self.walk(right, term.scaled(Fraction(-1)) if isinstance(node.op, ast.Sub) else term)
        else:
            raise DerivativeError(f"no derivative of `{unparse(node)}`")

    def _quotient(self, left: ast.expr, right: ast.expr, term: Term, result: ast.expr | None) -> None:
        """Of ``left / right``. In ``y = 1 / (c + exp(u))``, the share of ``u`` is ``-y * (e / (c + e))``; an infinite
        ``e`` has a quotient of one. In ``y = exp(u) / d``, it is ``y``."""

        def less(factor: Term) -> Term:
            factor = factor.scaled(Fraction(-1))
            return factor.times(left).divided(right) if result is None else factor.times(result)

        both = active_in(left, self.is_active) and active_in(right, self.is_active)
        growing = _growing(right)
        if result is not None and growing is None and is_call(left, "exp"):
            assert isinstance(left, ast.Call)
            term = self.share(term.times(result)) if both else term.times(result)
            self.walk(left.args[0], term)
            self.walk(right, term.scaled(Fraction(-1)).divided(right))
            return
        if growing is not None and both:
            term = self.share(term)
        quotient = term.divided(right)
        quotient = self.share(quotient) if both else quotient
        self.walk(left, quotient)
        if growing is None:
            self.walk(right, less(quotient))
        else:
            exponential, other = growing
            self.walk(other, less(quotient))
            share = expr("e / d if e < INFINITY else 1.0", e=exponential, d=right)
            self.walk(exponential.args[0], less(term).times(share))

    def _call(self, node: ast.Call, name: str, term: Term, result: ast.expr) -> None:
        args = node.args
        derivative = _derivative(name)
        if derivative == SLOPE_ONE:
            self.walk(args[0], term)
        elif derivative is not None:
            slope = expr(derivative)
            uses = sum(isinstance(part, ast.Name) and part.id == "r" for part in nodes(slope))
            if uses > 1 and is_call(result, name):
                result = self.share(Term(over=(result,))).product()
            self.walk(args[0], term.times(expr(slope, x=args[0], r=result)))
        elif name == "pow":
            self._power(args[0], args[1], term, result)
        elif name in ("max", "min"):
            self._extremum(name, args, term, None if result is node else result)
        else:
            raise DerivativeError(f"no derivative of `{name}`")

    def _choice(self, node: ast.BoolOp, term: Term) -> None:
        """``a and b`` as a value is ``b if a else a``, ``a or b`` is ``a if a else b``."""
        for value in node.values[:-1]:
            self.walk(value, term.when(value, wanted=isinstance(node.op, ast.Or)))
            term = term.when(value, wanted=isinstance(node.op, ast.And))
        self.walk(node.values[-1], term)

    def _power(self, base: ast.expr, exponent: ast.expr, term: Term, result: ast.expr) -> None:
        """As in PyTorch: the derivative by the base is zero where the exponent is; that by the exponent, where the base
        is."""
        if active_in(exponent, self.is_active):
            term = self.share(term)
            by_exponent = "0.0 if x == 0.0 and e >= 0.0 else r * log(x)"
            self.walk(exponent, term.times(expr(by_exponent, x=base, e=exponent, r=result)))
        value = literal(exponent)
        if value == 0:
            return
        if value == 1:
            self.walk(base, term)
        elif value == 2:
            self.walk(base, term.scaled(Fraction(2)).times(base))
        elif value is not None:
            down = expr("pow(x, e)", x=base, e=ast.Constant(float(value - 1)))
            self.walk(base, term.scaled(value).times(down))
        else:
            slope = expr("0.0 if e == 0 else e * pow(x, e - 1.0)", x=base, e=exponent)
            self.walk(base, term.times(slope))

    def _extremum(self, name: str, args: list[ast.expr], term: Term, result: ast.expr | None) -> None:
        """The first argument wins where it is strictly greater (docs/ir.md); a literal never loses a tie.

        Against a literal, the result also tells who won: the argument need not be kept. Where it won, the result is its
        value, too.
        """
        first, rest = args[0], args[1:]
        second: ast.expr = rest[0] if len(rest) == 1 else ast.Call(ast.Name(name, ast.Load()), rest, [])
        if literal(second) is not None:
            first, second = second, first
        sign = ">" if name == "max" else "<"
        if literal(first) is not None:
            result = None if len(args) > 2 else result
            won = second if result is None else result
            self.walk(second, term.when(expr(f"b {sign} a", a=first, b=won)), result)
            return
        test = expr(f"a {sign} b", a=first, b=second)
        self.walk(first, term.when(test))
        self.walk(second, term.when(test, wanted=False))


def _growing(node: ast.expr) -> tuple[ast.Call, ast.expr] | None:
    """The exponential and the other one of a sum of two."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for one, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(one, ast.Call) and is_call(one, "exp"):
                return one, other
    return None
