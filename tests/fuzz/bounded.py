"""Numbers that know how far another order of the same arithmetic may lead, and programs executed with them.

A command may sum in another order, multiply by a reciprocal instead of dividing, or expand a product. A
:class:`Number` is what the program computes as written, together with

- ``size``: the same expression with every operand's absolute value, which no order of additions changes; of an
  infinity or NaN, that of the finite terms that were added to it, as these may overflow by themselves;
- ``steps``: how many roundings lead to it, in any order (each of at most ``2**-24`` or ``2**-53`` of ``size``);
- ``grain``: a power of two that divides the value and all its summands; 0 where something was rounded. As long as
  ``size / grain`` fits a mantissa, every order is exact;
- ``factors`` of a product, and the products of those above 1 (``high``) and below (``low``): the extremes that some of
  them may reach in another order.

So each admissible result lies within ``steps * size`` of the value (Higham, Accuracy and Stability of Numerical
Algorithms, section 4.2), and is exactly that value where there is a grain. The sign of a zero is open. A value that
overflows in some order and not in others, or divides by what may be zero, is unknown. Where a condition depends on less
than the bound, the data do not decide it (:class:`Undecided`).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from swirl.ir.arithmetic import philox
from swirl.ir.names import buffers_in_scope
from swirl.ir.nest import Program, clone, local_type
from swirl.ir.operations import FUNCTIONS
from swirl.ir.trees import located
from swirl.ir.types import Conversions


@dataclass(frozen=True)
class _Format:
    """A type's roundoff, greatest, least normal and least number."""

    roundoff: float
    greatest: float
    normal: float
    least: float


_DOUBLE = _Format(2.0**-53, float(np.finfo(np.float64).max), 2.0**-1022, 2.0**-1074)
FORMATS = {"float32": _Format(2.0**-24, float(np.finfo(np.float32).max), 2.0**-126, 2.0**-149), "float64": _DOUBLE}


class Undecided(Exception):
    """A condition depends on the order of arithmetic."""


class Number:
    """A floating-point value of a type, with what is known of it (see the module)."""

    __slots__ = ("dtype", "factors", "grain", "high", "low", "size", "steps", "unknown", "value")

    def __init__(
        self,
        value: float,
        dtype: str,
        size: float | None = None,
        steps: float = 0.0,
        grain: float | None = None,
        unknown: bool = False,
    ):
        self.value, self.dtype, self.steps, self.unknown = value, dtype, steps, unknown
        if size is None:
            size = abs(value) if math.isfinite(value) else 0.0
        self.size = size
        self.grain = lowest_bit(value) if grain is None else grain
        self.factors = int(abs(value) != 1.0)
        self.high = self.low = 1.0
        if math.isfinite(value):
            self.high, self.low = max(1.0, abs(value)), min(1.0, abs(value) or 1.0)

    def __repr__(self) -> str:
        return f"{'unknown ' if self.unknown else ''}{self.value!r} ± {self.error:.3g}"

    @property
    def error(self) -> float:
        """How far from the value any order may be."""
        return 0.0 if self.grain or not self.finite else self.spread

    @property
    def spread(self) -> float:
        """The same where products are expanded, so that exact values are no longer exact."""
        return self.steps * self.size if self.size else 0.0

    @property
    def finite(self) -> bool:
        return math.isfinite(self.value)

    def sign(self) -> int:
        """-1, 0 or 1; raises where it is not certain."""
        if self.unknown or (self.finite and not self.grain and abs(self.value) <= self.error):
            raise Undecided
        return (self.value > 0) - (self.value < 0)

    # --- arithmetic
    def __add__(self, other: Number) -> Number:
        return _sum(self, other, 1)

    def __sub__(self, other: Number) -> Number:
        return _sum(self, other, -1)

    def __mul__(self, other: Number) -> Number:
        return _product(self, other)

    def __truediv__(self, other: Number) -> Number:
        return _quotient(self, other)

    def __floordiv__(self, other: Number) -> Number:
        return _certain(np.floor_divide, self, other)

    def __mod__(self, other: Number) -> Number:
        return _certain(np.remainder, self, other)

    def __neg__(self) -> Number:
        return Number(-self.value, self.dtype, self.size, self.steps, self.grain, self.unknown)

    def __abs__(self) -> Number:
        return Number(abs(self.value), self.dtype, self.size, self.steps, self.grain, self.unknown)

    # --- conditions
    def _difference(self, other: Number) -> float:
        one, two = self, other
        if one.unknown or two.unknown:
            raise Undecided
        if not (one.finite and two.finite):
            if math.isnan(one.value) or math.isnan(two.value):
                return math.nan
            return 0.0 if one.value == two.value else (1.0 if one.value > two.value else -1.0)
        gap, error = one.value - two.value, one.error + two.error
        if error and abs(gap) <= 2 * error:
            raise Undecided
        return gap

    def __lt__(self, other: Number) -> bool:
        return self._difference(other) < 0

    def __le__(self, other: Number) -> bool:
        return self._difference(other) <= 0

    def __gt__(self, other: Number) -> bool:
        return self._difference(other) > 0

    def __ge__(self, other: Number) -> bool:
        return self._difference(other) >= 0

    def __eq__(self, other: object) -> bool:
        if self is other and not self.unknown:  # x == x, whatever x is
            return not math.isnan(self.value)
        assert isinstance(other, Number)
        return self._difference(other) == 0

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return math.isnan(self.value) and not self.unknown or self.sign() != 0


