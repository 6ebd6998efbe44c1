"""Folding: what in a body is known when it is compiled (shapes, attributes, closure variables, their
arithmetic)."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from latte.frontend.batch_numbers import batch_number, depends_on_batch, formula_of, plain
from latte.model.body import MISSING, Body
from latte.model.checks import is_number
from latte.model.ensemble import Ensemble
from latte.model.instances import CONNECTION_NAMES
from swirl.ir.operations import CALLS, COMPARISONS, OPERATORS
from swirl.ir.printing import unparse

ALIASES = {
    "fmax": "max",
    "fmin": "min",
    "maximum": "max",
    "minimum": "min",
    "fabs": "abs",
    "power": "pow",
    "arctan": "atan",
    "float": "float32",
    "int": "int32",
}
"""Other names of functions in bodies → the intermediate representation's."""
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    **{kind: known.compute for kind, known in OPERATORS.items()},
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
_CALLS = {name: known.numbers for name, known in CALLS.items() if known.numbers is not None}
_CALLS |= {"len": len, **{name: _CALLS[meant] for name, meant in ALIASES.items()}}


def attribute(ensemble: Ensemble, name: str) -> Any:
    """The number, bool or tuple that ``self.name`` stands for in a body, as it was when it was first asked for; else
    ``MISSING``."""
    sources = {edge.name for edge in ensemble.connections}
    if name in CONNECTION_NAMES or name in sources or name in ensemble.declared_fields():
        return MISSING
    neurons = ensemble.neurons
    for owner in (ensemble, neurons.flat[0] if isinstance(neurons, np.ndarray) else neurons):
        value = getattr(owner, name, MISSING) if owner is not None else MISSING
        if is_number(value) or isinstance(value, tuple):
            return ensemble.phase_methods.numbers.setdefault(name, value)
    return MISSING


class Constants:
    """Evaluates expressions of a body that are constants.

    Args:
        body: the body, for names and places.
        fixed: value of ``name``, or of ``self.name`` under the key ``self.name``; shapes under
            ``self.inputs.shape``.
        attribute: value of ``self.name``, or ``MISSING``.
        hidden: names that are variables here, even if they are constants outside.

    Attributes:
        fixing: what has been done, so far, that another number of items would not do in the same way.
    """

    def __init__(self, body: Body, fixed: dict[str, Any], attribute: Callable[[str], Any], hidden: set[str]):
        self.body = body
        self.fixed = dict(fixed)
        self.attribute = attribute
        self.hidden = hidden
        self.fixing: list[str] = []

    def fold(self, node: ast.expr) -> Any:
        """The value of ``node`` (number, bool or tuple), or ``MISSING`` if it is not a constant. A number that depends
        on how many items there are is the one of a whole batch from here on: see :meth:`value`."""
        return self._fixed(self.value(node), node)

    def value(self, node: ast.expr) -> Any:
        """The same, with the formula of a number that depends on the number of items: the caller keeps it."""
        try:
            return self._fold(node)
        except ZeroDivisionError:
            self.body.fail(node, f"{unparse(node)} divides by zero")
        except (ValueError, OverflowError, TypeError, IndexError) as error:
            self.body.fail(node, f"{unparse(node)} cannot be computed: {error}")

    def _fixed(self, value: Any, node: ast.expr) -> Any:
        """A number as it is for a whole batch."""
        if not depends_on_batch(value):
            return value
        self.fixing.append(unparse(node))
        return plain(value)

    def _fold(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value):
                return value if is_number(value) else MISSING
            case ast.Name() | ast.Attribute():
                return self._name(node)
            case ast.Tuple(elts):
                values = [self._fold(part) for part in elts]
                return MISSING if any(value is MISSING for value in values) else tuple(values)
            case ast.Subscript(value, index) if not isinstance(index, ast.Slice):
                base = self.body.arrays.get(value.id) if isinstance(value, ast.Name) else None
                base = self._fold(value) if base is None else base
                position = MISSING if base is MISSING else self._fixed(self._fold(index), index)
                return MISSING if position is MISSING else _element(base, position)
            case ast.BinOp(left, operation, right) if type(operation) in _BINARY:
                return self._all(node, [left, right], _BINARY[type(operation)])
            case ast.UnaryOp(operation, operand) if type(operation) in _UNARY:
                return self._all(node, [operand], _UNARY[type(operation)])
            case ast.Compare(left, operations, rights) if COMPARISONS.keys() >= set(map(type, operations)):
                return self._all(node, [left, *rights], lambda *sides: _compared(operations, sides))
            case ast.BoolOp(operation, values):
                return self._chosen(isinstance(operation, ast.And), values)
            case ast.IfExp(test, body, orelse):
                chosen = self._fixed(self._fold(test), test)
                return MISSING if chosen is MISSING else self._fold(body if chosen else orelse)
            case ast.Call(ast.Name("len"), [array], []) if shape := self.fixed.get(f"{unparse(array)}.shape"):
                return shape[0]
            case ast.Call(function, arguments, []) if (name := called(function)) in _CALLS:
                return self._all(node, arguments, _CALLS[name])
        return MISSING

    def _all(self, node: ast.expr, parts: list[ast.expr], compute: Callable[..., Any]) -> Any:
        """What an operation makes of its operands."""
        values = [self._fold(part) for part in parts]
        if any(value is MISSING for value in values):
            return MISSING
        if not any(map(depends_on_batch, values)):
            return compute(*values)
        made = compute(*map(plain, values))
        if isinstance(node, ast.Compare) or isinstance(made, bool) or not all(map(is_number, values)):
            self.fixing.append(unparse(node))
            return made
        return batch_number(made, _formula(node, [formula_of(value) for value in values]))

    def _chosen(self, conjunction: bool, nodes: list[ast.expr]) -> Any:
        """The operand that ``and`` or ``or`` yields; those after it need not be constants."""
        value: Any = MISSING
        for node in nodes:
            value = self._fold(node)
            if value is MISSING or bool(self._fixed(value, node)) != conjunction:
                return value
        return value

    def _name(self, node: ast.Name | ast.Attribute) -> Any:
        text = unparse(node)
        if text in self.fixed:
            return self.fixed[text]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            value = self.attribute(node.attr)
        elif isinstance(node, ast.Name) and node.id in self.hidden:
            return MISSING
        else:
            value = self.body.evaluate(node)
        if isinstance(value, np.ndarray) and not value.ndim:
            value = value.item()
        return value if is_number(value) or isinstance(value, tuple) else MISSING


