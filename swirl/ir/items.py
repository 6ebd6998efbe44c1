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
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import CodeType

from swirl.ir.affine import Affine, Ranges, affine, bounds_of_atom, loop_range, simplify_body
from swirl.ir.buffers import Buffer
from swirl.ir.hints import stored_value
from swirl.ir.nest import Loop, Nest, Program, clone, constant, loop_of, names_in, subscripts
from swirl.ir.printing import unparse
from swirl.ir.trees import ASSIGNMENTS, Transformer, children, name_of, nodes, target_of

FORMULA = "items"
"""The formula of the number of items itself."""
ITEMS = Buffer("net.items", (1,), "int32", "scalar", formula=FORMULA)
"""The number of items in the batch: a run-time scalar."""

_MOST_ROUNDS = 8  # rounds in which arrays with elements for each item are found; chains of copies are short
_CALLS = {name: getattr(math, name) for name in ("sqrt", "exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos")}
_CALLS |= {"min": min, "max": max, "abs": abs, "floor": math.floor, "int": int, "float": float, "pow": pow}


class NotUniform(Exception):
    """The program computes something else for fewer items than the same loops with fewer iterations: the text says
    what.

    Args:
        reason: the text.
        arrays: those that were taken to have elements for each item, by name and place: there may be another reading.
    """

    def __init__(self, reason: str, arrays: Collection[tuple[str, int]] = ()):
        super().__init__(reason)
        self.arrays = frozenset(arrays)


def value_of(formula: str, items: int) -> float:
    """The number that a formula stands for.

    Args:
        formula: Python's arithmetic on ``items``, as a body has it, written by the frontend: ``items * 256``.
        items: of the batch.

    Raises:
        ZeroDivisionError, ValueError, OverflowError: there is none.
    """
    return float(eval(_code(formula), {"__builtins__": {}, **_CALLS}, {FORMULA: items}))  # text of our own


@lru_cache(maxsize=1024)
def _code(formula: str) -> CodeType:
    return compile(formula, "<formula>", "eval")


def capacity(programs: Iterable[Program]) -> int:
    """The number of items in a whole batch, as buffers say; 0 where none has elements for each item.

    Raises:
        NotUniform: they say several.
    """
    found = {buffer.items for program in programs for buffer in program.buffers.values()} - {0}
    if len(found) > 1:
        raise NotUniform(f"its arrays are of {' and '.join(map(str, sorted(found)))} items")
    return found.pop() if found else 0


# --- what is touched ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Item:
    """Which item something belongs to: the one of number ``place // parts``.

    Args:
        place: affine in loop variables.
        parts: of an item; more than one where the batch and other dimensions are one loop.
    """

    place: Affine
    parts: int = 1

    @property
    def key(self) -> str:
        """The same for equal ones."""
        return repr((sorted(self.place.terms.items()), self.place.constant, self.parts))


