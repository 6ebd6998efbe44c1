"""Random expressions of each type, over what is visible at a place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Pick = Callable[[Sequence[Any]], Any]

READ: dict[str, tuple[str, ...]] = {"float32": ("x", "w", "f"), "int32": ("n",), "bool": ("b",), "float64": ("a",)}
"""Buffers that are only read, by the types of their elements."""
KINDS: dict[str, tuple[str, ...]] = {
    "floats": ("float32",),
    "mixed": ("float32", "int32", "bool"),
    "all types": ("float32", "float64", "int32", "bool"),
}
"""The types of a program."""

LITERALS = ("3", "1", "0", "-2", "16777217", "16777215", "2147483647", "-2147483647", "715827883")


@dataclass
class Scope:
    """What is visible at a place: loop variables with their ranges, locals with their types, and the product of the
    extents."""

    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    scalars: dict[str, str] = field(default_factory=dict)
    work: int = 1

    def inside(self, var: str, low: int, high: int, extent: int) -> Scope:
        return Scope({**self.ranges, var: (low, high)}, dict(self.scalars), self.work * max(1, extent))

    def copy(self) -> Scope:
        return Scope(dict(self.ranges), dict(self.scalars), self.work)

    def locals_of(self, dtype: str) -> list[str]:
        """The locals of a type; of both floating-point types for ``float32``."""
        return [name for name, own in self.scalars.items() if own == dtype or dtype == "float32" and own == "float64"]


class Expressions:
    """Makes expressions of choices.

    Args:
        pick: takes one of a sequence; the first is the simplest.
        element: an element of a buffer with subscripts that lie inside of it.
        written: buffers that may be read and written, by type.
    """

    def __init__(self, pick: Pick, element: Callable[[str, Scope], str], written: dict[str, tuple[str, ...]]):
        self.pick, self.element, self.written = pick, element, written
        self.types: tuple[str, ...] = KINDS["floats"]

    def chance(self, *weights: int) -> int:
        """An index, as likely as its weight."""
        return int(self.pick([index for index, weight in enumerate(weights) for _ in range(weight)]))

    @property
    def mixed(self) -> bool:
        return len(self.types) > 1

    def of(self, dtype: str, scope: Scope) -> str:
        """An expression of a type; now and then of another one, which is converted."""
        if self.mixed and self.chance(4, 1):
            dtype = self.pick(self.types)
        if dtype == "int32":
            return self.integer(scope)
        return self.condition(scope, True) if dtype == "bool" else self.floating(scope)

    # --- leaves
    def input(self, scope: Scope, dtype: str = "float32") -> str:
        if dtype == "float32" and "float64" in self.types and self.chance(3, 1):
            dtype = "float64"
        return self.element(self.pick(READ[dtype]), scope)

    def value(self, scope: Scope, dtype: str = "float32") -> str:
        scalars = scope.locals_of(dtype)
        if scalars and self.chance(1, 1):
            return str(self.pick(scalars))
        names = [*self.written[dtype], *READ[dtype][:1]]
        if dtype == "float32" and "float64" in self.types:
            names += self.written["float64"]
        return self.element(self.pick(names), scope)

    def operand(self, scope: Scope, dtype: str = "float32") -> str:
        """A value, now and then an expression of its own."""
        if self.chance(5, 1):
            return f"({self.integer(scope) if dtype == 'int32' else self.floating(scope)})"
        return self.value(scope, dtype)

    # --- numbers
    def floating(self, scope: Scope) -> str:
        kind = self.chance(6, 2, 4 if self.mixed else 0)
        v, i, j = self.operand(scope), self.input(scope), self.input(scope)
        if kind == 1:
            return self.unusual(scope, v, i)
        if kind == 2:
            return self.converted(scope, v)
        form = self.pick(
            (
                "{i}",
                "{v}",
                "{v} + {i}",
                "{v} * {i}",
                "{i} * {j} + {v}",
                "({v} - {i}) / 4.0",
                "{v} / sqrt({i} + 0.5)",
                "{i} / sqrt({j})",
                "max({v}, {i})",
                "({v} if {c} else {i})",
                "0.0",
                "{v} - {v} * {i}",
                "exp({i}) + {v}",
            )
        )
        return str(form.format(v=v, i=i, j=j, c=self.condition(scope, True) if "{c}" in form else ""))

    def unusual(self, scope: Scope, v: str, i: str) -> str:
        """Values of conditions, and calls that are rare in layers."""
        form = self.pick(
            (
                "abs({v}) - {i}",
                "-{i}",
                "({i} and {v})",
                "({v} or {i})",
                "({v} if {v} != {v} else {i})",
                "({c} and {v})",
                "({i} if not {c} else 0.5)",
                "floor({i}) + {v}",
                "min({v}, {i}, 1.5)",
                "{v} / {i}",
                "tanh({i})",
                "erf({i}) - {v}",
                "expm1({i})",
                "log1p({i}) + {v}",
                "sin({i}) * {v}",
                "cos({i})",
                "atan({i}) * {v}",
                "pow({i}, 2.0)",
                "log({i}) + {v}",
            )
        )
        return str(form.format(v=v, i=i, c=self.condition(scope, True) if "{c}" in form else ""))

    def converted(self, scope: Scope, v: str) -> str:
        """Other types in floating-point arithmetic, with a cast or without."""
        form = self.pick(
            (
                "float32({n})",
                "{v} + {n}",
                "{v} * float32({n})",
                "{n} / 4.0",
                "sqrt({n} + 0.5)",
                "{v} + float32({b})",
                "max({v}, {n})",
                "({v} if {b} else {n})",
                "({n} and {v})",
                "{v} - {l}",
                "abs({n}) * {v}",
            )
        )
        if "float64" in self.types and self.chance(1, 1):
            form = self.pick(
                (
                    "float32(float64({v}) * 16777217.0)",
                    "float64({v}) + {v}",
                    "float32(float64({v}) - {n})",
                    "float64({n}) * {v}",
                    "float32({v}) + {v}",
                    "sqrt(float64({v}))",
                )
            )
        loops = list(scope.ranges) or ["2"]
        return str(form.format(v=v, n=self.integer(scope, leaf=True), b=self.input(scope, "bool"), l=self.pick(loops)))

    def integer(self, scope: Scope, leaf: bool = False) -> str:
        """An expression of int32: of small numbers, and of numbers that wrap or that no float32 holds."""
        kind = self.chance(3, 1, 1)
        names = list(scope.ranges)
        n = self.operand(scope, "int32") if kind == 0 else self.input(scope, "int32")
        if kind == 1 and names:
            n = self.pick(names)
        if leaf:
            return str(n)
        m = self.input(scope, "int32") if self.chance(2, 1) == 0 else self.pick((*LITERALS, *names))
        form = self.pick(
            (
                "{n}",
                "{n} + {m}",
                "{n} * {m}",
                "{n} - {m}",
                "max({n}, {m})",
                "min({n}, {m}, 5)",
                "{n} // 4",
                "{n} % 5",
                "{n} * 3 + {m}",
                "abs({n})",
                "({n} if {c} else {m})",
                "int32({v})",
                "({n} or {m})",
                "({n} * 3 + {m}) // 2",
                "{n} // {m}",
                "{n} % {m}",
                "-{n}",
                "int32({b})",
            )
        )
        return str(
            form.format(
                n=n,
                m=m,
                v=self.value(scope),
                b=self.input(scope, "bool"),
                c=self.condition(scope, True) if "{c}" in form else "",
            )
        )

    # --- conditions
    def condition(self, scope: Scope, data: bool) -> str:
        """A condition on loop variables, or on data."""
        if self.chance(4, 1):
            one, two = self.simple(scope, data), self.simple(scope, data)
            return str(
                self.pick(
                    (
                        f"not {one}",
                        f"({one} and {two})",
                        f"({one} or {two})",
                        f"not ({one} and {two})",
                        f"({one} or not {two})",
                    )
                )
            )
        return self.simple(scope, data)

    def simple(self, scope: Scope, data: bool) -> str:
        names = list(scope.ranges)
        if names and self.chance(3, 1) == 0:
            one, two = self.pick(names), self.pick(names)
            return str(
                self.pick(
                    (
                        f"{one} < 2",
                        f"{one} > 0",
                        f"{one} == 1",
                        f"{one} + {two} < 4",
                        f"1 <= {one} and {two} < 3",
                        f"{one} % 2 == 0",
                        f"1 <= {one} < 3",
                        f"{one} <= {two}",
                        f"{one} != 1",
                    )
                )
            )
        if not data:
            return "1 > 0"
        if self.mixed and self.chance(2, 1):
            n, b = self.value(scope, "int32"), self.value(scope, "bool")
            return str(
                self.pick(
                    (
                        f"{n} > 0",
                        b,
                        f"{n} != {self.input(scope, 'int32')}",
                        f"{n} % 2 == 1",
                        f"not {b}",
                        f"{n} < {self.value(scope)}",
                        f"{n} == 16777217",
                    )
                )
            )
        scalars = scope.locals_of("float32")
        if scalars and self.chance(1, 2):
            t, i = self.pick(scalars), self.input(scope)
            forms = [
                f"{t} > {i}",
                f"{t} > {self.pick(scalars)}",
                f"{t} != {t}",
                f"{t} + 1.0 > {t}",
                f"0.0 < {t} <= {i}",
                f"{t} == {t}",
                t,
                f"{t} * 0.0 == 0.0",
            ]
            if names:
                forms += [f"{self.pick(names)} < {t}", f"{t} <= {self.pick(names)}"]
            return str(self.pick(forms))
        i = self.input(scope)
        forms = [f"{i} > 0.0", f"{i} > 0.0", f"{i} <= {self.input(scope)}", f"{i} == {i}", f"-1.0 < {i} < 1.0"]
        return str(self.pick(forms))
