"""The numbers that nests are executed with: NumPy's, or rational ones, for which equality is exact."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from swirl.errors import LatteError
from swirl.ir.operations import CALLS
from swirl.ir.types import as_int32, is_float


def philox(seed: int, step: int, stream: int, index: int) -> int:
    """The first word of Philox4x32-10 (Salmon et al., SC 2011) of counter (index, stream, step, 0) and key
    (seed, 0)."""
    mask = 0xFFFFFFFF
    counter = [int(index) & mask, int(stream) & mask, int(step) & mask, 0]
    key = [int(seed) & mask, 0]
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (second >> 32) ^ counter[1] ^ key[0],
            second & mask,
            (first >> 32) ^ counter[3] ^ key[1],
            first & mask,
        ]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return counter[0]


def _floating(double: bool) -> dict[str, Callable[..., Any]]:
    """The calls on NumPy's numbers, each in the type of its arguments."""
    table = {name: known.floating for name, known in CALLS.items() if known.floating is not None}
    dtype = np.float64 if double else np.float32
    return table | {"rand": lambda *args: dtype((philox(*args) >> 8) * 2.0**-24)}


def _truncated(value: Any) -> Any:
    return np.int32(as_int32(value))


class Undefined:
    """A result without a value in rational arithmetic, and what is computed from it: it can be stored, but not compared
    or converted. Floating-point arithmetic has some value for it, so that a command may compute it before a condition
    under which it is needed.

    Args:
        what: what it is.
        error: the kind of error that is raised where it is compared or converted.
    """

    def __init__(self, what: str, error: type[Exception]):
        self.what, self.error = what, error

    def _itself(self, *_: object) -> Undefined:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _itself

    def _unknown(self, *_: object) -> Any:
        raise self.error(f"{self.what} is compared or converted")

    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __int__ = __float__ = __floordiv__ = __mod__ = _unknown
    __eq__ = __ne__ = _unknown
    __hash__ = None  # type: ignore[assignment]


UNDEFINED = Undefined("a quotient by zero", ZeroDivisionError)
"""A quotient by zero."""
UNINITIALISED = Undefined("an element of a local array that nothing has set", LatteError)
"""What a local array holds before its first write."""


def _divided(left: Any, right: Any) -> Any:
    """A quotient of rational numbers."""
    for operand in (left, right):
        if isinstance(operand, Undefined):
            return operand
    return Fraction(left) / right if right else UNDEFINED


def _rational() -> dict[str, Callable[..., Any]]:
    """Exact arithmetic, with stand-ins for the functions that leave the rational numbers."""
    table = {name: known.rational for name, known in CALLS.items() if known.rational is not None}
    table |= {"rand": lambda *args: Fraction(philox(*args) >> 8, 2**24)}
    return {name: _where_defined(function) for name, function in table.items()} | {"rational_quotient": _divided}


def _where_defined(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        for arg in args:
            if isinstance(arg, Undefined):
                return arg
        return function(*args)

    return call


def _exact(value: Any) -> Any:
    """A number as an int or a Fraction; ints stay ints: their arithmetic takes a tenth of the time."""
    if value.__class__ is int or value.__class__ is Fraction or value.__class__ is Undefined:
        return value
    return int(value) if isinstance(value, (np.integer, np.bool_)) else Fraction(value)


_INFINITY = Fraction(10**4000)
"""Infinity in rational arithmetic: greater than products of small numbers."""


def calls(arithmetic: str) -> dict[str, Any]:
    """The functions that a printed nest calls, except the kinds of loops.

    Args:
        arithmetic: ``typed``, ``float64`` or ``rational``, see :func:`swirl.ir.execute.execute`.
    """
    if arithmetic == "rational":
        casts: dict[str, Any] = dict.fromkeys(("float32", "float64"), _exact)
        empty: dict[str, tuple[Any, Any]] = dict.fromkeys(("float32", "float64"), (object, UNINITIALISED))
        special = _rational()
    else:
        double = arithmetic == "float64"
        casts = {"float32": np.float64 if double else np.float32, "float64": np.float64}
        empty = {name: (kind, np.nan) for name, kind in casts.items()}
        special = _floating(double)
    casts |= {"int32": _truncated, "bool": bool}
    empty |= {"int32": (np.int32, 0), "bool": (np.bool_, False)}

    def maker(dtype: Any, value: Any) -> Callable[..., np.ndarray]:
        return lambda *shape: np.full(shape, value, dtype)

    empties = {f"empty_{name}": maker(*how) for name, how in empty.items()}
    hints = {"stream": lambda x: x, "prefetch": lambda *_: None}
    return {**special, **casts, **empties, **hints}


class Literals:
    """Literals, each a number of the type that it takes: ``numbers`` has them by the names that stand for them."""

    def __init__(self, casts: Mapping[str, Callable[[Any], Any]], rational: bool):
        self.casts, self.rational = casts, rational
        self.numbers: dict[str, Any] = {}

    def leaf(self, node: ast.expr, dtype: str) -> ast.expr:
        """The name that stands for a literal or a loop variable of that type."""
        if isinstance(node, ast.Name):  # a loop variable
            return ast.Call(ast.Name(dtype, ast.Load()), [node], [])
        assert isinstance(node, ast.Constant)
        number = self._number(node.value, dtype)
        if type(number) in (bool, int):
            return ast.Constant(number)
        name = f"number_{len(self.numbers)}"
        self.numbers[name] = number
        return ast.Name(name, ast.Load())

    def _number(self, value: Any, dtype: str) -> Any:
        if not self.rational or not is_float(dtype):
            return self.casts[dtype](value)
        if value in (float("inf"), float("-inf")):
            return _INFINITY if value > 0 else -_INFINITY
        return int(value) if float(value).is_integer() else Fraction(repr(value))
