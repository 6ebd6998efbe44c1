"""Symbolic integers: what a mapping computes with, and how positions in a source are written.

An :class:`Index` is a sum of atoms with integer coefficients and a constant. An atom is a loop variable, or a
``//``, ``%``, ``min`` or ``max`` that cannot be simplified; each knows its smallest and largest value. That
is exactly the quasi-affine expressions that bounds and subscripts of the intermediate representation may
hold.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from typing import Any

import numpy as np

# More points than this are not enumerated to find exact bounds.
ENUMERATION_LIMIT = 4_000_000


class NotAffine(Exception):
    """An operation that leaves the quasi-affine expressions; the text says which, ``way_out`` what to write instead."""

    def __init__(self, reason: str, way_out: str | None = None):
        super().__init__(reason)
        self.way_out = way_out


@dataclass(frozen=True)
class Atom:
    """A part of a sum: its printed text (which is its identity), bounds, and the variables in it with
    theirs."""

    text: str
    low: int
    high: int
    variables: tuple[tuple[str, int, int], ...]
    exact: bool = True


class Index:
    """A quasi-affine integer expression; immutable."""

    __slots__ = ("terms", "constant")

    def __init__(self, terms: Mapping[Atom, int] | None = None, constant: int = 0):
        self.terms = {atom: factor for atom, factor in (terms or {}).items() if factor}
        self.constant = int(constant)

    # --- looking at it --------------------------------------------------------------------------------------
    @property
    def value(self) -> int | None:
        """The number, if it is one."""
        return None if self.terms else self.constant

    @property
    def low(self) -> int:
        """A lower bound; exact if no variable is in two atoms."""
        return self.constant + sum(f * (a.low if f > 0 else a.high) for a, f in self.terms.items())

    @property
    def high(self) -> int:
        """An upper bound; exact if no variable is in two atoms."""
        return self.constant + sum(f * (a.high if f > 0 else a.low) for a, f in self.terms.items())

    @property
    def variables(self) -> dict[str, tuple[int, int]]:
        """The variables in it with their smallest and largest value."""
        return {name: (low, high) for atom in self.terms for name, low, high in atom.variables}

    @property
    def text(self) -> str:
        """As Python source: ``y * 2 + ky - 1``."""
        text = ""
        for atom, factor in self.terms.items():
            size = abs(factor)
            part = atom.text if size == 1 else f"{_parenthesised(atom.text)} * {size}"
            if text:
                part = _parenthesised(part) if factor < 0 and size == 1 else part
                text += f" {'+' if factor > 0 else '-'} {part}"
            else:
                text = part if factor > 0 else f"-{_parenthesised(atom.text)}" + (f" * {size}" if size != 1 else "")
        if not text:
            return str(self.constant)
        if self.constant:
            text += f" {'+' if self.constant > 0 else '-'} {abs(self.constant)}"
        return text

    @property
    def tree(self) -> ast.expr:
        """As a tree of the intermediate representation."""
        return ast.parse(self.text, mode="eval").body

    def __repr__(self) -> str:
        return self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def values(self, points: Mapping[str, np.ndarray]) -> np.ndarray:
        """Its value at points of its variables (arrays that broadcast)."""
        environment = {
            **points,
            "min": lambda *a: reduce(np.minimum, a),
            "max": lambda *a: reduce(np.maximum, a),
        }
        return np.asarray(eval(self.text, {"__builtins__": {}}, environment))  # text that this class wrote

    # --- arithmetic -----------------------------------------------------------------------------------------
    def __add__(self, other: Any) -> Index:
        other = as_index(other)
        terms = dict(self.terms)
        for atom, factor in other.terms.items():
            terms[atom] = terms.get(atom, 0) + factor
        return Index(terms, self.constant + other.constant)

    def __mul__(self, other: Any) -> Index:
        other = as_index(other)
        if other.value is None:
            if self.value is None:
                raise NotAffine(f"it multiplies {self} by {other}")
            return other * self.value
        factor = other.value
        return Index({atom: f * factor for atom, f in self.terms.items()}, self.constant * factor)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Index:
        return self * -1

    def __pos__(self) -> Index:
        return self

    def __abs__(self) -> Index:
        return _extreme("max", (self, -self))

    def __sub__(self, other: Any) -> Index:
        return self + -as_index(other)

    def __rsub__(self, other: Any) -> Index:
        return as_index(other) + -self

    def __floordiv__(self, other: Any) -> Index:
        divisor = self._divisor(other, "//")
        whole, rest = self._split(divisor)
        if rest.low // divisor == rest.high // divisor:
            return whole + rest.low // divisor
        text = f"{_parenthesised(rest.text)} // {divisor}"
        return whole + _atom(text, rest.low // divisor, rest.high // divisor, [rest])

    def __mod__(self, other: Any) -> Index:
        divisor = self._divisor(other, "%")
        _, rest = self._split(divisor)
        if rest.low // divisor == rest.high // divisor:
            return rest - rest.low // divisor * divisor
        return _atom(f"{_parenthesised(rest.text)} % {divisor}", 0, divisor - 1, [rest], exact=False)

    def _divisor(self, other: Any, symbol: str) -> int:
        divisor = as_index(other).value
        if divisor is None or divisor <= 0:
            raise NotAffine(f"it computes {self} {symbol} {other}; the divisor must be a positive constant")
        return divisor

    def _split(self, divisor: int) -> tuple[Index, Index]:
        """``(whole, rest)`` with ``self == whole * divisor + rest``."""
        whole = {atom: factor // divisor for atom, factor in self.terms.items()}
        rest = {atom: factor % divisor for atom, factor in self.terms.items()}
        return Index(whole, self.constant // divisor), Index(rest, self.constant % divisor)

    def __rfloordiv__(self, other: Any) -> Index:
        raise NotAffine(f"it divides by {self}")

    def __truediv__(self, other: Any) -> Index:
        raise NotAffine(f"it computes {self} / {other}, which is not an integer; write //")

    __rtruediv__ = __rmod__ = __rfloordiv__

    def __pow__(self, other: Any) -> Index:
        raise NotAffine(f"it computes {self} ** {other}")

    # --- what would need a number ---------------------------------------------------------------------------
    def _decide(self, other: Any, compare: Callable[[int, int], bool]) -> bool:
        difference = self - as_index(other)
        outcomes = {compare(difference.low, 0), compare(difference.high, 0)}
        if compare is operator.eq and difference.low < 0 < difference.high:
            outcomes.add(True)
        if len(outcomes) == 1:
            return outcomes.pop()
        raise NotAffine(f"it branches on {self}; only abs, min and max may choose")

    def __lt__(self, other: Any) -> bool:
        return self._decide(other, operator.lt)

    def __le__(self, other: Any) -> bool:
        return self._decide(other, operator.le)

    def __gt__(self, other: Any) -> bool:
        return self._decide(other, operator.gt)

    def __ge__(self, other: Any) -> bool:
        return self._decide(other, operator.ge)

    def __eq__(self, other: object) -> bool:
        return self._decide(other, operator.eq)

    def __ne__(self, other: object) -> bool:
        return not self._decide(other, operator.eq)

    def __bool__(self) -> bool:
        return self != 0

    def __index__(self) -> int:
        if self.value is None:
            raise NotAffine(
                f"it needs the number that {self} stands for (only +, -, *, //, %, abs, min, max are known)"
            )
        return self.value

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())


def _parenthesised(text: str) -> str:
    return (
        text
        if text.isidentifier() or text.endswith(")") and text.startswith(("min(", "max(")) and (_closes_at_end(text))
        else f"({text})"
    )


def _closes_at_end(text: str) -> bool:
    """Whether the first bracket of ``text`` closes at its end (``min(a, b)``, not ``min(a, b) - max(c,
    d)``)."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == ")" and depth == 0:
            return position == len(text) - 1
    return False


