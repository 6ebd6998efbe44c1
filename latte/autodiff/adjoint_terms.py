"""Products with a divisor: the form in which adjoints travel through an expression, to print tightly."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from swirl.ir.operations import COMPARISONS
from swirl.ir.printing import unparse


def same(a: ast.AST, b: ast.AST) -> bool:
    """Whether two trees print alike."""
    return unparse(a) == unparse(b)


def literal(node: ast.expr) -> Fraction | None:
    """The value of a finite numeric literal (sign included) as a fraction, else None."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = literal(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        value = node.value
        return Fraction(repr(value)) if abs(value) < float("inf") else None
    return None


def number(value: Fraction) -> ast.expr:
    """A floating-point literal; negative ones carry an unary minus, as the parser builds them."""
    node = ast.Constant(float(abs(value)))
    return ast.UnaryOp(ast.USub(), node) if value < 0 else node


def binary(left: ast.expr, op: ast.operator, right: ast.expr) -> ast.expr:
    return ast.BinOp(left, op, right)


def negated(node: ast.expr) -> ast.expr:
    """``-node``, without a double minus."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return node.operand
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)) and leading_minus(node.left):
        return binary(negated(node.left), node.op, node.right)
    return ast.UnaryOp(ast.USub(), node)


def leading_minus(node: ast.expr) -> bool:
    """Whether the printed product starts with a minus that can be pulled to the front."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        return leading_minus(node.left)
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


def summed(parts: Iterable[ast.expr]) -> ast.expr:
    """``a + b - c``; the parts are not empty."""
    total: ast.expr | None = None
    for part in parts:
        if total is None:
            total = part
        elif leading_minus(part):
            total = binary(total, ast.Sub(), negated(part))
        else:
            total = binary(total, ast.Add(), part)
    assert total is not None
    return total


def inverted(test: ast.expr) -> ast.expr:
    """``not test``, for a test of integers (of floats, NaN makes ``not a < b`` differ from ``a >= b``)."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return ast.Compare(test.left, [COMPARISONS[type(test.ops[0])].opposite()], test.comparators)
    return ast.UnaryOp(ast.Not(), test)


def is_call(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


@dataclass(frozen=True)
class Condition:
    """A term counts only where ``test`` holds (``wanted``), or only where it does not."""

    test: ast.expr
    wanted: bool = True


@dataclass(frozen=True)
class Term:
    """``coefficient * over… / under…``, zero where one of ``conditions`` fails."""

    coefficient: Fraction = Fraction(1)
    over: tuple[ast.expr, ...] = ()
    under: tuple[ast.expr, ...] = ()
    conditions: tuple[Condition, ...] = ()

    @property
    def simple(self) -> bool:
        """One name or reference: reading it twice is too cheap to need a local."""
        return (
            self.coefficient in (1, -1)
            and len(self.over) <= 1
            and not self.under
            and not self.conditions
            and all(isinstance(factor, (ast.Name, ast.Subscript)) for factor in self.over)
        )

    def times(self, factor: ast.expr) -> Term:
        """This term times ``factor``."""
        if isinstance(factor, ast.UnaryOp) and isinstance(factor.op, ast.USub) and literal(factor) is None:
            return self.scaled(Fraction(-1)).times(factor.operand)
        value = literal(factor)
        if value is not None:
            return self.scaled(value)
        if isinstance(factor, ast.BinOp) and isinstance(factor.op, ast.Mult):
            return self.times(factor.left).times(factor.right)
        if isinstance(factor, ast.BinOp) and isinstance(factor.op, ast.Div):
            return self.times(factor.left).divided(factor.right)
        for index, below in enumerate(self.under):
            if same(below, factor):
                return replace(self, under=self.under[:index] + self.under[index + 1 :])
        return replace(self, over=(*self.over, factor))

    def divided(self, factor: ast.expr) -> Term:
        """This term over ``factor``; ``sqrt(a) * sqrt(a)`` below the line becomes ``a``."""
        for index, above in enumerate(self.over):
            if same(above, factor):
                return replace(self, over=self.over[:index] + self.over[index + 1 :])
        if is_call(factor, "sqrt"):
            assert isinstance(factor, ast.Call)
            for index, below in enumerate(self.under):
                if same(below, factor):
                    return replace(self, under=(*self.under[:index], *self.under[index + 1 :], factor.args[0]))
        return replace(self, under=(*self.under, factor))

    def scaled(self, value: Fraction) -> Term:
        return replace(self, coefficient=self.coefficient * value)

    def when(self, test: ast.expr, wanted: bool = True) -> Term:
        """This term where ``test`` is as wanted, else zero; ``a and b`` counts as two conditions."""
        if wanted and isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            result = self
            for part in test.values:
                result = result.when(part)
            return result
        return replace(self, conditions=(*self.conditions, Condition(test, wanted)))

    def product(self) -> ast.expr:
        """The printed form, conditions left out."""
        factors = list(self.over)
        size = abs(self.coefficient)
        if size != 1 or not factors:
            factors.insert(0, number(size))
        top = factors[0]
        for factor in factors[1:]:
            top = binary(top, ast.Mult(), factor)
        if self.coefficient < 0:
            top = negate_first(top)
        if not self.under:
            return top
        bottom = self.under[0]
        for factor in self.under[1:]:
            bottom = binary(bottom, ast.Mult(), factor)
        return binary(top, ast.Div(), bottom)


def negate_first(product: ast.expr) -> ast.expr:
    """``a * b`` → ``-a * b``: the minus goes to the first factor."""
    if isinstance(product, ast.BinOp) and isinstance(product.op, (ast.Mult, ast.Div)):
        return binary(negate_first(product.left), product.op, product.right)
    return ast.UnaryOp(ast.USub(), product)


def selected(value: ast.expr, conditions: Iterable[Condition]) -> ast.expr:
    """``value if … else 0.0``, zero where a condition fails."""
    wanted = [c.test for c in conditions if c.wanted]
    for condition in conditions:
        if not condition.wanted:
            value = ast.IfExp(condition.test, ast.Constant(0.0), value)
    if wanted:
        test = wanted[0] if len(wanted) == 1 else ast.BoolOp(ast.And(), wanted)
        value = ast.IfExp(test, value, ast.Constant(0.0))
    return value
