"""Nests as layers have them: borders, strides, reductions over rows, scatters, blocks, subscripts out of an array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

EXTENTS = (3, 1, 2, 4, 5, 7, 8, 9)
LONG = (8, 1, 5, 7, 9, 13, 15, 16, 17)
"""Extents of innermost loops: around the widths of vectors, primes, and 1."""

SHAPES = (
    "map",
    "window",
    "scatter",
    "statistics",
    "softmax",
    "product",
    "flat",
    "blocked",
    "indirect",
    "places",
    "whole",
    "counts",
    "met",
    "winner",
)

Made = tuple[list[str], dict[str, tuple[int, ...]]]


class Shapes:
    """Makes one nest or a few: lines of a program, and the extents that its buffers need."""

    def __init__(self, pick: Callable[[Sequence[Any]], Any]):
        self.pick = pick
        self.rows: int = pick(EXTENTS)
        self.columns: int = pick(LONG)

    def make(self, shape: str) -> Made:
        """The nests of a shape in :data:`SHAPES`."""
        made: Made = getattr(self, shape)()
        return made

    def flip(self) -> bool:
        return bool(self.pick((False, True)))

    def two(self, body: list[str], rows: int, columns: int) -> list[str]:
        """``body`` under loops ``i`` and ``j``, one or the other outside."""
        heads = [f"for i in range({rows}):", f"for j in range({columns}):"]
        first, second = heads if self.pick((True, True, False)) else heads[::-1]
        return [first, "    " + second, *("        " + line for line in body)]

    def map(self) -> Made:
        """Each element of an array is assigned once: what most commands apply to."""
        target = self.pick(("y", "u", "g"))
        x = f"x[{self.pick(('i', 'i // 2', '0'))}, {self.pick(('j', 'j + 1', 'j + i', '1'))}]"
        value = self.pick(
            (
                f"{x} + 0.5",
                f"{x} * w[j] + 1.0",
                f"max(0.0, {x})",
                f"({x} if {x} > 0.0 else {x} * 0.25)",
                f"max({x}, w[j]) - min({x}, z[i])",
                f"({x} - z[i]) / sqrt(s[i] * s[i] + 0.5)",
            )
        )
        element = f"{target}[i, j]" if target != "g" else f"g[{self.pick(('0', '1'))}, i, j]"
        shape = (self.rows, self.columns)
        lines = self.two([f"{element} = {value}"], *shape)
        if self.flip():
            test = self.pick(("j % 2 == 0", f"{x} > 0.0", "i < 2 and j > 0", "0 <= i + j - 2 and i + j - 2 < 5"))
            other = ["else:", f"    {element} = 0.0"] if self.flip() else []
            lines = self.two([f"if {test}:", f"    {element} = {value}", *other], *shape)
        return lines, {
            "x": (self.rows, sum(shape)),
            "w": (self.columns,),
            "z": (self.rows,),
            "s": (self.rows,),
            target: shape if target != "g" else (2, *shape),
        }

    def whole(self) -> Made:
        """The same over all of every array, which loops may be joined for."""
        shape = (self.rows, self.columns)
        value = self.pick(("max(0.0, x[i, j])", "x[i, j] * u[i, j] + 1.0", "x[i, j] if u[i, j] > 0.0 else 0.0"))
        update = self.pick(("y[i, j] = ", "y[i, j] += ")) + value
        return [f"for i in range({self.rows}):", f"    for j in range({self.columns}):", f"        {update}"], {
            "x": shape,
            "u": shape,
            "y": shape,
        }

    def window(self) -> Made:
        """A window that moves by a stride over a row with a border: a convolution, or pooling."""
        taps, stride, border = self.pick((3, 1, 2, 5)), self.pick((1, 1, 2, 3)), self.pick((1, 0, 2))
        width = self.columns
        out = max(1, (width + 2 * border - taps) // stride + 1)
        at = f"{stride} * j + k - {border}" if stride > 1 else f"j + k - {border}"
        inside = f"0 <= {at} and {at} < {width}"
        form = self.pick(("guard", "guard", "select", "clamp", "bounds"))
        element = f"x[i, {at}]"
        if form == "clamp":
            element = f"x[i, max(0, min({width - 1}, {at}))]"
        elif form == "select":
            element = f"(x[i, {at}] if {inside} else 0.0)"
        pooling = self.pick((False, False, True))
        local = self.flip()
        target = "t" if local else "y[i, j]"
        update = f"{target} = max({target}, {element})" if pooling else f"{target} += {element} * w[k]"
        loop = f"for k in range({taps}):"
        if form == "bounds":
            shift = f"{border} - {stride} * j"
            loop = f"for k in range(max(0, {shift}), min({taps}, {width} + {shift})):"
        body = [loop, *([f"    if {inside}:", f"        {update}"] if form == "guard" else [f"    {update}"])]
        if form == "guard" and not local and self.pick((False, False, True)):
            body = [loop, f"    if {inside}:", *("        " + line for line in self.terms(element, target))]
        if local:
            body = [f"t: float32 = {self.pick(('0.0', 'z[i]', '-100.0'))}", *body, "y[i, j] = t"]
        elif self.flip():
            body = [f"y[i, j] = {self.pick(('0.0', 'w[0]'))}", *body]
        lines = self.two(body, self.rows, out)
        return lines, {"x": (self.rows, width), "y": (self.rows, out), "w": (taps,), "z": (self.rows,)}

    def terms(self, element: str, target: str) -> list[str]:
        """Terms in locals of one name: some are zero where the element is, others are not."""
        lines = []
        for _ in range(2):
            value = self.pick((f"{element} * w[k]", "w[k]", f"{element} * z[i]", f"{element} + w[0]"))
            lines += ["for l in range(2):", f"    v: float32 = {value}", f"    {target} += v"]
        return lines

    def scatter(self) -> Made:
        """The derivative of a window: several iterations add to one element."""
        taps, stride, border = self.pick((3, 1, 2)), self.pick((1, 2, 3)), self.pick((0, 1))
        out = self.columns
        at = f"{stride} * j + k" if stride > 1 else "j + k"
        width = (out - 1) * stride + taps
        update = f"u[i, {at}] += x[i, j] * w[k]"
        body = [f"for k in range({taps}):", f"    {update}"]
        if border:
            width -= 2 * border if width > 2 * border else 0
            inside = f"{at} - {border}"
            body = [
                body[0],
                f"    if 0 <= {inside} and {inside} < {width}:",
                f"        u[i, {inside}] += x[i, j] * w[k]",
            ]
        lines = self.two(body, self.rows, out)
        if self.flip():
            lines = [f"for i in range({self.rows}):", f"    for l in range({width}):", "        u[i, l] = 0.0", *lines]
        return lines, {"x": (self.rows, out), "u": (self.rows, width), "w": (taps,)}

    def statistics(self) -> Made:
        """Mean and deviation of each column or row, and normalisation by them."""
        one = self.pick(("i", "j"))
        extent, count = (self.rows, self.columns) if one == "i" else (self.columns, self.rows)
        if self.flip():
            return self.moments(one, extent, count)
        value = f"(x[i, j] - z[{one}]) / sqrt(s[{one}] + 0.5)"
        lines = [
            *self.two([f"z[{one}] += x[i, j]"], self.rows, self.columns),
            f"for {one} in range({extent}):",
            f"    z[{one}] = z[{one}] / {count}.0",
            *self.two([f"s[{one}] += (x[i, j] - z[{one}]) * (x[i, j] - z[{one}])"], self.rows, self.columns),
            f"for {one} in range({extent}):",
            f"    s[{one}] = s[{one}] * s[{one}] / {count}.0",
            *self.two([f"y[i, j] = {self.pick((value, f'max(0.0, {value} * w[j])'))}"], self.rows, self.columns),
        ]
        if self.flip():
            lines = lines[: 3 + 2 + 3]
        shape = (self.rows, self.columns)
        return lines, {"x": shape, "y": shape, "z": (extent,), "s": (extent,), "w": (self.columns,)}

    def moments(self, one: str, extent: int, count: int) -> Made:
        """Mean and variance of each column or row in one nest, as passes make them."""
        other = "j" if one == "i" else "i"
        z, s_ = f"z[{one}]", f"s[{one}]"
        lines = [
            f"for {one} in range({extent}):",
            f"    {z} = 0.0",
            f"    for {other} in range({count}):",
            f"        {z} += x[i, j]",
            f"    {z} = {z} / {count}.0",
            f"    {s_} = 0.0",
            f"    for {other} in range({count}):",
            f"        {s_} += (x[i, j] - {z}) * (x[i, j] - {z})",
        ]
        shape = (self.rows, self.columns)
        return lines, {"x": shape, "z": (extent,), "s": (extent,)}

    def softmax(self) -> Made:
        """Each row divided by its sum, shifted by its greatest element: softmax."""
        lines = [
            f"for i in range({self.rows}):",
            f"    t: float32 = {self.pick(('x[i, 0]', '-100.0'))}",
            f"    for j in range({self.columns}):",
            "        t = max(t, x[i, j])",
            "    v: float32 = 0.0",
            f"    for j in range({self.columns}):",
            f"        y[i, j] = {self.pick(('exp(x[i, j] - t)', '(x[i, j] - t) * (x[i, j] - t) + 0.5'))}",
            "        v += y[i, j]",
            f"    for j in range({self.columns}):",
            "        y[i, j] /= v" if self.flip() else "        y[i, j] = y[i, j] / v",
        ]
        return lines, {"x": (self.rows, self.columns), "y": (self.rows, self.columns)}

    def product(self) -> Made:
        """A product of matrices, accumulated in the target or in a local."""
        inner = self.pick((3, 1, 2, 5, 8))
        update = self.pick(("y[i, j] += x[i, k] * u[k, j]", "y[i, j] += x[k, i] * f[0, k, j]"))
        body = [f"for k in range({inner}):", f"    {update}"]
        if self.flip():
            body = ["t: float32 = w[j]", *(line.replace("y[i, j]", "t") for line in body), "y[i, j] = max(0.0, t)"]
        side = max(self.rows, inner)
        return self.two(body, self.rows, self.columns), {
            "x": (side, side),
            "u": (inner, self.columns),
            "f": (1, inner, self.columns),
            "y": (self.rows, self.columns),
            "w": (self.columns,),
        }

    def flat(self) -> Made:
        """Two dimensions in one: ``z[i * columns + j]``, or separated by ``//`` and ``%``."""
        size = self.rows * self.columns
        shape = (self.rows, self.columns)
        if self.flip():
            value = self.pick(("x[i, j] + 1.0", "x[i, j] * w[j]"))
            return self.two([f"z[i * {self.columns} + j] = {value}"], *shape), {
                "x": shape,
                "z": (size,),
                "w": (self.columns,),
            }
        head = self.pick((f"for i in range({size}):", f"for i in range({size - 1}, -1, -1):"))
        return [head, f"    y[i // {self.columns}, i % {self.columns}] = s[i] + 1.0"], {"y": shape, "s": (size,)}

    def blocked(self) -> Made:
        """A row in blocks with a ragged end, some dimensions as blocked layouts have them."""
        block = self.pick((4, 2, 8, 16))
        count = -(-self.columns // block)
        update = self.pick(
            ("y[i, j + l] = x[i, j + l] * 2.0", "z[i] += x[i, j + l]", "y[i, j + l] += x[i, j + l] * w[l]")
        )
        lines = [
            f"for i in range({self.rows}):",
            f"    for j in range(0, {self.columns}, {block}):",
            f"        for l in range(min({block}, {self.columns} - j)):",
            f"            {update}",
        ]
        if self.flip():
            lines = [
                f"for i in range({self.rows}):",
                f"    for j in range({count}):",
                f"        for l in range({block}):",
                f"            g[i, j, l] = f[i, j, l] {self.pick(('+', '*'))} w[l]",
            ]
        shape = (self.rows, self.columns)
        return lines, {
            "x": shape,
            "y": shape,
            "z": (self.rows,),
            "w": (block,),
            "f": (self.rows, count, block),
            "g": (self.rows, count, block),
        }

    def counts(self) -> Made:
        """Accumulated whole numbers; other terms, of which each step loses something; and whole terms of a float."""
        whole = self.flip()
        target = self.pick(("p[0]", "q[i, 0]", "p[i]")) if whole or self.flip() else self.pick(("z[0]", "y[i, 0]"))
        value = (
            self.pick(("n[i, j]", "int32(x[i, j])", "n[i, j] * 3 - 1"))
            if whole
            else self.pick(("x[i, j]", "x[i, j] * 0.75", "n[i, j] + x[i, j]", "n[i, j]"))
        )
        update = self.pick(
            (
                f"{target} += {value}",
                f"{target} -= {value}",
                f"{target} = max({target}, {value})",
                f"{target} = min({value}, {target})",
                f"{target} *= {value}",
            )
        )
        shape = (self.rows, self.columns)
        return self.two([update], *shape), {
            "x": shape,
            "n": shape,
            "p": (self.rows,),
            "q": (self.rows, 1),
            "z": (1,),
            "y": (self.rows, 1),
        }

    def places(self) -> Made:
        """One tap of each window counts, the one that a number says; it may be none."""
        taps, stride = self.pick((3, 1, 2, 5)), self.pick((1, 1, 2))
        place = self.pick(("m[i]", "m[i] % 4", "n[i, j] % 3", "n[i, j] % 5 - 1", "i", "j - i"))
        element = self.pick((f"u[i, {stride} * j + k]", "y[i, j]", "p[0]"))
        value = self.pick(("x[i, j]", "x[i, k] * w[j]", f"g[i, j, {stride} * k]")) if element[0] != "p" else "n[k, i]"
        test = self.pick(
            (f"{place} == k", f"k == {place}", f"{place} == k and x[i, j] > 0.0", f"j > k and {place} == k")
        )
        zero = "0" if element[0] == "p" else "0.0"
        update = self.pick(
            (
                [f"if {test}:", f"    {element} {self.pick(('=', '+=', '-='))} {value}"],
                [f"{element} {self.pick(('+=', '-='))} {value} if {test} else {zero}"],
                [f"{element} = {value} if {test} else {element}"],
                [f"t: float32 = {value}", f"if {test}:", f"    {element} += t"]
                if zero == "0.0"
                else [f"{element} += 1"],
                [f"for l in range({self.pick((2, 1, 3))}):", f"    if {test}:", f"        {element} += {value}"],
            )
        )
        bounds = self.pick((f"{taps}", f"{taps}", "max(0, i - 1), min(4, i + 2)", f"1, {taps}"))
        most, width = max(taps, 4), max(self.rows, self.columns)
        if zero == "0.0" and self.pick((False, False, False, True)):
            update = [f"v: float32[{most}] = empty({most})", f"v[k] = {value}", f"if {test}:", f"    {element} += v[k]"]
        if zero == "0.0" and self.pick((False, False, True)):  # by way of locals
            term = self.pick(("t", "-t * w[j]", "t * x[i, j] - t / 2.0", "t if n[i, j] > 1 else 0.0", "t + 0.5"))
            update = [f"t: float32 = {value} if {test} else 0.0", f"part: float32 = {term}"]
            if self.flip():
                update += [
                    "for l in range(2):",
                    "    part += t * w[j]",
                    f"    {element} {self.pick(('+=', '-='))} part",
                ]
            else:
                update.append(f"{element} {self.pick(('+=', '-=', '-=', '*='))} part")
        body = [f"for k in range({bounds}):", *("    " + line for line in update)]
        return self.two(body, self.rows, self.columns), {
            "x": (self.rows, max(self.columns, most)),
            "y": (self.rows, self.columns),
            "u": (self.rows, 2 * self.columns + most),
            "g": (self.rows, self.columns, 2 * most),
            "n": (max(self.rows, most), width),
            "p": (1,),
            "w": (self.columns,),
            "m": (self.rows,),
        }

    def indirect(self) -> Made:
        """Subscripts out of an array of integers: a gather, or a scatter."""
        update = self.pick(
            (
                "y[i, j] += x[m[i], j]",
                "y[m[i], j] += x[i, j]",
                "y[i, j] = x[m[i], j] - x[i, m[j]]",
                "y[m[i], j] = x[i, j]",
                "z[m[j]] += x[i, j]",
            )
        )
        side = (max(3, self.rows), max(3, self.columns))
        return self.two([update], self.rows, self.columns), {"x": side, "y": side, "z": (3,), "m": (max(side),)}

    def met(self) -> Made:
        """Statements that add to elements of one row, which those of other iterations add to, set or read."""
        last, half = self.columns - 1, self.columns // 2
        places = ("j", "j + 1", f"{last} - j", f"(j + {half}) % {self.columns}", "j // 2", "2 * j", "0")
        elements = [f"y[i, {self.pick(places)}]" for _ in range(2)]
        body = []
        for number in range(self.pick((3, 2, 4))):
            value = self.pick(("x[i, j]", "2.0 * x[i, j]", f"x[i, {last} - j]", f"{self.pick(elements)} * w[j]"))
            body.append(f"{elements[number % 2]} {self.pick(('+=', '+=', '+=', '='))} {value}")
        if self.pick((False, False, True)):
            body[-1:] = ["if x[i, j] > 0.0:", f"    {body[-1]}"]
        side = (self.rows, self.columns)
        return self.two(body, *side), {"x": side, "y": (self.rows, 2 * self.columns), "w": (self.columns,)}

    def winner(self) -> Made:
        """The best of a row and its place; what is compared may change before it is kept, or afterwards."""
        local = self.flip()
        candidate = "t" if local else self.pick(("x[i, j]", "x[i, j] * w[j]"))
        sides = f"{candidate} {self.pick(('>', '<', '>=', '<='))} z[i]"
        if self.flip():
            sides = f"z[i] {self.pick(('>', '<', '>=', '<='))} {candidate}"
        test = self.pick((sides, f"{sides} or {candidate} != {candidate}"))
        kept = [("z[i]", candidate)]
        place = self.pick(("j", "2 * j + i", "i", "j % 3"))
        kept += [("p[i]", place)] if self.pick((True, True, False)) else []
        between = self.pick(([], [], [], ["t = t * 0.5" if local else "w[j] = w[j] * 0.5"]))
        if self.flip():
            choices = [f"    {target} = {value}" for target, value in kept]
            body = [f"if {test}:", *choices, *between]
        else:
            choices = [f"{target} = {value} if better else {target}" for target, value in kept[:: self.pick((1, -1))]]
            body = [f"better: bool = {test}", *choices[:1], *between, *choices[1:]]
        body = [*(["t: float32 = x[i, j] + 0.5"] if local else []), *body, *(["s[i] += w[j]"] if self.flip() else [])]
        lines = self.two(body, self.rows, self.columns)
        rows, columns = (self.rows,), (self.columns,)
        return lines, {"x": (*rows, *columns), "w": columns, "z": rows, "p": rows, "s": rows}
