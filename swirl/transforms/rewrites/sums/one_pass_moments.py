"""The loops that find a mean and the sum of squared differences from it in one pass over the data."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from swirl.ir.nest import Loop, clones, expr, fresh, reference, stmts, substitute
from swirl.ir.printing import unparse

WORDS = ("base", "inner", "squares", "seen", "shift", "sum", "square_sum", "difference", "delta", "share", "size")


@dataclass(frozen=True)
class Moments:
    """The moments of some elements: their mean is ``base + rest``.

    Args:
        base: an element near the mean.
        rest: None stands for 0.
        squares: the sum of squared differences from the mean; None stands for 0.
        count: of the elements.
        size: the same as an expression, where fewer items than a whole batch have fewer elements.
    """

    base: ast.expr
    rest: ast.expr | None
    squares: ast.expr | None
    count: int
    size: ast.expr | None = None


@dataclass(frozen=True)
class Parts:
    """Arrays that hold the moments of each iteration of a loop, and the subscripts of an iteration's elements."""

    bases: str
    means: str
    squared: str
    around: tuple[ast.expr, ...]

    def of(self, iteration: ast.expr, store: bool = False) -> tuple[ast.expr, ast.expr, ast.expr]:
        first, second, third = (
            reference(name, clones([iteration, *self.around]), store) for name in (self.bases, self.means, self.squared)
        )
        return first, second, third


class OnePass:
    """Loops that add up one expression, made to find its moments.

    Args:
        heads: the loops, of constant bounds.
        data: the expression that is added up.
        dtype: of the sums.
        base: the beginning of new names.
        taken: names that mean something already; new ones are added.
        size: the iterations of some of the loops, as an expression; None where it is a constant.
    """

    def __init__(
        self,
        heads: Sequence[Loop],
        data: ast.expr,
        dtype: str,
        base: str,
        taken: set[str],
        size: Callable[[Sequence[Loop]], ast.expr | None],
    ):
        self.heads, self.data, self.dtype, self.base, self.taken = tuple(heads), data, dtype, base, taken
        self.size = size

    def loops(self, inner: int | None, once: bool, parts: Parts | None) -> tuple[Moments, list[ast.stmt]]:
        """The moments that the loops find, and the statements that find them.

        Args:
            inner: the iterations of this loop (and of those around it but the first) are combined separately.
            once: take the first element when the loops reach it.
            parts: keep the moments of each iteration of the first loop there, and combine after it.
        """
        head, *rest = self.heads
        names = self._names()
        first = self._first(self.heads) if parts is None else parts.of(head.start)[0]
        opening = self._filled("base: T = value\ninner: T = 0.0\nsquares: T = 0.0\nseen: T = 0.0", names, value=first)
        if inner is None:
            one, body = self._summed(rest, names, once)
        else:
            one, body = self._within(rest[:inner], rest[inner:])
        found = Moments(
            expr(names["base"]), expr(names["inner"]), expr(names["squares"]), one.count * (head.extent or 0)
        )
        if parts is None:
            return found, [*opening, head.node([*body, *self._combine(one, names)])]
        here = parts.of(expr(head.var), store=True)
        kept = (one.base, one.rest or expr(0.0), one.squares or expr(0.0))
        body += [ast.Assign([target], value) for target, value in zip(here, kept, strict=True)]
        again = Loop(fresh(f"{head.var}_part", self.taken), "range", head.start, head.stop, head.step)
        self.taken.add(again.var)
        counted = self.size(rest)
        size = None if counted is None else substitute(self._cast(counted), {head.var: expr(again.var)})
        following = again.node(self._combine(Moments(*parts.of(expr(again.var)), one.count, size), names))
        return found, [head.node(body), *opening, following]

    def _within(self, around: Sequence[Loop], inside: Sequence[Loop]) -> tuple[Moments, list[ast.stmt]]:
        """The moments of all iterations of ``around``; nothing outside of them reads the data."""
        names = self._names()
        opening = self._filled("base: T = 0.0\ninner: T = 0.0\nsquares: T = 0.0\nseen: T = 0.0", names)
        one, body = self._summed(inside, names)
        body.append(ast.If(_is_first(around), self._filled("base = value", names, value=one.base), []))
        body += self._combine(one, names)
        for head in reversed(around):
            body = [head.node(body)]
        count = one.count * prod(head.extent or 0 for head in around)
        counted = self.size((*around, *inside))
        size = None if counted is None else self._cast(counted)
        return Moments(expr(names["base"]), expr(names["inner"]), expr(names["squares"]), count, size), [
            *opening,
            *body,
        ]

    def _summed(
        self, heads: Sequence[Loop], names: dict[str, str], once: bool = False
    ) -> tuple[Moments, list[ast.stmt]]:
        """The moments of the elements of ``heads``: sums of differences from the first one and of their squares."""
        shift = self._filled("shift: T = value", names, value=self._first(heads))
        if not heads:  # one element, which is its own mean
            return Moments(expr(names["shift"]), None, None, 1), shift
        count = prod(head.extent or 0 for head in heads)
        adding = self._filled(
            "difference: T = value - shift\nsum += difference\nsquare_sum += difference * difference",
            names,
            value=self.data,
        )
        if once:
            shift = self._filled("shift: T = 0.0", names)
            adding.insert(0, ast.If(_is_first(heads), self._filled("shift = value", names, value=self.data), []))
        for head in reversed(heads):
            adding = [head.node(adding)]
        opening = self._filled("sum: T = 0.0\nsquare_sum: T = 0.0", names)
        counted, size = self.size(heads), None
        if counted is not None:
            opening += stmts("size: int32 = value", size=names["size"], value=counted)
            size = self._cast(expr(names["size"]))
        parts: dict[str, ast.expr | str | int] = {**names, "size": size or ast.Constant(float(count))}
        mean = expr("sum / size", **parts)
        squares = expr("max(0.0, square_sum - sum * (sum / size))", **parts)
        return Moments(expr(names["shift"]), mean, squares, count, size), [*shift, *opening, *adding]

    def _combine(self, one: Moments, names: dict[str, str]) -> list[ast.stmt]:
        """The moments so far, combined with ``one``."""
        rest = expr(0.0) if one.rest is None else one.rest
        delta = "one - base - inner" if one.rest is None else "one - base + rest - inner"
        added = "delta * delta * (seen * share)"
        return self._filled(
            f"delta: T = {delta}\nshare: T = size / (seen + size)\n"
            f"squares += {added if one.squares is None else 'more + ' + added}\n"
            "inner += delta * share\nseen += size",
            {word: name for word, name in names.items() if word != "size"},
            one=one.base,
            rest=rest,
            more=expr(0.0) if one.squares is None else one.squares,
            size=one.size or ast.Constant(float(one.count)),
        )

    def _cast(self, number: ast.expr) -> ast.expr:
        return ast.Call(ast.Name(self.dtype, ast.Load()), [number], [])

    def _first(self, heads: Sequence[Loop]) -> ast.expr:
        return substitute(self.data, {head.var: head.start for head in heads})

    def _names(self) -> dict[str, str]:
        names = {word: fresh(f"{self.base}_{word}", self.taken) for word in WORDS}
        self.taken |= set(names.values())
        return names

    def _filled(self, text: str, names: dict[str, str], **more: ast.expr) -> list[ast.stmt]:
        return stmts(text.replace(": T =", f": {self.dtype} ="), **names, **more)


def _is_first(heads: Sequence[Loop]) -> ast.expr:
    """Whether loops are in their first iteration."""
    return expr(" and ".join(f"{head.var} == {unparse(head.start)}" for head in heads))