def _element(base: Any, index: Any) -> Any:
    """An element of a tuple or an array; MISSING for anything else."""
    found = base[index] if isinstance(base, (tuple, np.ndarray)) else MISSING
    return MISSING if isinstance(found, np.ndarray) else found


def _formula(node: ast.expr, operands: list[str]) -> str:
    """The formula of an operation: see :func:`swirl.ir.item_numbers.value_of`."""
    match node:
        case ast.BinOp():
            symbol = "**" if isinstance(node.op, ast.Pow) else OPERATORS[type(node.op)].symbol
            return f"({operands[0]} {symbol} {operands[1]})"
        case ast.UnaryOp():
            return f"({'-' if isinstance(node.op, ast.USub) else '+'}{operands[0]})"
        case ast.Call(function):
            name = ALIASES.get(called(function), called(function))
            return f"{name.removesuffix('32')}({', '.join(operands)})"  # casts have Python's names
    raise AssertionError(unparse(node))


def _compared(operations: list[ast.cmpop], sides: tuple[Any, ...]) -> bool:
    return all(COMPARISONS[type(op)].compute(a, b) for op, (a, b) in zip(operations, pairwise(sides), strict=True))


def called(function: ast.expr) -> str:
    """The name of a called function: ``sqrt`` of ``sqrt``, ``math.sqrt`` and ``np.sqrt``; else an empty
    string."""
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return function.attr if function.value.id in ("math", "np", "numpy", "latte") else ""
    return ""


def literal(value: Any) -> ast.expr:
    """A number as a tree of the intermediate representation."""
    if isinstance(value, bool) or not is_number(value):
        return ast.Constant(bool(value))
    number: int | float = value.item() if hasattr(value, "item") else value
    if isinstance(number, bool):
        return ast.Constant(number)
    if number < 0 or (number == 0 and math.copysign(1.0, number) < 0):
        return ast.UnaryOp(ast.USub(), ast.Constant(-number))
    return ast.Constant(number)
