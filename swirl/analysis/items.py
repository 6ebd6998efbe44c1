"""Which iterations and statements of a program belong to which item of the batch.

Nobody marks the loops over items: which they are follows from the buffers that have elements for each item
(:attr:`swirl.ir.buffers.Buffer.items`) and from the subscripts of these, before and after any command. Where an
element belongs to item ``e`` (affine in loop variables), so does the statement that touches it; a loop whose variable
is in ``e`` is a loop over items; a local or temporary array that is stored to at subscripts that tell items apart has
elements for each item, too. The innermost loop over items around a statement is a *leaf*: one iteration is one item,
or a part of one.

A statement in a leaf that stores to anything that does not tell items apart *mixes* them: it adds to a sum over the
batch, as a rule. What it does for an item that does not exist would be wrong; anything else that is done for such an
item goes to elements that nothing else reads.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from swirl.analysis.touches import Item, Touch, touches
from swirl.ir.affine import Affine, Ranges, affine, bounds_of_atom
from swirl.ir.buffers import Buffer
from swirl.ir.item_numbers import NotUniform
from swirl.ir.nest import Nest, Program, loop_of, names_in
from swirl.ir.printing import unparse
from swirl.ir.trees import children, nodes

_MOST_ROUNDS = 8  # rounds in which arrays with elements for each item are found; chains of copies are short


@dataclass(frozen=True)
class Separate:
    """How an array's subscripts tell items apart: the place is ``sum(factor * subscript) + constant``, and terms of the
    loops around a local's declaration."""

    factors: tuple[tuple[int, int], ...]
    rest: int
    outside: tuple[tuple[str, int], ...] = ()
    parts: int = 1

    def item(self, touch: Touch) -> Item | None:
        """The item of an element; None where its subscripts are not affine."""
        result = Affine(constant=self.rest)
        for name, factor in self.outside:
            result = result.add(Affine({name: factor}, 0, {name: ast.Name(name, ast.Load())}))
        for dim, factor in self.factors:
            form = affine(touch.indices[dim], touch.ranges)
            if form is None:
                return None
            result = result.add(form, factor)
        return Item(result, self.parts)


@dataclass
class ItemLoop:
    """A loop over items.

    Args:
        node: the loop.
        items: those that statements in it belong to, each once.
        leaf: whether one iteration is one item.
        mixing: the stores in it that mix items; if it is not a leaf, blocks of them.
        outside: the stores in it that belong to no item and are needed for each of its iterations, if it is not a leaf.
        exact: whether nothing in it may be done for an item that does not exist: something has data as a subscript, or
            is in memory that ends with the last item.
        ranges: of all loops around and inside.
    """

    node: ast.For
    items: dict[str, Item] = field(default_factory=dict)
    leaf: bool = True
    mixing: list[Touch] = field(default_factory=list)
    outside: list[Touch] = field(default_factory=list)
    exact: bool = False
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)


