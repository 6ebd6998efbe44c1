"""How many iterations loops have for as many items as there are: what a whole batch has is a constant."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import prod

from swirl.analysis.items import places_of_items
from swirl.analysis.touches import Item
from swirl.ir.affine import Affine
from swirl.ir.item_numbers import FORMULA, ITEMS, capacity
from swirl.ir.nest import Loop, Nest, Program, expr, fresh
from swirl.transforms.rewrites.sites import taken_names

PART = "moments has counted the items of a part of the batch"


class Iterations:
    """The iterations of the loops of a sum.

    Args:
        program: that the nest is in.
        nest: that the loops are in.
        heads: the loops, of constant bounds.
        parts: whether the iterations of the first one are kept in arrays, and combined later.

    Attributes:
        program: with the number of items, once a size depends on it.
        fixed: why what is made of these numbers is right for whole batches alone; empty where it is not.
    """

    def __init__(self, program: Program, nest: Nest, heads: Sequence[Loop], parts: bool):
        self.program, self.parts, self.fixed = program, parts, program.fixed
        self._items = capacity([program])
        self._over: dict[str, Item] = {}
        if self._items < 2 or self.fixed:
            return
        places = places_of_items(program, nest)
        if places is None:
            self.fixed = "moments has counted iterations, which may be of items"
            return
        over = {head.var: places[head.var] for head in heads if head.var in places}
        every = prod(head.extent or 0 for head in heads if head.var in over)
        if any(item.parts * self._items != every for item in over.values()):
            self.fixed = PART
        else:
            self._over = over

    @property
    def over_items(self) -> bool:
        """Whether fewer items than a whole batch have fewer iterations."""
        return bool(self._over)

    def shares(self) -> Iterator[tuple[int, Fraction]]:
        """Numbers of items to look at, each with its share of the iterations of a whole batch."""
        yield self._items, Fraction(1)
        for items in (self._items - 1, 1) if self._over else ():
            yield items, Fraction(items, self._items)

    def size(self, heads: Sequence[Loop]) -> ast.expr | None:
        """How many iterations some of the loops have; None where that is a constant."""
        over = [head for head in heads if head.var in self._over]
        if not over or self.fixed:
            return None
        last = over[-1]
        item = self._over[last.var]
        if len(over) > 1 or item.place.coefficient(last.var) != 1 or item.parts > 1 or self.parts:
            self.fixed = PART
            return None
        others = prod(head.extent or 0 for head in heads if head is not last)
        left = Affine({"items": 1}, 0, {"items": self._number()}).add(item.place, -1)
        left.terms.pop(last.var)
        least = ast.Call(ast.Name("min", ast.Load()), [expr(last.extent or 0), left.to_expr()], [])
        return least if others == 1 else ast.BinOp(least, ast.Mult(), ast.Constant(others))

    def _number(self) -> ast.expr:
        """The number of items, as the program reads it."""
        name = next((own for own, buffer in self.program.buffers.items() if buffer.formula == FORMULA), None)
        if name is None:
            name = fresh("items", taken_names(self.program))
            self.program = self.program.with_buffers(**{name: ITEMS})
        return ast.Subscript(ast.Name(name, ast.Load()), ast.Constant(0), ast.Load())
