"""The operations of expressions, each with all that the compiler knows of it: its type, derivative, range, cost, and
what it is called in Python, C++ and isl. Everything that treats operations by kind looks here."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np

WEAK_INT, WEAK_FLOAT = "whole number", "number"
"""The types of literals and loop variables, and of what is made of these alone (and integers, for the second)."""

Interval = tuple[float, float]
"""The least and the greatest value; infinite where it is not known."""
UNBOUNDED: Interval = (-math.inf, math.inf)


# --- operators ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Operator:
    """An operator with two operands.

    Args:
        symbol: in Python.
        level: how tightly it binds, in Python's grammar.
        compute: on Python's numbers, and on arrays.
        interval: where its results are, from where its operands are.
        least: the type that its result has at least.
        slots: multiply-adds that could be issued in the time of one on vectors.
        instruction: what intrinsics call it; empty where there is none.
        helper: the C++ function on int32 whose results wrap, or are rounded down, as Python's; C++'s own operator, the
            last character of ``symbol``, does so for non-negative numbers and results that fit.
        beside_zero: the C++ function for floating-point numbers of which one is a literal zero; empty for the operator.
        isl: in isl's notation, with places for both operands; empty for what only affine forms have.
    """

    symbol: str
    level: int
    compute: Callable[[Any, Any], Any]
    interval: Callable[[Interval, Interval], Interval]
    least: str = WEAK_INT
    slots: int = 1
    instruction: str = ""
    helper: str = ""
    beside_zero: str = ""
    isl: str = ""

    @property
    def of_integers(self) -> bool:
        """Whether it has a meaning for integers alone."""
        return self.least == "int32"


def _ends(operation: Callable[[float, float], float], one: Interval, two: Interval) -> Interval:
    """What a monotonic operation makes of all pairs of ends."""
    if math.inf in map(abs, (*one, *two)):
        return UNBOUNDED
    found = [operation(left, right) for left in one for right in two]
    return min(found), max(found)


def _product(one: Interval, two: Interval) -> Interval:
    return _ends(operator.mul, one, two)


def _quotient(one: Interval, two: Interval) -> Interval:
    return _ends(operator.floordiv, one, two) if two[0] > 0 else UNBOUNDED


def _remainder(one: Interval, two: Interval) -> Interval:
    if two[0] <= 0 or math.isinf(two[1]):
        return UNBOUNDED
    if one[0] >= 0:
        return one if one[1] < two[0] else (0, min(two[1] - 1, one[1]))
    return 0, two[1] - 1


OPERATORS: Mapping[type[ast.operator], Operator] = MappingProxyType(
    {
        ast.Add: Operator(
            "+",
            10,
            operator.add,
            lambda one, two: (one[0] + two[0], one[1] + two[1]),
            instruction="add",
            helper="wrapped_sum",
            beside_zero="plain_sum",
        ),
        ast.Sub: Operator(
            "-",
            10,
            operator.sub,
            lambda one, two: (one[0] - two[1], one[1] - two[0]),
            instruction="sub",
            helper="wrapped_difference",
            beside_zero="plain_difference",
        ),
        ast.Mult: Operator("*", 11, operator.mul, _product, instruction="mul", helper="wrapped_product"),
        ast.Div: Operator(
            "/", 11, operator.truediv, lambda *_: UNBOUNDED, least=WEAK_FLOAT, slots=10, instruction="div"
        ),
        ast.FloorDiv: Operator(
            "//", 11, operator.floordiv, _quotient, least="int32", helper="floor_divide", isl="floor(({0})/{1})"
        ),
        ast.Mod: Operator(
            "%", 11, operator.mod, _remainder, least="int32", helper="floor_modulo", isl="(({0}) mod {1})"
        ),
    }
)
"""The operators of the grammar with two operands."""


# --- comparisons --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Comparison:
    """A comparison.

    Args:
        symbol: in Python and C++.
        compute: on Python's numbers, and on arrays.
        mirrored: what it becomes when its sides are exchanged.
        opposite: what holds where it does not; of floating-point numbers, NaN makes a difference.
        isl: in isl's notation, where that is not ``symbol``.
    """

    symbol: str
    compute: Callable[[Any, Any], Any]
    mirrored: type[ast.cmpop]
    opposite: type[ast.cmpop]
    isl: str = ""

    def decided(self, low: int, high: int) -> bool | None:
        """Whether it holds between a difference and zero; None where that is not sure.

        Args:
            low, high: the least and the greatest difference.
        """
        first: bool = self.compute(low, 0)
        return None if low < 0 < high or first != self.compute(high, 0) else first


COMPARISONS: Mapping[type[ast.cmpop], Comparison] = MappingProxyType(
    {
        ast.Lt: Comparison("<", operator.lt, ast.Gt, ast.GtE),
        ast.LtE: Comparison("<=", operator.le, ast.GtE, ast.Gt),
        ast.Gt: Comparison(">", operator.gt, ast.Lt, ast.LtE),
        ast.GtE: Comparison(">=", operator.ge, ast.LtE, ast.Lt),
        ast.Eq: Comparison("==", operator.eq, ast.Eq, ast.NotEq, isl="="),
        ast.NotEq: Comparison("!=", operator.ne, ast.NotEq, ast.Eq),
    }
)
"""The comparisons of the grammar."""
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
"""Those that order numbers."""


# --- functions ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Function:
    """A function that expressions call.

    Args:
        floating: on NumPy's numbers, in their own type; None where it depends on more than these.
        rational: what stands for it in exact arithmetic: a rational function without the algebraic laws that a
            command might wrongly use.
        numbers: on Python's numbers, for what is known when a body is compiled; None where it stays in the program.
        arguments: how many it takes; None for two or more.
        least: the type that its result has at least.
        result: the type of its result, where it is always the same.
        derivative: in ``x``, the argument, and ``r``, the result; None where it has a rule of its own.
        interval: where its results are, from where its arguments are.
        saturates: whether the ends of its range are reached, on every target, where they are the nearest numbers: then
            derivatives that are made of results have no slope left that something large could be multiplied by.
        positive: whether it has a value for positive numbers only.
        slots: multiply-adds that could be issued in the time of one on vectors, as measured on Zen 5; 20 is a call.
        library: the C library's name, where that is another one; the function for floats ends in ``f``.
        vector_since: the release of glibc whose libmvec is called for vectors; None where nothing is called.
        helper: the C++ function that computes it for vectors; empty where it is one instruction, or a call.
    """

    floating: Callable[..., Any] | None = None
    rational: Callable[..., Any] | None = None
    numbers: Callable[..., Any] | None = None
    arguments: int | None = 1
    least: str = WEAK_FLOAT
    result: str | None = None
    derivative: str | None = None
    interval: Callable[..., Interval] = lambda *_: UNBOUNDED
    saturates: bool = False
    positive: bool = False
    slots: int = 20
    library: str = ""
    vector_since: tuple[int, int] | None = None
    helper: str = ""

    @property
    def correctly_rounded(self) -> bool:
        """Whether it has the same bits wherever it is computed: it is one instruction."""
        return self.vector_since is None and not self.helper

    @property
    def range(self) -> Interval:
        """Of its results."""
        return self.interval(*[UNBOUNDED] * (self.arguments or 2))

    def operations(self, arguments: int) -> int:
        """How many operations a call with so many arguments is: ``max(a, b, c)`` is two comparisons."""
        return 0 if not self.slots else max(1, arguments - 1) if self.arguments is None else 1


NO_SLOPE, SLOPE_ONE = "0.0", "1.0"
"""Derivatives of what passes no gradients, and of what passes them as they are."""


def _erf(x: Any) -> Any:
    """NumPy has none."""
    return np.asarray(x).dtype.type(math.erf(x))


def _maximum(first: Any, *others: Any) -> Any:
    for other in others:
        first = first if first > other or first != first else other
    return first


def _minimum(first: Any, *others: Any) -> Any:
    for other in others:
        first = first if first < other or first != first else other
    return first


def _cast(dtype: str, numbers: Callable[..., Any] | None = None, **known: Any) -> Function:
    return Function(numbers=numbers, result=dtype, slots=0, **known)


def _within(low: float, high: float = math.inf) -> Callable[..., Interval]:
    return lambda *_: (low, high)


def _extremum(compute: Callable[..., Any], choose: Callable[..., Any], helper: str) -> Function:
    def interval(*given: Interval) -> Interval:
        return choose(low for low, _ in given), choose(high for _, high in given)

    return Function(compute, compute, choose, None, WEAK_INT, interval=interval, slots=1, helper=helper)


CALLS: Mapping[str, Function] = MappingProxyType(
    {
        "sqrt": Function(
            np.sqrt,
            lambda x: Fraction(x * x + 3, x * x + x + 11),
            math.sqrt,
            derivative="0.5 / r",
            interval=_within(0.0),
            positive=True,
            slots=10,
        ),
        "exp": Function(
            np.exp,
            lambda x: Fraction(x * x + 5, 7),
            math.exp,
            derivative="r",
            interval=_within(0.0),
            saturates=True,
            slots=11,
            helper="exponential",
        ),
        "expm1": Function(
            np.expm1,
            lambda x: Fraction(x * x - x + 2, 11),
            math.expm1,
            derivative="exp(x)",
            interval=_within(-1.0),
            saturates=True,
            slots=13,
            helper="exponential_minus_1",
        ),
        "log": Function(
            np.log,
            lambda x: Fraction(x * x - 2, 3),
            math.log,
            derivative="1.0 / x",
            saturates=True,
            positive=True,
            vector_since=(2, 22),
        ),
        "log1p": Function(
            np.log1p,
            lambda x: Fraction(x * x + 4 * x, 9),
            math.log1p,
            derivative="1.0 / (1.0 + x)",
            saturates=True,
            vector_since=(2, 35),
        ),
        "tanh": Function(
            np.tanh,
            lambda x: Fraction(x + 1, x * x + 2),
            math.tanh,
            derivative="1.0 - r * r",
            interval=_within(-1.0, 1.0),
            saturates=True,
            slots=14,
            helper="hyperbolic_tangent",
        ),
        "erf": Function(
            _erf,
            lambda x: Fraction(x + 3, x * x + 5),
            math.erf,
            derivative=f"{2 / math.sqrt(math.pi)!r} * exp(-(x * x))",
            interval=_within(-1.0, 1.0),
            saturates=True,
            slots=16,
            helper="error_function",
        ),
        "sin": Function(
            np.sin,
            lambda x: Fraction(x * x - x + 1, x * x + 4),
            math.sin,
            derivative="cos(x)",
            interval=_within(-1.0, 1.0),
            vector_since=(2, 22),
        ),
        "cos": Function(
            np.cos,
            lambda x: Fraction(2 * x + 1, x * x + 3),
            math.cos,
            derivative="-sin(x)",
            interval=_within(-1.0, 1.0),
            vector_since=(2, 22),
        ),
        "atan": Function(
            np.arctan,
            lambda x: Fraction(3 * x - 1, x * x + 7),
            math.atan,
            derivative="1.0 / (1.0 + x * x)",
            interval=_within(-math.pi / 2, math.pi / 2),
            vector_since=(2, 35),
        ),
        "floor": Function(np.floor, math.floor, math.floor, derivative=NO_SLOPE, slots=1),
        "pow": Function(
            np.power,
            lambda x, y: Fraction(x * x + y * y + x + 1, 5),
            pow,
            2,
            positive=True,
            vector_since=(2, 22),
        ),
        "abs": Function(
            np.abs,
            abs,
            abs,
            least=WEAK_INT,
            derivative="1.0 if x > 0.0 else -1.0 if x < 0.0 else 0.0",
            interval=lambda one: (max(one[0], -one[1], 0), max(-one[0], one[1])),
            slots=1,
            library="fabs",
            helper="absolute",
        ),
        "min": _extremum(_minimum, min, "minimum"),
        "max": _extremum(_maximum, max, "maximum"),
        "float32": _cast("float32", float, derivative=SLOPE_ONE),
        "float64": _cast("float64", derivative=SLOPE_ONE),
        "int32": _cast("int32", int, derivative=NO_SLOPE, interval=lambda one: one),
        "bool": _cast("bool", derivative=NO_SLOPE, interval=_within(0, 1)),
        "rand": Function(arguments=4, result="float32", derivative=NO_SLOPE, slots=60),
    }
)
"""All that expressions may call, by name."""
FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {name: known for name, known in CALLS.items() if known.floating is not None and known.least == WEAK_FLOAT}
)
"""Those that are computed in floating point, which is what the C library calls them."""
COSTLY = frozenset(name for name, known in CALLS.items() if known.slots > 1)
"""Those that take many instructions, so that an invariant call is worth a register."""
LIBRARY: Mapping[str, str] = MappingProxyType({name: CALLS[name].library or name for name in (*FUNCTIONS, "abs")})
"""What the C library calls them for doubles."""