class Whole(int):
    """An int32, which wraps."""

    def __new__(cls, value: Any) -> Whole:
        return super().__new__(cls, (int(value) + 2**31) % 2**32 - 2**31)


def _integer(name: str) -> None:
    plain: Callable[..., Any] = getattr(int, name)

    def operator(self: Whole, *others: Any) -> Any:
        if name.strip("_") in ("floordiv", "mod", "rfloordiv", "rmod") and (self if "__r" in name else others[0]) == 0:
            return Whole(0)
        return Whole(plain(self, *others))

    setattr(Whole, name, operator)


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv", "mod", "rmod", "neg", "abs"):
    _integer(f"__{_name}__")


def lowest_bit(value: float) -> float:
    """The greatest power of two that divides a number; infinite for 0 and what is not finite."""
    if value == 0 or not math.isfinite(value):
        return math.inf
    mantissa, exponent = math.frexp(value)
    scaled = int(math.ldexp(mantissa, 53))
    return math.ldexp(scaled & -scaled, exponent - 53)


def number(value: Any, dtype: str) -> Number:
    """``float32(x)``, ``float64(x)`` of a number, an int or a bool."""
    return converted(value if isinstance(value, Number) else Number(float(value), "float64"), dtype)


def converted(x: Number, dtype: str) -> Number:
    """A number in another type."""
    if x.dtype == dtype:
        return x
    if x.unknown:
        return _unknown(dtype)
    if x.grain or not x.finite:  # a certain value has a certain rounding
        with np.errstate(over="ignore"):
            return Number(float(np.float32(x.value)) if dtype == "float32" else x.value, dtype)
    steps = x.steps + FORMATS[dtype].roundoff * (dtype == "float32")
    return _rounded(x.value, dtype, x.size, steps, x.grain, True)


def _unknown(dtype: str) -> Number:
    return Number(math.nan, dtype, math.inf, math.inf, 0.0, unknown=True)


def _rounded(value: float, dtype: str, size: float, steps: float, grain: float, finite: bool) -> Number:
    """The result of an operation; ``finite``: its operands are."""
    form = FORMATS[dtype]
    if math.isnan(value) and not finite:
        return Number(value, dtype)
    if not size <= form.greatest or math.isnan(value):
        return _unknown(dtype)
    if not finite:  # an infinity is the same in every order, as long as the rest does not overflow
        return Number(value, dtype, size)
    if size == 0:
        return Number(value, dtype, 0.0, steps, math.inf)
    if not form.least <= grain or size > grain / form.roundoff:
        grain, size = 0.0, max(size, form.normal)  # below, the rounding is absolute
        value = float(np.float32(value)) if dtype == "float32" else value
    return Number(value, dtype, size, steps, grain)


def _sum(one: Number, two: Number, sign: int) -> Number:
    if one.unknown or two.unknown:
        return _unknown(one.dtype)
    steps = one.steps + two.steps + FORMATS[one.dtype].roundoff
    finite, grain = one.finite and two.finite, min(one.grain, two.grain)
    return _rounded(one.value + sign * two.value, one.dtype, one.size + two.size, steps, grain, finite)