class NestItems:
    """The loops over items of one nest.

    Args:
        nest: it is looked at as it is; loops are known by their nodes.
        buffers: of its program.
        separate: arrays, not among those with ``items``, that tell items apart, by name; None stands for one that does
            not. Those that the nest stores to are added.

    Raises:
        NotUniform: items depend on each other in another way than by sums, or on their numbers.
    """

    def __init__(self, nest: Nest, buffers: Mapping[str, Buffer], separate: dict[str, Separate | None]):
        self.nest, self.buffers, self.separate = nest, buffers, separate
        self.touches = list(touches(nest.body, buffers))
        self.loops: dict[int, ItemLoop] = {}
        self._locals: dict[tuple[str, int], Separate | None] = {}
        self._together: set[tuple[str, int]] = set()
        """Arrays that look as if they told items apart, and do not: the lanes of a sum over a batch of one vector,
        which are added up after it."""
        while True:
            self._find()
            try:
                self._check()
                break
            except NotUniform as error:
                if error.arrays <= self._together:
                    raise
                self._together |= error.arrays
        self._sort_stores()

    def _find(self) -> None:
        for _ in range(_MOST_ROUNDS):
            self._find_items()
            self._find_loops()
            if not self._find_separate():
                return
        raise NotUniform("its arrays are copied too often to follow")

    def leaf_of(self, touch: Touch) -> ItemLoop | None:
        """The innermost loop over items around."""
        return next((self.loops[id(node)] for node in reversed(touch.loops) if id(node) in self.loops), None)

    def alone_in_blocks(self) -> dict[int, dict[str, Item]]:
        """Statements, and loops that are not over items, that touch one item of a block of them, not its first one,
        directly in the loop over blocks: the node's id → the items. They are what is left of a loop of one iteration
        beside copies of others. A loop that is over items for others of its statements counts statement by statement.

        Raises:
            NotUniform: a condition on such an item is around a loop over items.
        """
        found: dict[int, dict[str, Item]] = {}
        for touch in self.touches:
            loop = self.leaf_of(touch)
            if touch.item is not None and touch.item.place.terms and loop is not None and not loop.leaf:
                depth = [id(node) for node in touch.loops].index(id(loop.node)) + 1
                if _is_first(touch.item, loop, {loop_of(node).var for node in touch.loops[:depth]}):
                    continue
                inside = touch.loops[depth:]
                whole = (n for n in (*inside, touch.statement) if not any(id(part) in self.loops for part in nodes(n)))
                node = next(whole, None)
                if node is None:
                    raise NotUniform(f"{touch.text} decides on other items of a block")
                found.setdefault(id(node), {})[touch.item.key] = touch.item
        return found

    # --- finding ----------------------------------------------------------------------------------------------
    def _find_items(self) -> None:
        for touch in self.touches:
            buffer = self.buffers.get(touch.name) if touch.home < 0 else None
            if buffer is not None and buffer.items:
                touch.item = _item_of_part(touch, buffer)
            else:
                known = self._known(touch)
                touch.item = known.item(touch) if known is not None else None
                if known is not None and touch.item is None:
                    raise NotUniform(f"{touch.name} is looked up in elements of each item")

    def _known(self, touch: Touch) -> Separate | None:
        if touch.home < 0:
            return self.separate.get(touch.name)
        return self._locals.get((touch.name, self._scope(touch)))

    def _scope(self, touch: Touch) -> int:
        """Tells locals of one name in several blocks apart."""
        return id(touch.loops[touch.home - 1]) if touch.home else 0

    def _find_loops(self) -> None:
        self.loops = {}
        for touch in self.touches:
            if touch.item is None:
                continue
            for node in touch.loops:
                if touch.item.place.mentions(loop_of(node).var):
                    self.loops.setdefault(id(node), ItemLoop(node))
        for touch in self.touches:
            for node in touch.loops:
                if id(node) in self.loops:
                    loop = self.loops[id(node)]
                    loop.ranges.update(touch.ranges)
                    loop.exact |= any(isinstance(n, ast.Subscript) for i in touch.indices for n in nodes(i))
                    loop.exact |= touch.home < 0 and touch.name in self.buffers and self.buffers[touch.name].given
                    if touch.item is not None:
                        loop.items.setdefault(touch.item.key, touch.item)
        for touch in self.touches:
            around = [self.loops[id(node)] for node in touch.loops if id(node) in self.loops]
            for loop in around[:-1]:
                loop.leaf = False

    def _find_separate(self) -> bool:
        """Arrays that tell items apart, from what is stored to them; whether there is a new one."""
        found: dict[tuple[str, int], list[Separate | None]] = {}
        for touch in self.touches:
            if not touch.store or not touch.indices or self._persists(touch):
                continue
            inside = [self.loops[id(node)] for node in touch.loops[max(touch.home, 0) :] if id(node) in self.loops]
            if inside and inside[-1].leaf and len(inside[-1].items) == 1:
                (item,) = inside[-1].items.values()
                found.setdefault((touch.name, self._place(touch)), []).append(_separate(touch, item, inside))
        new = False
        for (name, place), ways in found.items():
            way = ways[0] if all(other == ways[0] for other in ways) else None
            way = None if (name, place) in self._together else way
            known = self._locals if place >= 0 else None
            if known is not None:
                new |= known.get((name, place)) != way
                known[name, place] = way
            elif way is not None or (name, place) in self._together:
                new |= self.separate.get(name) != way
                self.separate[name] = way
        return new

    def _place(self, touch: Touch) -> int:
        return -1 if touch.home < 0 else self._scope(touch)

    def _persists(self, touch: Touch) -> bool:
        """Whether it is of a buffer that is no temporary: what it has elements of is known."""
        buffer = self.buffers.get(touch.name) if touch.home < 0 else None
        return buffer is not None and (bool(buffer.items) or buffer.role != "temporary")

    # --- checking ---------------------------------------------------------------------------------------------
    def _check(self) -> None:
        for touch in self.touches:
            around = [self.loops[id(node)] for node in touch.loops if id(node) in self.loops]
            if touch.item is None:
                self._check_other(touch, {loop_of(loop.node).var for loop in around})
                continue
            place = touch.item.place
            if not place.terms:
                if not 0 <= place.constant < touch.item.parts or touch.store or around:
                    raise NotUniform(f"{touch.text} names an item", self._guessed([touch]))
                continue
            variables = {loop_of(loop.node).var for loop in around}
            if variables != place.terms.keys():  # others are looked up, or inside of a quotient
                raise NotUniform(f"{touch.text} belongs to another item than the loops around", self._guessed([touch]))
        for loop in self.loops.values():
            factors = {item.place.coefficient(loop_of(loop.node).var) for item in loop.items.values()}
            if len(factors) != 1 or 0 in factors:
                raise NotUniform(f"{loop_of(loop.node).var} counts items in several ways", self._guessed_in(loop))
            if loop.leaf and len(loop.items) != 1:
                texts = sorted(unparse(item.place.to_expr()) for item in loop.items.values())
                raise NotUniform(f"items {texts[0]} and {texts[1]} meet in one iteration", self._guessed_in(loop))

    def _guessed(self, touches: Iterable[Touch]) -> set[tuple[str, int]]:
        """The arrays among what is touched of which nothing but stores says that they have elements for each item."""
        return {(touch.name, self._place(touch)) for touch in touches if touch.item and not self._persists(touch)}

    def _guessed_in(self, loop: ItemLoop) -> set[tuple[str, int]]:
        return self._guessed(touch for touch in self.touches if any(node is loop.node for node in touch.loops))

    def _check_other(self, touch: Touch, variables: set[str]) -> None:
        """Raises NotUniform where an element that belongs to no item is chosen by the number of one: its loop may have
        been joined with one over items, of which there are as many in a whole batch."""
        if self._persists(touch) and any(_plain_names(index) & variables for index in touch.indices):
            raise NotUniform(f"{touch.text} is chosen by the item's number")

    def _sort_stores(self) -> None:
        for touch in self.touches:
            if not touch.store:
                continue
            places = [place for place, node in enumerate(touch.loops) if id(node) in self.loops]
            outlived = [place for place in places if place >= max(touch.home, 0)]
            if not outlived or touch.item is not None:
                continue
            inner = self.loops[id(touch.loops[places[-1]])]
            if inner.leaf:
                variables = {loop_of(touch.loops[place]).var for place in outlived}
                if not touch.updates and any(_plain_names(index) & variables for index in touch.indices):
                    raise NotUniform(f"{touch.text} is set for each item, and is not one of its elements")
                for place in outlived:
                    self.loops[id(touch.loops[place])].mixing.append(touch)
            else:
                for place in outlived:
                    loop = self.loops[id(touch.loops[place])]
                    variable = loop_of(loop.node).var
                    # A sum over blocks of items goes on without a block that has none.
                    if not touch.updates or any(variable in names_in(index) for index in touch.indices):
                        loop.outside.append(touch)
                    else:
                        loop.mixing.append(touch)