def _atom(text: str, low: int, high: int, parts: list[Index], exact: bool = True) -> Index:
    variables = {name: bounds for part in parts for name, bounds in part.variables.items()}
    triples = tuple((name, *bounds) for name, bounds in variables.items())
    return Index({Atom(text, low, high, triples, exact): 1})


def variable(name: str, low: int, high: int) -> Index:
    """A loop variable that runs from ``low`` to ``high``, both included."""
    return Index({Atom(name, low, high, ((name, low, high),)): 1})


def as_index(value: Any) -> Index:
    """An integer or an index as an :class:`Index`.

    Raises:
        NotAffine: for anything else.
    """
    if isinstance(value, Index):
        return value
    if isinstance(value, (int, np.integer)):
        return Index(constant=int(value))
    raise NotAffine(f"it uses {value!r}, which is not an integer")


def _extreme(name: str, arguments: tuple[Any, ...]) -> Index:
    if len(arguments) == 1 and isinstance(arguments[0], (tuple, list)):
        arguments = tuple(arguments[0])
    sign = 1 if name == "max" else -1
    kept: list[Index] = []
    for argument in map(as_index, arguments):
        # Dropped where another one is never on the wrong side of it.
        if any(((other - argument) * sign).low >= 0 for other in kept):
            continue
        kept = [other for other in kept if ((argument - other) * sign).low < 0]
        kept.append(argument)
    if len(kept) == 1:
        return kept[0]
    choose = max if name == "max" else min
    low, high = choose(part.low for part in kept), choose(part.high for part in kept)
    # One of two is on the right side of their mean: abs(t - 1), and min(t, 2 * T - 2 - t), stay inside of T.
    sums = [a + b for a, b in combinations(kept, 2)]
    if name == "max":
        low = max(low, *(-(-total.low // 2) for total in sums))
    else:
        high = min(high, *(total.high // 2 for total in sums))
    return _atom(f"{name}({', '.join(part.text for part in kept)})", low, high, kept, exact=False)


def minimum(*arguments: Any) -> Any:
    """``min`` for numbers and symbolic integers."""
    return _extreme("min", arguments) if _symbolic(arguments) else min(*arguments)


def maximum(*arguments: Any) -> Any:
    """``max`` for numbers and symbolic integers."""
    return _extreme("max", arguments) if _symbolic(arguments) else max(*arguments)


def _symbolic(arguments: tuple[Any, ...]) -> bool:
    flat = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], (tuple, list)) else arguments
    return any(isinstance(argument, Index) for argument in flat)


def grid(*parts: Index) -> dict[str, np.ndarray] | None:
    """All points of the variables in ``parts``, as arrays that broadcast; None where they are too many."""
    bounds = {name: pair for part in parts for name, pair in part.variables.items()}
    if math.prod(high - low + 1 for low, high in bounds.values()) > ENUMERATION_LIMIT:
        return None
    axes = [np.arange(low, high + 1) for low, high in bounds.values()]
    return dict(zip(bounds, np.meshgrid(*axes, indexing="ij", sparse=True), strict=True))