def _product(one: Number, two: Number) -> Number:
    form, factors = FORMATS[one.dtype], one.factors + two.factors
    high, low = one.high * two.high, one.low * two.low
    known = math.isnan(one.value) or math.isnan(two.value) or (high <= form.greatest and low >= form.normal)
    if factors > 2 and not known:
        return _unknown(one.dtype)
    result = _of_two(one, two)
    result.factors, result.high, result.low = factors, high, low
    return result


def _of_two(one: Number, two: Number) -> Number:
    if one.unknown or two.unknown:
        return _unknown(one.dtype)
    finite = one.finite and two.finite
    if not finite and not (math.isnan(one.value) or math.isnan(two.value)):
        try:
            sign = one.sign() * two.sign()
        except Undecided:
            return _unknown(one.dtype)
        return Number(math.inf * sign if sign else math.nan, one.dtype)
    steps = one.steps + two.steps + FORMATS[one.dtype].roundoff
    if one.value == 0 and one.grain or two.value == 0 and two.grain:
        return Number(one.value * two.value, one.dtype, 0.0, steps, math.inf)
    grain = one.grain * two.grain if math.isfinite(one.grain * two.grain) else 0.0
    return _rounded(one.value * two.value, one.dtype, one.size * two.size, steps, grain, finite)


def _quotient(one: Number, two: Number) -> Number:
    """Also as a product with the reciprocal."""
    dtype = one.dtype
    if one.unknown or two.unknown:
        return _unknown(dtype)
    if math.isnan(one.value) or math.isnan(two.value):
        return Number(math.nan, dtype)
    try:
        signs = one.sign() if not two.finite or not one.finite else 1, two.sign()
    except Undecided:
        return _unknown(dtype)
    if signs[1] == 0:  # the sign of a zero is open
        return _unknown(dtype) if one.value or not one.grain else Number(math.nan, dtype)
    if not one.finite:
        return Number(math.nan if not two.finite else signs[0] * signs[1] * math.inf, dtype)
    if not two.finite:
        return Number(0.0, dtype)
    divisor = abs(two.value)
    normal = FORMATS[dtype].normal
    if not normal <= divisor <= 1 / normal or two.error > divisor / 8:  # the reciprocal may not be a normal number
        return _unknown(dtype)
    value = one.value / two.value
    if two.grain and divisor == lowest_bit(divisor):  # by a power of two
        steps = one.steps + FORMATS[dtype].roundoff
        return _rounded(value, dtype, one.size / divisor, steps, one.grain / divisor, True)
    size = one.size / divisor + abs(value) * two.size / divisor
    return _rounded(value, dtype, size, max(one.steps, two.steps) + 3 * FORMATS[dtype].roundoff, 0.0, True)


def _certain(function: Callable[[Any, Any], Any], one: Number, two: Number) -> Number:
    """The result of a function with jumps is known only for a known argument."""
    if one.unknown or two.unknown or not all(part.grain or not part.finite for part in (one, two)):
        return _unknown(one.dtype)
    kind = np.float32 if one.dtype == "float32" else np.float64
    return Number(float(function(kind(one.value), kind(two.value))), one.dtype)


# --- calls ----------------------------------------------------------------------------------------------
def _smooth(function: Callable[[Any], Any], slope: Callable[[float], float]) -> Callable[[Any], Number]:
    """A function of one argument, with its derivative."""

    def call(x: Number) -> Number:
        if x.unknown:
            return x
        value = float(function(np.float32(x.value) if x.dtype == "float32" else np.float64(x.value)))
        if x.grain or not x.finite:  # the same call of the same value
            return Number(value, x.dtype)
        near = [x.value + times * x.error for times in (-2, -1, 0, 1, 2)]
        if not all(math.isfinite(float(function(np.float64(v)))) for v in near) or not math.isfinite(value):
            return _unknown(x.dtype)
        steepest = max(abs(slope(v)) for v in near[1:4])
        steps = x.steps + 4 * FORMATS[x.dtype].roundoff
        if not math.isfinite(steepest):
            return _unknown(x.dtype)
        return _rounded(value, x.dtype, abs(value) + 2 * steepest * x.size, steps, 0.0, True)

    return call


