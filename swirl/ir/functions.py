"""The functions of the mathematical library that programs call: all that the compiler knows of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Function:
    """A function that is computed in floating point.

    Args:
        floating: on NumPy's numbers, in their own type.
        rational: what stands for it in exact arithmetic: a rational function without the algebraic laws that a
            command might wrongly use.
        derivative: in ``x``, the argument, and ``r``, the result; None where it has none, or a rule of its own.
        positive: whether it has a value for positive numbers only.
        costly: whether it takes many instructions, so that an invariant call is worth a register.
        vector_since: the release of glibc whose libmvec is called for vectors; None where nothing is called.
        vector_helper: the helper function that computes it for vectors; None where it is one instruction, or a call.
        arguments: how many it takes.
    """

    floating: Callable[..., Any]
    rational: Callable[..., Any]
    derivative: str | None = None
    positive: bool = False
    costly: bool = True
    vector_since: tuple[int, int] | None = None
    vector_helper: str | None = None
    arguments: int = 1

    @property
    def correctly_rounded(self) -> bool:
        """Whether it has the same bits wherever it is computed: it is one instruction."""
        return self.vector_since is None and self.vector_helper is None


def _erf(x: Any) -> Any:
    """NumPy has none."""
    return np.asarray(x).dtype.type(math.erf(x))


FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "sqrt": Function(np.sqrt, lambda x: Fraction(x * x + 3, x * x + x + 11), "0.5 / r", positive=True),
        "exp": Function(np.exp, lambda x: Fraction(x * x + 5, 7), "r", vector_helper="exponential"),
        "expm1": Function(
            np.expm1, lambda x: Fraction(x * x - x + 2, 11), "exp(x)", vector_helper="exponential_minus_1"
        ),
        "log": Function(np.log, lambda x: Fraction(x * x - 2, 3), "1.0 / x", positive=True, vector_since=(2, 22)),
        "log1p": Function(np.log1p, lambda x: Fraction(x * x + 4 * x, 9), "1.0 / (1.0 + x)", vector_since=(2, 35)),
        "tanh": Function(
            np.tanh, lambda x: Fraction(x + 1, x * x + 2), "1.0 - r * r", vector_helper="hyperbolic_tangent"
        ),
        "erf": Function(
            _erf,
            lambda x: Fraction(x + 3, x * x + 5),
            f"{2 / math.sqrt(math.pi)!r} * exp(-(x * x))",
            vector_helper="error_function",
        ),
        "sin": Function(np.sin, lambda x: Fraction(x * x - x + 1, x * x + 4), "cos(x)", vector_since=(2, 22)),
        "cos": Function(np.cos, lambda x: Fraction(2 * x + 1, x * x + 3), "-sin(x)", vector_since=(2, 22)),
        "floor": Function(np.floor, math.floor, costly=False),
        "pow": Function(
            np.power,
            lambda x, y: Fraction(x * x + y * y + x + 1, 5),
            positive=True,
            vector_since=(2, 22),
            arguments=2,
        ),
    }
)
"""By name, which is the C library's for a double; the one for a float ends in ``f``."""
COSTLY = frozenset(name for name, function in FUNCTIONS.items() if function.costly)
"""Functions that take many instructions."""
