"""bound_items: loops over items end with the last one that exists."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from swirl.analysis.items import ItemLoop, NestItems, least, program_items
from swirl.analysis.touches import Item
from swirl.ir.affine import Affine, affine
from swirl.ir.buffers import Buffer
from swirl.ir.item_numbers import FORMULA, ITEMS, NotUniform, capacity
from swirl.ir.nest import Loop, Program, clones, constant, fresh, loop_of, make_nest
from swirl.ir.printing import unparse
from swirl.ir.trees import nodes
from swirl.ir.validate import validate
from swirl.transforms.rewrites.loops.one_copy import one_copy
from swirl.transforms.rewrites.sites import taken_names


def bound_items(program: Program) -> Program:
    """The program for any number of items up to those of a whole batch: the run-time scalar ``items`` says it.

    rewrite:
        for n in parallel(8):                    for n in parallel(min(8, items[0])):
            for c in range(C):                       for c in range(C):
                y[n, c] = x[n, c] * w[c]      →          y[n, c] = x[n, c] * w[c]
        for b in range(2):                       for b in range(min(2, (items[0] + 3) // 4)):
            for u in unrolled(4):                    for u in unrolled(4):
                z[b * 4 + u] = x[b * 4 + u]              z[b * 4 + u] = x[b * 4 + u]

    Which loops are over items follows from the subscripts of what has elements for each of them
    (:mod:`swirl.analysis.items`). A loop ends with the last item that exists. Copies of an unrolled loop, and lanes,
    are all computed, those of items that do not exist into elements that nothing reads; but where they add to a sum
    over the batch, have data as subscripts, or touch memory that is given and ends with the last item, each copy has a
    condition, and a vector ends with the last item. Chunks
    of items stay those of a whole batch, so what is computed of an item does not depend on how many there are. Where
    that cannot be shown the program stays as it is, and says why (``Program.fixed``): it is right for whole batches
    alone.

    A block of several items, or vectors of items, that are computed side by side is computed whole where its last part
    has an item, and part by part where it does not: a few items do not pay for those of a whole block.
    """
    if program.fixed:
        return program
    try:
        items = capacity([program])
        if items < 2:
            return program
        nests = program_items(program)
        for nest in nests:
            _check_blocks(nest)
        name = next((own for own, b in program.buffers.items() if b.formula == FORMULA), None)
        name = name or fresh("items", taken_names(program))
        buffers: dict[str, Buffer] = {**program.buffers, name: ITEMS}
        made = []
        for nest in nests:
            body = _Bounded(nest, name, items).block(nest.nest.body, ())
            made.append(make_nest(nest.nest.label, body, buffers))
    except NotUniform as error:
        return replace(program, fixed=str(error))
    used = {argument for nest in made for argument in nest.arguments}
    kept = {key: buffer for key, buffer in buffers.items() if key in used or key in program.buffers}
    # Iterations that are left out cannot race with others: the marks of the loops hold.
    return validate(replace(program, nests=tuple(made), buffers=kept))


def _check_blocks(nest: NestItems) -> None:
    """Raises NotUniform where a block of items that does not exist would be read: in a loop that is not bounded, as
    something that is stored in it is needed for each block."""
    for touch in nest.touches:
        loop = nest.leaf_of(touch)
        if touch.item is not None and loop is not None and loop.outside:
            raise NotUniform(f"{touch.text} is read for each block of items")


class _Bounded:
    """Statements with the bounds of their loops over items.

    Args:
        nest: that they are in.
        name: of the number of items in it.
        items: of a whole batch.
    """

    def __init__(self, nest: NestItems, name: str, items: int):
        self.loops, self.items, self.buffers = nest.loops, items, nest.buffers
        self.alone = nest.alone_in_blocks()
        self.number: ast.expr = ast.Subscript(ast.Name(name, ast.Load()), ast.Constant(0), ast.Load())

    def block(self, body: Sequence[ast.stmt], outer: tuple[Loop, ...], sure: bool = False) -> list[ast.stmt]:
        """Statements one after the other.

        Args:
            body: the statements.
            outer: the loops around.
            sure: whether each loop over items among them has an item that exists, if it has one place for them.
        """
        result: list[ast.stmt] = []
        parts = self._parts(body, outer)
        if parts is not None:
            return [ast.If(parts.whole, clones(list(body)), parts.one_by_one)]
        for node in body:
            made: ast.stmt = node
            if isinstance(node, ast.If):
                branches = (self.block(branch, outer, sure) for branch in (node.body, node.orelse))
                made = ast.If(node.test, *branches)
            elif isinstance(node, ast.For):
                made = self.loop(node, outer, sure)
            result.append(self._if_there(made, self.alone.get(id(node), {})))
        return result

    def _if_there(self, node: ast.stmt, items: Mapping[str, Item]) -> ast.stmt:
        """A statement that touches one item of a block, if that exists.

        Raises:
            NotUniform: it touches several, or declares a local, which others need.
        """
        if not items:
            return node
        if len(items) > 1 or isinstance(node, ast.AnnAssign):
            raise NotUniform(f"{unparse(node).splitlines()[0]} is of single items of a block")
        (item,) = items.values()
        return ast.If(self._exists(item.place, item.parts), [node], [])

    def loop(self, node: ast.For, outer: tuple[Loop, ...], sure: bool) -> ast.stmt:
        """A loop, with a bound if it is over items."""
        head = loop_of(node)
        known = self.loops.get(id(node))
        if known is None:
            return head.node(self.block(node.body, (*outer, head), sure))
        limit = None if known.outside else self._limit(head, known, outer)
        body = self.block(node.body, (*outer, head), limit is not None and len(known.items) == 1)
        if limit is None:
            whole = not known.leaf if head.kind != "unrolled" else not known.exact
            if not known.outside and (known.mixing or not whole):
                body = [ast.If(self._exists(*self._first(known, (*outer, head))), body, [])]
            return head.node(body)
        if head.kind == "vector":
            alone = not known.mixing and not known.exact  # a lane without an item computes what nothing reads
            if alone or (sure and limit.divides(head, outer)):
                return head.node(body)
            first = limit.around.add(Affine(constant=limit.low))
            bounded = self._bounded(head, limit).node(body)
            sure = sure or (not first.terms and 0 <= first.constant < limit.parts)
            return bounded if sure else ast.If(self._exists(first, limit.parts), [bounded], [])
        return self._bounded(head, limit).node(body)

    def _parts(self, body: Sequence[ast.stmt], outer: tuple[Loop, ...]) -> _Parts | None:
        """A block of items that exists in part, part by part; None where the statements are not one block: they are
        loops alone, which are looked into, or not all of their loops over items are copies of the same part."""
        if all(isinstance(node, ast.For) and loop_of(node).kind in ("range", "parallel") for node in body):
            return None
        if any(id(node) in self.alone for node in body):
            return None
        inside = [self.loops[id(node)] for statement in body for node in nodes(statement) if id(node) in self.loops]
        if any(known.mixing or known.exact or known.outside for known in inside):
            return None
        copies = [known for known in inside if loop_of(known.node).kind == "unrolled"]
        if not copies or any(loop_of(known.node).kind not in ("unrolled", "vector") for known in inside):
            return None
        heads = [replace(loop_of(known.node), kind="range") for known in copies]
        limits = [self._limit(head, known, outer) for head, known in zip(heads, copies, strict=True)]
        head, limit, count = heads[0], limits[0], heads[0].extent
        if limit is None or count is None or count < 2 or constant(head.start) != 0:
            return None
        counts = [other.extent for other in heads]
        if any(own is None or own.key != limit.key for own in limits) or set(counts) != {count}:
            return None
        one = one_copy(body, {head.var for head in heads}, head.var, self.buffers)
        if one is None:
            return None
        last = limit.around.add(Affine(constant=limit.low + limit.factor * (count - 1)))
        return _Parts(self._exists(last, limit.parts), [self._bounded(head, limit).node(one)])

    def _exists(self, place: Affine, parts: int) -> ast.expr:
        """Whether the item of a place is one of the batch."""
        end = Affine({"items": parts}, 0, {"items": self.number}).to_expr()
        return ast.Compare(place.to_expr(), [ast.Lt()], [end])

    def _first(self, known: ItemLoop, around: tuple[Loop, ...]) -> tuple[Affine, int]:
        """The place of the first item of an iteration.

        Raises:
            NotUniform: there is none.
        """
        names = {loop.var for loop in around}
        found = {}
        for item in known.items.values():
            parts = least(item.place, known.ranges, [name for name in item.place.terms if name not in names])
            if parts is None:
                raise NotUniform(f"the items of an iteration of {around[-1].var} are not known")
            first = parts[1].add(Affine(constant=parts[0]))
            found[repr((sorted(first.terms.items()), first.constant, item.parts))] = first, item.parts
        if len(found) != 1:
            raise NotUniform(f"several items are first in an iteration of {around[-1].var}")
        return next(iter(found.values()))

    def _limit(self, head: Loop, known: ItemLoop, outer: tuple[Loop, ...]) -> _Limit | None:
        """Which iterations have an item that exists; None where these are not the first ones."""
        if head.kind == "unrolled" or head.step < 0:
            return None
        found: dict[str, _Limit] = {}
        names = {loop.var for loop in outer}
        for item in known.items.values():
            place, factor = item.place, item.place.coefficient(head.var)
            inner = [name for name in place.terms if name != head.var and name not in names]
            rest = Affine({key: f for key, f in place.terms.items() if key != head.var}, place.constant, place.atoms)
            parts = least(rest, known.ranges, inner)
            if factor <= 0 or parts is None:
                return None
            low, around = parts[0] + parts[1].constant, Affine(parts[1].terms, 0, parts[1].atoms)
            limit = _Limit(factor, low, around, item.parts)
            before = found.get(limit.place)
            found[limit.place] = replace(limit, low=low if before is None else min(low, before.low))
        return next(iter(found.values())) if len(found) == 1 else None

    def _bounded(self, head: Loop, limit: _Limit) -> Loop:
        """The loop over these iterations."""
        whole = Affine(constant=self.items * limit.parts - limit.low).add(limit.around, -1)
        own = list(head.stop.args) if _is_least(head.stop) else [head.stop]
        if limit.factor == 1:  # what ends with the batch ends with the last item that exists, too
            own = [part for part in own if not _equal(part, whole) or constant(part) is not None]
        number = Affine({"items": limit.parts}, limit.factor - 1 - limit.low, {"items": self.number})
        end = number.add(limit.around, -1).to_expr()
        if limit.factor > 1:
            end = ast.BinOp(end, ast.FloorDiv(), ast.Constant(limit.factor))
        return replace(head, stop=ast.Call(ast.Name("min", ast.Load()), [*clones(own), end], []))


@dataclass(frozen=True)
class _Parts:
    """A block of items that are computed side by side.

    Args:
        whole: whether its last part has an item.
        one_by_one: the parts that have an item, one after the other.
    """

    whole: ast.expr
    one_by_one: list[ast.stmt]


@dataclass(frozen=True)
class _Limit:
    """Iteration ``v`` of a loop has an item that exists if ``factor * v + low + around < items * parts``."""

    factor: int
    low: int
    around: Affine
    parts: int

    @property
    def place(self) -> str:
        """The loops around, told apart."""
        return repr((sorted(self.around.terms.items()), self.parts))

    @property
    def key(self) -> tuple[int, int, str]:
        """Equal for equal ones."""
        return self.factor, self.low, self.place

    def divides(self, head: Loop, outer: Sequence[Loop]) -> bool:
        """Whether the loop is all of it inside of one item, as no other item begins in it."""
        loops = {loop.var: loop for loop in outer}
        extent = head.extent
        if extent is None or self.factor != 1 or self.parts % extent or self.low % extent:
            return False
        for name, factor in self.around.terms.items():
            start = constant(loops[name].start) if name in loops else None
            if start is None or (factor * start) % extent or (factor * loops[name].step) % extent:
                return False
        return True


def _is_least(node: ast.expr) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "min"


def _equal(node: ast.expr, form: Affine) -> bool:
    own = affine(node)
    return own is not None and own.terms == form.terms and own.constant == form.constant