def _power(x: Number, y: Number) -> Number:
    if x.unknown or y.unknown:
        return _unknown(x.dtype)
    kind = np.float32 if x.dtype == "float32" else np.float64
    value = float(np.power(kind(x.value), kind(y.value)))
    if all(part.grain or not part.finite for part in (x, y)):
        return Number(value, x.dtype)
    if not (x.finite and y.finite and math.isfinite(value)) or x.value <= 2 * x.error:
        return _unknown(x.dtype)
    size = abs(value) * (1 + 2 * abs(y.value) * x.size / x.value + 2 * abs(math.log(x.value)) * y.size)
    return _rounded(value, x.dtype, size, x.steps + y.steps + 8 * FORMATS[x.dtype].roundoff, 0.0, True)


def _floor(x: Number) -> Number:
    """``floor``, where no order of arithmetic leads across a whole number."""
    if x.unknown or not x.finite:
        return x
    low, high = x.value - x.error, x.value + x.error
    if not (math.isfinite(low) and math.isfinite(high)) or math.floor(low) != math.floor(high):
        return _unknown(x.dtype)
    return Number(math.copysign(math.floor(x.value), x.value), x.dtype)


def _greatest(sign: int) -> Callable[..., Any]:
    def call(first: Any, *others: Any) -> Any:
        for other in others:
            if not isinstance(first, Number):
                first = max(first, other) if sign > 0 else min(first, other)
                continue
            one, two = first, other
            if one.unknown or two.unknown:
                first = _unknown(one.dtype)
            elif math.isnan(one.value) or math.isnan(two.value):
                first = Number(math.nan, one.dtype)
            else:
                first, rest = (one, two) if sign * one.value >= sign * two.value else (two, one)
                if first.error + rest.error and abs(first.value - rest.value) <= first.error + rest.error:
                    size, steps = max(one.size, two.size), max(one.steps, two.steps)
                    first = Number(first.value, one.dtype, size, steps, 0.0)
        return first

    return call


def _whole(value: Any) -> int:
    """``int32(x)``."""
    if not isinstance(value, Number):
        return Whole(value)
    if value.unknown:
        raise Undecided
    if not value.finite:
        return Whole(-(2**31))
    low, high = value.value - value.error, value.value + value.error
    if low >= 2**31 or high <= -(2**31) - 1:
        return Whole(-(2**31))
    if not (math.isfinite(low) and math.isfinite(high)) or math.trunc(low) != math.trunc(high):
        raise Undecided
    return Whole(math.trunc(low))


CASTS: dict[str, Callable[[Any], Any]] = {
    "float32": lambda x: number(x, "float32"),
    "float64": lambda x: number(x, "float64"),
    "int32": _whole,
    "bool": bool,
}


def _loop(*arguments: Any, **_: object) -> range:
    return range(*map(int, arguments))


CALLS: dict[str, Callable[..., Any]] = {
    **CASTS,
    "sqrt": _smooth(np.sqrt, lambda x: 0.5 / math.sqrt(x) if x > 0 else math.inf),
    "exp": _smooth(np.exp, lambda x: float(np.exp(np.float64(x)))),
    "log": _smooth(np.log, lambda x: 1 / x if x else math.inf),
    "tanh": _smooth(np.tanh, lambda x: 1.0),
    "erf": _smooth(FUNCTIONS["erf"].floating, lambda x: 1.2),
    "sin": _smooth(np.sin, lambda x: 1.0),
    "cos": _smooth(np.cos, lambda x: 1.0),
    "atan": _smooth(np.arctan, lambda x: 1.0),
    "expm1": _smooth(np.expm1, lambda x: float(np.exp(np.float64(x)))),
    "log1p": _smooth(np.log1p, lambda x: 1 / (1 + x) if x > -1 else math.inf),
    "abs": abs,
    "pow": _power,
    "floor": _floor,
    "max": _greatest(1),
    "min": _greatest(-1),
    "rand": lambda *arguments: Number((philox(*map(int, arguments)) >> 8) * 2.0**-24, "float32"),
    "range": _loop,
    "parallel": _loop,
    "vector": _loop,
    "unrolled": _loop,
    "stream": lambda x: x,
    "prefetch": lambda *_: None,
}