def _is_first(item: Item, loop: ItemLoop, around: set[str]) -> bool:
    """Whether no item of an iteration of a loop over blocks comes before this one: it exists if the block does.

    Args:
        item: that no loop inside chooses.
        loop: over blocks.
        around: the variables of the loop, and of those around it.
    """
    for other in loop.items.values():
        inner = [name for name in other.place.terms if name not in around]
        parts = least(other.place, loop.ranges, inner)
        if parts is None or parts[1].terms != item.place.terms or other.parts != item.parts:
            return False
        if parts[0] + parts[1].constant < item.place.constant:
            return False
    return True


def _item_of_part(touch: Touch, buffer: Buffer) -> Item:
    """The item of an element of a buffer that is equal parts."""
    leading, parts = buffer.shape[0], buffer.items
    if leading % parts:
        raise NotUniform(f"{touch.name} has the batch beside other dimensions")
    form = affine(touch.indices[0], touch.ranges)
    if form is None:
        raise NotUniform(f"which item of {touch.name} is meant depends on data")
    return Item(form, leading // parts)


def _separate(touch: Touch, of: Item, inside: Sequence[ItemLoop]) -> Separate | None:
    """How the subscripts of a store tell items apart; None where they do not."""
    item = of.place
    own = [loop_of(loop.node).var for loop in inside]
    outside = tuple((name, factor) for name, factor in item.terms.items() if name not in own)
    forms = [affine(index, touch.ranges) for index in touch.indices]
    within = Affine({name: factor for name, factor in item.terms.items() if name in own}, 0, item.atoms)
    if any(name not in item.terms for name in own):
        return None
    for dim, form in enumerate(forms):
        if form is not None and form.terms == within.terms:
            return Separate(((dim, 1),), item.constant - form.constant, outside, of.parts)
    factors = []
    for name in own:
        alone = (form is not None and form.terms == {name: 1} and not form.constant for form in forms)
        found = next((dim for dim, plain in enumerate(alone) if plain), None)
        if found is None:
            return None
        factors.append((found, item.terms[name]))
    return Separate(tuple(factors), item.constant, outside, of.parts)


def _plain_names(index: ast.expr) -> set[str]:
    """The names in a subscript, but for those in references, which stand for data."""
    if isinstance(index, ast.Subscript):
        return set()
    return {index.id} if isinstance(index, ast.Name) else set().union(*map(_plain_names, _parts(index)), set())


def _parts(node: ast.expr) -> list[ast.expr]:
    return [part for part in children(node) if isinstance(part, ast.expr)]


def least(form: Affine, ranges: Ranges, variables: Iterable[str]) -> tuple[int, Affine] | None:
    """A form as the least value of what is of ``variables``, and the rest; None where that is not known."""
    chosen, low, rest = set(variables), 0, Affine(constant=form.constant)
    for name, factor in form.terms.items():
        if name not in chosen:
            rest = rest.add(Affine({name: factor}, 0, {name: form.atoms[name]}))
            continue
        limits = bounds_of_atom(form.atoms[name], ranges)
        if limits is None:
            return None
        low += min(factor * limits[0], factor * limits[1])
    return low, rest


# --- programs -------------------------------------------------------------------------------------------------
def places_of_items(program: Program, nest: Nest) -> dict[str, Item] | None:
    """The variables of the loops of a nest that are over items, each with the place of the item that its innermost
    statements belong to; None where that is not known."""
    try:
        found = NestItems(nest, program.buffers, {})
    except NotUniform:
        return None
    places: dict[str, Item] = {}
    for loop in found.loops.values():
        variable = loop_of(loop.node).var
        longest = max(loop.items.values(), key=lambda item: len(item.place.terms))
        if variable in places and places[variable].key != longest.key:
            return None
        places[variable] = longest
    return places


def program_items(program: Program, separate: dict[str, Separate | None] | None = None) -> list[NestItems]:
    """The loops over items of every nest.

    Args:
        program: its references are logical.
        separate: gets the temporaries that tell items apart, by name.

    Raises:
        NotUniform: see :class:`NestItems`.
    """
    separate = {} if separate is None else separate
    while True:
        before = dict(separate)
        found = [NestItems(nest, program.buffers, separate) for nest in program.nests]
        if separate == before:
            return found