@dataclass
class Touch:
    """A reference to an element, or to a scalar local, at its place.

    Args:
        name: of the buffer or local.
        indices: the subscripts.
        store: whether it is stored to; an update is a store and a read.
        node: the reference.
        statement: that does it.
        loops: around it, outermost first.
        ranges: of their variables.
        home: the number of loops around the local's declaration; -1 for a buffer.
        item: that it belongs to; None where it belongs to none.
    """

    name: str
    indices: Sequence[ast.expr]
    store: bool
    node: ast.expr
    statement: ast.stmt
    loops: tuple[ast.For, ...]
    ranges: Ranges
    home: int
    item: Item | None = None

    @property
    def updates(self) -> bool:
        """Whether the new value is made of the old one."""
        value = self.statement.value if isinstance(self.statement, ast.Assign) else None
        return isinstance(self.statement, ast.AugAssign) or (value is not None and self.name in names_in(value))


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
        mixing: the stores in it that mix items, if it is a leaf.
        outside: the stores in it that belong to no item and are to what lives on after it, if it is not a leaf.
        looks_up: whether something in it has data as a subscript.
        ranges: of all loops around and inside.
    """

    node: ast.For
    items: dict[str, Item] = field(default_factory=dict)
    leaf: bool = True
    mixing: list[Touch] = field(default_factory=list)
    outside: list[Touch] = field(default_factory=list)
    looks_up: bool = False
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
        self.touches = list(_touches(nest.body, buffers))
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
                    loop.looks_up |= any(isinstance(n, ast.Subscript) for i in touch.indices for n in nodes(i))
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
                    raise NotUniform(f"{_text(touch)} names an item", self._guessed([touch]))
                continue
            variables = {loop_of(loop.node).var for loop in around}
            if variables != place.terms.keys():  # others are looked up, or inside of a quotient
                raise NotUniform(
                    f"{_text(touch)} belongs to another item than the loops around", self._guessed([touch])
                )
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
            raise NotUniform(f"{_text(touch)} is chosen by the item's number")

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
                    raise NotUniform(f"{_text(touch)} is set for each item, and is not one of its elements")
                for place in outlived:
                    self.loops[id(touch.loops[place])].mixing.append(touch)
            else:
                for place in outlived:
                    self.loops[id(touch.loops[place])].outside.append(touch)


def _touches(
    body: Sequence[ast.stmt],
    buffers: Mapping[str, Buffer],
    loops: tuple[ast.For, ...] = (),
    ranges: Ranges | None = None,
    homes: Mapping[str, int] | None = None,
) -> Iterator[Touch]:
    """Every reference in statements, with its place; ``home`` is -1 for buffers."""
    ranges, homes = ranges or {}, dict(homes or {})

    def at(statement: ast.stmt, node: ast.expr, store: bool) -> Touch | None:
        name = name_of(node)
        if name in homes:
            home = homes[name]
        elif name in buffers:
            home = -1
        else:
            return None  # a loop variable
        indices = subscripts(node) if isinstance(node, ast.Subscript) else []
        return Touch(name, indices, store, node, statement, loops, ranges, home)

    def reads(statement: ast.stmt, tree: ast.AST) -> Iterator[Touch]:
        of_arrays: set[int] = set()
        for node in nodes(tree):
            if isinstance(node, ast.Subscript):
                of_arrays.add(id(node.value))
            if isinstance(node, ast.Subscript) or (isinstance(node, ast.Name) and id(node) not in of_arrays):
                found = at(statement, node, False)
                if found is not None:
                    yield found

    for node in body:
        if isinstance(node, ast.For):
            loop = loop_of(node)
            yield from reads(node, loop.start)
            yield from reads(node, loop.stop)
            inside = {**ranges, **loop_range(loop, ranges)}
            yield from _touches(node.body, buffers, (*loops, node), inside, homes)
        elif isinstance(node, ast.If):
            yield from reads(node, node.test)
            for branch in (node.body, node.orelse):
                yield from _touches(branch, buffers, loops, ranges, homes)
        elif isinstance(node, ASSIGNMENTS):
            target = target_of(node)
            assert node.value is not None
            if isinstance(node, ast.AnnAssign):
                homes[name_of(target)] = len(loops)
                if isinstance(node.annotation, ast.Subscript):
                    continue  # an array, without values yet
            yield from reads(node, stored_value(node.value))
            for index in subscripts(target) if isinstance(target, ast.Subscript) else []:
                yield from reads(node, index)
            found = at(node, target, True)
            assert found is not None
            yield found


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


def _text(touch: Touch) -> str:
    return f"{touch.name}[{', '.join(map(unparse, touch.indices))}]" if touch.indices else touch.name


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


def for_any_number(program: Program, items: int, fixed: str = "", over_items: Collection[str] = ()) -> Program:
    """A program as it was lowered or derived, which says what forbids fewer items, if anything does.

    It computes for fewer items what the same loops with fewer iterations compute, if each loop over items runs over all
    of them, one after the other, by a variable that is a subscript of their elements and nothing else; and if what has
    as many iterations as there are items counts something else for sure.

    Args:
        program: without commands.
        items: of a whole batch.
        fixed: what is known to forbid it.
        over_items: variables of loops that are over items, as the body says.
    """
    if fixed or items < 2:
        return replace(program, fixed=fixed)
    try:
        for nest in program_items(program):
            for loop in nest.loops.values():
                head = loop_of(loop.node)
                if head.kind != "range" or head.step != 1 or constant(head.start) != 0 or constant(head.stop) != items:
                    raise NotUniform(f"the loop over {head.var} is not over all items")
                if not loop.leaf:
                    raise NotUniform(f"the loop over {head.var} has another one over items in it")
                _check_number_unused(loop.node, nest)
                _check_sums(loop, nest)
            _check_other_loops(nest.nest.body, nest, items, over_items)
    except NotUniform as error:
        return replace(program, fixed=str(error))
    return program


def with_items(programs: Mapping[str, Program], items: int, added: Collection[str]) -> dict[str, Program]:
    """Programs whose arrays say which of those that were ``added`` have elements for each item: they follow from what
    is stored in them.

    Args:
        programs: of one layer, by phase.
        items: of a whole batch.
        added: storage that the declaration does not have.

    Raises:
        NotUniform: see :class:`NestItems`.
    """
    found: set[str] = set()
    for program in programs.values():
        own = {name: b for name, b in program.buffers.items() if b.name in added and not b.items}
        if not own:
            continue
        asked = program.with_buffers(**{name: replace(buffer, role="temporary") for name, buffer in own.items()})
        separate: dict[str, Separate | None] = {}
        program_items(asked, separate)
        parts = Separate(((0, 1),), 0)
        found |= {
            buffer.name for name, buffer in own.items() if separate.get(name) == parts and buffer.shape[0] == items
        }

    def marked(program: Program) -> Program:
        own = {name: replace(b, items=items) for name, b in program.buffers.items() if b.name in found}
        return program.with_buffers(**own) if own else program

    return {phase: marked(program) for phase, program in programs.items()}


def for_whole_batches(program: Program, why: str) -> Program:
    """The program with the numbers of a whole batch as constants, if there are any: for a command that computes with
    them."""
    constants = _with_constants(program)
    return program if constants is program or program.fixed else replace(constants, fixed=why)


def whole_batch(program: Program) -> Program:
    """What a program computes for a whole batch, bounds and all: to count its work."""
    constants = _with_constants(program)
    if constants is program:
        return program
    return constants.with_nests([nest.with_body(simplify_body(nest.body)) for nest in constants.nests])


def _with_constants(program: Program) -> Program:
    """The program with the numbers of a whole batch as constants; itself where it has none."""
    scalars = {name: buffer.formula for name, buffer in program.buffers.items() if buffer.formula}
    items = capacity([program]) if scalars else 0
    if not items:
        return program
    known = {name: value_of(formula, items) for name, formula in scalars.items()}
    integers = {name for name in scalars if program.buffers[name].dtype == "int32"}
    nests = []
    for nest in program.nests:
        body = [_Constants(known, integers).visit(clone(statement)) for statement in nest.body]
        nests.append(nest.with_body(body) if nest.names & known.keys() else nest)
    buffers = {name: buffer for name, buffer in program.buffers.items() if name not in scalars}
    return replace(program, nests=tuple(nests), buffers=buffers)


class _Constants(Transformer):
    """Scalars as constants, in a copy."""

    def __init__(self, known: Mapping[str, float], integers: Collection[str]):
        self.known, self.integers = known, integers

    def visit_Call(self, node: ast.Call) -> ast.AST:
        arg = node.args[0] if len(node.args) == 1 else None
        if isinstance(arg, ast.Subscript) and name_of(arg) in self.known and unparse(node.func).startswith("float"):
            return ast.Constant(self.known[name_of(arg)])
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        name = name_of(node)
        if name not in self.known:
            return self.generic_visit(node)
        return ast.Constant(int(self.known[name]) if name in self.integers else self.known[name])


def _check_number_unused(node: ast.For, nest: NestItems) -> None:
    """Raises NotUniform where a body uses the number of its item otherwise than as a subscript of its elements."""
    variable = loop_of(node).var
    known = {id(touch.node) for touch in nest.touches if touch.item is not None}

    def check(tree: ast.AST) -> None:
        if isinstance(tree, ast.Name) and tree.id == variable and isinstance(tree.ctx, ast.Load):
            raise NotUniform(f"the body uses the item's number {variable}")
        if isinstance(tree, ast.Call) and unparse(tree.func) == "rand" and variable in names_in(tree):
            if nest.nest.body[0] is not node:
                raise NotUniform("a random number's place in the batch depends on the number of items")
            return
        parts = subscripts(tree) if isinstance(tree, ast.Subscript) and id(tree) in known else children(tree)
        for part in parts:
            plain = isinstance(part, ast.Name) and isinstance(tree, ast.Subscript) and id(tree) in known
            if not plain:
                check(part)

    for statement in node.body:
        check(statement)


def _check_sums(loop: ItemLoop, nest: NestItems) -> None:
    """Raises NotUniform where something is added up over items that is not made of their elements: no subscript would
    show, after a command, that the loop is one over items."""
    known = {id(touch.node) for touch in nest.touches if touch.item is not None}
    derived: set[str] = set()

    def made_of_items(*trees: ast.AST) -> bool:
        parts = [part for tree in trees for part in nodes(tree)]
        return any(id(part) in known or (isinstance(part, ast.Name) and part.id in derived) for part in parts)

    def check(body: Sequence[ast.stmt], guards: tuple[ast.expr, ...], last: bool) -> None:
        for statement in body:
            if isinstance(statement, ast.For):
                check(statement.body, guards, last)
            elif isinstance(statement, ast.If):
                check(statement.body, (*guards, statement.test), last)
                check(statement.orelse, (*guards, statement.test), last)
            elif isinstance(statement, ASSIGNMENTS) and statement.value is not None:
                if made_of_items(statement.value, *guards):
                    derived.update({name_of(target_of(statement))} - nest.buffers.keys())
                elif last and any(touch.statement is statement and touch.updates for touch in loop.mixing):
                    raise NotUniform(f"{unparse(statement)} is the same for each item")

    while True:  # a local may be made of another one that is assigned after it
        before = len(derived)
        check(loop.node.body, (), False)
        if len(derived) == before:
            break
    check(loop.node.body, (), True)


def _check_other_loops(body: Sequence[ast.stmt], nest: NestItems, items: int, over_items: Collection[str]) -> None:
    """Raises NotUniform where a loop may be over items and nothing shows it."""
    for statement in body:
        if isinstance(statement, ast.If):
            _check_other_loops(statement.body, nest, items, over_items)
            _check_other_loops(statement.orelse, nest, items, over_items)
        if not isinstance(statement, ast.For):
            continue
        loop = loop_of(statement)
        alike = id(statement) not in nest.loops and loop.extent == items
        if alike and (loop.var in over_items or not _is_subscript(statement, loop)):
            raise NotUniform(f"the loop over {loop.var} has as many iterations as the batch has items")
        _check_other_loops(statement.body, nest, items, over_items)


def _is_subscript(node: ast.For, loop: Loop) -> bool:
    return any(loop.var in names_in(part.slice) for part in nodes(node) if isinstance(part, ast.Subscript))