# --- programs -------------------------------------------------------------------------------------------
class _Array:
    """An array of numbers of one type."""

    def __init__(self, array: np.ndarray, dtype: str, readable: tuple[tuple[int, int], ...] | None = None):
        self.cast, self.shape = CASTS[dtype], array.shape
        self.zero = self.cast(0)
        self.readable = readable
        self.values = np.empty(array.shape, object)
        for index in np.ndindex(array.shape):
            self.values[index] = self.cast(array[index].item())

    def __getitem__(self, index: Any) -> Any:
        if self.readable is not None:
            where = index if isinstance(index, tuple) else (index,)
            if not all(0 <= i < extent for i, extent in zip(where, self.shape, strict=True)):
                assert all(low <= i < high for i, (low, high) in zip(where, self.readable, strict=True))
                return self.zero
        return self.values[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.values[index] = self.cast(value)


class _Python(ast.NodeTransformer):
    """Declarations as Python runs them."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        kind = local_type(node)
        assert node.value is not None
        if not kind.shape:
            return ast.Assign([node.target], node.value)
        arguments: list[ast.expr] = [ast.Constant(part) for part in (kind.dtype, *kind.shape)]
        return ast.Assign([node.target], ast.Call(ast.Name("empty", ast.Load()), arguments, []))


class _Literals:
    """Literals, each a number of the type that it takes, by the names that stand for them."""

    def __init__(self) -> None:
        self.numbers: dict[str, Any] = {}

    def leaf(self, node: ast.expr, dtype: str) -> ast.expr:
        """The name that stands for a literal or a loop variable of that type."""
        if isinstance(node, ast.Name):
            return ast.Call(ast.Name(dtype, ast.Load()), [node], [])
        assert isinstance(node, ast.Constant)
        name = f"number_{len(self.numbers)}"
        self.numbers[name] = CASTS[dtype](node.value)
        return ast.Name(name, ast.Load())


def bounded(program: Program, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The results of a program, as arrays of :class:`Number`, int and bool.

    Raises:
        Undecided: the data leave a condition open.
    """
    given = {}
    for name in sorted({name for nest in program.nests for name in nest.arguments}):
        buffer = program.buffers[name]
        array = arrays[name] if name in arrays else np.full(buffer.shape, np.nan if buffer.dtype[0] == "f" else 1)
        given[name] = _Array(array, buffer.dtype, buffer.layout.readable(buffer.shape) if buffer.layout.halo else None)
    scope: dict[str, Any] = dict(CALLS)
    scope["empty"] = lambda dtype, *shape: _Array(np.full(shape, np.nan if dtype[0] == "f" else 0), dtype)
    with np.errstate(all="ignore"):
        for nest in program.nests:
            literals = _Literals()
            body = Conversions(literals.leaf).block(nest.body, buffers_in_scope(program.buffers))
            function = _Python().visit(clone(nest.with_body(body).function))
            scope |= literals.numbers
            exec(compile(ast.Module([located(function)], []), f"<{nest.label}>", "exec"), scope)
            scope[nest.label](*(given[name] for name in nest.arguments))
    return {name: array.values for name, array in given.items()}


def outside(
    got: np.ndarray, expected: np.ndarray, slack: float, expanded: bool = False, finite: bool = False
) -> tuple[int, ...] | None:
    """The first element that no order of the arithmetic leads to, or None.

    Args:
        got: of NumPy's types.
        expected: of :class:`Number`, int or bool.
        slack: how many times the bound is admitted: 2 for its own terms of higher order.
        expanded: whether products may have been expanded.
        finite: whether a command has assumed that numbers are finite: nothing is claimed of elements that are not.
    """
    for index in np.ndindex(got.shape):
        number, value = expected[index], got[index].item()
        if not isinstance(number, Number):
            wrong = number != value
        elif number.unknown or (finite and not number.finite):
            wrong = False
        elif not number.finite:
            wrong = value != number.value and not (math.isnan(value) and math.isnan(number.value))
        else:
            wrong = not abs(value - number.value) <= slack * (number.spread if expanded else number.error)
        if wrong:
            return index
    return None
