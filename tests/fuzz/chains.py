"""Neighbouring nests as chains of layers have them: each sets what the next ones read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

EXTENTS = (3, 1, 2, 4, 5, 7, 8)
LONG = (8, 1, 5, 7, 9, 13, 16, 17)
TAPS = 3
CHAIN = "chain"
"""The name of programs of neighbouring nests, beside the shapes of :data:`tests.fuzz.shapes.SHAPES`."""

Lines = list[str]


class Chains:
    """Makes a producer, none to two layers in between, and one or two readers: lines of a program, and the extents that
    its buffers need. The arrays between the nests are ``d``, ``e`` (row, column) and ``h`` (row, column // 4, column %
    4), which only the program needs."""

    def __init__(self, pick: Callable[[Sequence[Any]], Any]):
        self.pick = pick
        self.rows: int = pick(EXTENTS)
        self.columns: int = pick(LONG)

    def make(self) -> tuple[Lines, dict[str, tuple[int, ...]]]:
        """The nests, the last ones reading the arrays in between only."""
        lines = self.producer("d")
        source, width = "d", self.columns
        for target in self.pick(((), ("e",), ("e",), ("h",), ("e", "h"))):
            made, width = self.between(source, target, width)
            lines += made
            source = target
        for _ in range(self.pick((1, 1, 2))):
            lines += self.reader(source, width)
        if source != "d" and self.pick((False, False, True)):  # a second reader of the first
            lines += self.reader("d", self.columns)
        side = max(self.rows, self.columns)
        extents = {
            "d": (self.rows, self.columns),
            "e": (self.rows, self.columns),
            "h": (self.rows, -(-self.columns // 4), 4),
            "x": (self.rows, self.columns + TAPS),
            "w": (side + TAPS,),
            "y": (side, side),
            "z": (side,),
            "s": (side,),
            "u": (self.rows, self.columns + TAPS),
            "f": (1, side, side),
            "m": (side,),
        }
        used = "\n".join(lines)
        return lines, {name: shape for name, shape in extents.items() if f"{name}[" in used}

    # --- parts
    def element(self, name: str, column: str = "j", row: str = "i") -> str:
        """An element of an array in between."""
        if name == "h":
            return f"h[{row}, ({column}) // 4, ({column}) % 4]"
        return f"{name}[{row}, {column}]"

    def loops(self, body: Lines, width: int, rows: int | None = None) -> Lines:
        """``body`` under loops ``i`` and ``j``, in one order or the other, forwards, backwards, or in blocks."""
        i, j = f"for i in range({rows or self.rows}):", f"for j in range({width}):"
        if self.pick((False,) * 7 + (True,)):
            i = f"for i in range({(rows or self.rows) - 1}, -1, -1):"
        if self.pick((False,) * 4 + (True,)) and all("j" in line for line in body[-1:]):
            block = self.pick((4, 8, 2))
            inner = [line.replace("j", "(j + l)") for line in body]
            heads = [i, f"for j in range(0, {width}, {block}):", f"for l in range(min({block}, {width} - j)):"]
            return _nested(heads, inner)
        return _nested([i, j] if self.pick((True, True, False)) else [j, i], body)

    def producer(self, target: str) -> Lines:
        """All of an array: a formula of each element, or a window over its source."""
        d = self.element(target)
        form = self.pick(("formula", "window", "apart", "product", "border"))
        if form == "formula":
            value = self.pick(("x[i, j] * w[j] + 1.0", "x[i, j] - w[j + 1]", "(x[i, j] if x[i, j] > 0.0 else 0.5)"))
            return self.loops([f"{d} = {value}"], self.columns)
        update = f"{d} += x[i, j + k] * w[k]"
        if form == "product":
            update = f"{d} += x[i, k] * f[0, k, j]"
            taps = min(TAPS, self.columns)
            return self.loops([f"{d} = w[j]", f"for k in range({taps}):", f"    {update}"], self.columns)
        if form == "border":
            update = f"{d} += x[i, j + k - 1] * w[k]"
            inside = f"    if j + k - 1 >= 0 and j + k - 1 < {self.columns}:"
            return self.loops([f"{d} = w[0]", f"for k in range({TAPS}):", inside, f"        {update}"], self.columns)
        body = [f"for k in range({TAPS}):", f"    {update}"]
        if form == "window":
            return self.loops([f"{d} = 0.0", *body], self.columns)
        return [*self.loops([f"{d} = 0.5"], self.columns), *self.loops(body, self.columns)]

    def between(self, source: str, target: str, width: int) -> tuple[Lines, int]:
        """One layer, and the columns that it sets."""
        e, d = self.element(target), self.element(source)
        form = self.pick(("relu", "scale", "normalize", "stencil", "border", "pool", "shift"))
        if form == "relu":
            return self.loops([f"{e} = max(0.0, {d})"], width), width
        if form == "scale":
            return self.loops([f"{e} = {d} * w[j] + w[{self.pick(('j', '0'))}]"], width), width
        if form == "normalize":  # which needs all of the source first
            sums = self.pick((f"z[i] += {d}", f"z[i] = max(z[i], {d})"))
            value = f"({d} - z[i]) / (z[i] * z[i] + 1.0)"
            return [*self.loops([sums], width), *self.loops([f"{e} = {value}"], width)], width
        if form == "stencil" and width > 1:
            return self.loops([f"{e} = {d} + {self.element(source, 'j + 1')} * 2.0"], width - 1), width - 1
        if form == "pool" and width > 1:
            pair = self.element(source, "2 * j"), self.element(source, "2 * j + 1")
            return self.loops([f"{e} = max({pair[0]}, {pair[1]})"], width // 2), width // 2
        if form == "shift":
            return self.loops([f"{e} = {self.element(source, f'{width - 1} - j')} + 1.0"], width), width
        inside = f"if j + k - 1 >= 0 and j + k - 1 < {width}:"
        body = [
            f"{e} = 0.0",
            f"for k in range({TAPS}):",
            f"    {inside}",
            f"        {e} += {self.element(source, 'j + k - 1')} * w[k]",
        ]
        return self.loops(body, width), width

    def reader(self, source: str, width: int) -> Lines:
        """A nest that others see."""
        d = self.element(source)
        form = self.pick(("value", "add", "sum", "columns", "product", "scatter", "greatest", "gradient", "indirect"))
        if form in ("value", "gradient"):
            value = self.pick((f"max(0.0, {d})", f"{d} * {d} + 1.0", f"({d} if {d} > 0.0 else x[i, j])"))
            body = [f"y[i, j] = {value}"]
            if form == "gradient":
                body.append(f"z[i] += {d} * x[i, j]")
            return self.loops(body, width)
        if form == "indirect" and source != "h" and width >= 3:
            both = self.pick(("", f" * {self.element(source, f'{width - 1} - j')}", f" + {d}"))
            return self.loops([f"y[i, j] += {self.element(source, 'm[j]')}{both}"], width)
        if form == "indirect":
            return self.loops([f"z[i] += {d}"], width)
        if form == "product":
            return (
                self.loops(["for k in range(2):", f"    y[i, k] += {d} * f[0, j, k]"], width)
                if self.fits(2)
                else (self.loops([f"y[i, 0] += {d}"], width))
            )
        if form == "scatter":
            return self.loops([f"for k in range({TAPS}):", f"    u[i, j + k] += {d} * w[k]"], width)
        update = {
            "add": f"y[i, j] += {d}",
            "sum": f"z[i] += {d}",
            "columns": f"s[j] += {d}",
            "greatest": f"z[i] = max(z[i], {d})",
        }[form]
        return self.loops([update], width)

    def fits(self, columns: int) -> bool:
        """Whether square arrays have so many columns."""
        return max(self.rows, self.columns) >= columns


def _nested(heads: Lines, body: Lines) -> Lines:
    lines = list(heads)
    return ["    " * depth + head for depth, head in enumerate(lines)] + ["    " * len(lines) + line for line in body]
