"""Vector loops in registers: each statement for all lanes, a register at a time (AVX-512, AVX2).

A loop of more lanes than a register has is cut into *chunks*: every value is then several registers, and a
statement is done for all of them before the next one. Lanes that do not exist (the last chunk, ``min`` in
the bound) and conditions are masks. Nothing is reordered.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from swirl.codegen.context import Context, Local, Unsupported
from swirl.codegen.ctree_compat import Assign, Declaration, Expression, If, Node, symbol
from swirl.codegen.intrinsics import Instructions
from swirl.codegen.lane_values import LaneValues
from swirl.codegen.memory import LaneMemory, register_place
from swirl.codegen.register_transpose import transposed_loads
from swirl.codegen.to_c import Statements, declaration_rows
from swirl.ir.affine import affine
from swirl.ir.hints import stored_value, streamed
from swirl.ir.names import stored_in
from swirl.ir.nest import Loop, local_type, loop_of, names_in, reference, subscripts, substitute
from swirl.ir.printing import unparse
from swirl.ir.trees import name_of


class RegisterLanes:
    """Vector loops and register arrays of one instruction set."""

    def __init__(self, instructions: Instructions):
        self.instructions = instructions

    def loop(self, statements: Statements, loop: Loop, body: Sequence[ast.stmt]) -> list[Node]:
        """The statements of a vector loop, in the enclosing C++ block."""
        count, active = statements.lanes_of(loop)
        with statements.context.scope():
            return _Body(self.instructions, statements, loop, count, active).emit(body)

    def filled(
        self, statements: Statements, copies: Loop, values: Sequence[int], body: Sequence[ast.stmt]
    ) -> list[Node] | None:
        """The copies of an unrolled body in which a vector loop writes what those of the others leave out of a row,
        stored as whole registers; None where it is not so."""
        row = _Row.of(statements.context, copies, values, body)
        if row is None or len(values) not in self.instructions.strides:
            return None
        nodes: list[Node] = []
        parts: list[list[Expression]] = []
        for value in values:
            with statements.copy(copies, value):
                nodes += statements.body(row.before)
                with statements.context.scope():
                    lanes = _Body(self.instructions, statements, row.loop, *statements.lanes_of(row.loop))
                    nodes += lanes.emit(row.inside)
                    parts.append(lanes.registers(row.value, statements.context.dtype_of(row.array), nodes))
        with statements.copy(copies, values[0]):
            nodes += self._stored(statements, row, parts)
        return nodes

    def transposed_loads(
        self, statements: Statements, copies: Loop, values: Sequence[int], body: Sequence[ast.stmt]
    ) -> tuple[list[Node], Sequence[ast.stmt]]:
        """Loads of whole rows before the copies of an unrolled body, whose lanes are rows apart, and the body that
        takes its lanes from them."""
        return transposed_loads(statements, self.instructions, copies, values, body)

    def _stored(self, statements: Statements, row: _Row, parts: Sequence[Sequence[Expression]]) -> list[Node]:
        """What the copies have computed, a register of the row after the other."""
        turns = len(parts)
        count, active = statements.lanes_of(row.loop)
        every = None if active is None else ast.BinOp(active, ast.Mult(), ast.Constant(turns))
        lanes = _Body(self.instructions, statements, row.loop, count * turns, every)
        nodes = lanes.tail()
        for chunk in lanes.chunks:
            whole, part = divmod(chunk, turns)
            register = self.instructions.interleaved([of_copy[whole] for of_copy in parts], part)
            nodes.append(lanes.memory.store(row.place, register, chunk, lanes.masks[chunk]))
        return nodes

    def declare(self, context: Context, name: str, dtype: str, shape: tuple[int, ...]) -> tuple[Local, list[Node]]:
        """Registers for an array whose last dimension is lanes."""
        count = -(-shape[-1] // self.instructions.width)
        extents = (*shape[:-1], count) if count > 1 else shape[:-1]
        rows = itertools.product(*map(range, extents))
        names = {row: context.fresh("_".join(map(str, (name, *row)))) for row in rows}
        nodes = declaration_rows(self.instructions.type_of(dtype), names)
        registers = names if count > 1 else {(*row, 0): register for row, register in names.items()}
        return Local(dtype, "registers", registers, shape), nodes

    def element(self, local: Local, key: tuple[int, ...]) -> Expression:
        """One lane of a register array."""
        chunk, lane = divmod(key[-1], self.instructions.width)
        register = (*key[:-1], chunk)
        return self.instructions.element(symbol(local.names[register]), lane, local.dtype)


@dataclass(frozen=True)
class _Row:
    """What unrolled copies of a vector loop store in turns: ``a[2 * v + copy] = …`` for two copies.

    Attributes:
        before: the statements of a copy before its vector loop.
        loop: the vector loop.
        inside: its statements before the store.
        array: what is stored.
        value: that its last statement stores.
        place: where the first copy's first lane is, and ``v`` places on.
    """

    before: Sequence[ast.stmt]
    loop: Loop
    inside: Sequence[ast.stmt]
    array: str
    value: ast.expr
    place: ast.Subscript

    @staticmethod
    def of(context: Context, copies: Loop, values: Sequence[int], body: Sequence[ast.stmt]) -> _Row | None:
        """The row that copies fill; None where they do not, or where one of them may see what another has stored."""
        *before, last = body
        if not isinstance(last, ast.For) or (loop := loop_of(last)).kind != "vector":
            return None
        *inside, store = last.body
        if not isinstance(store, ast.Assign) or not isinstance(store.targets[0], ast.Subscript):
            return None
        target = store.targets[0]
        array, (*rest, moving) = name_of(target), subscripts(target)
        form = affine(moving, context.ranges, fix=True)
        alike = form is not None and form.coefficient(loop.var) == len(values) > 1
        if form is None or not alike or form.coefficient(copies.var) * copies.step != 1:
            return None
        if array in context.locals or context.dtype_of(array) == "bool" or copies.var in names_in(loop.stop):
            return None
        own = {copies.var, loop.var}
        if not form.plain(own) or any(names_in(index) & own for index in rest):
            return None
        # All stores come after the last copy: its place and its lanes must still be what they were.
        placed = {name for index in (*subscripts(target), loop.stop) for name in names_in(index)}
        seen = {name for node in (*before, *inside, store.value) for name in names_in(node)}
        if array in seen or placed & {*stored_in([*before, *inside], declared=True)}:
            return None
        first = substitute(moving, {loop.var: ast.Constant(0)})
        place = reference(array, [*rest, ast.BinOp(first, ast.Add(), ast.Name(loop.var, ast.Load()))])
        return _Row(before, loop, inside, array, stored_value(store.value), place)


class _Body:
    """One vector loop while it is emitted."""

    def __init__(
        self, instructions: Instructions, statements: Statements, loop: Loop, count: int, active: ast.expr | None
    ):
        self.instructions = instructions
        self.statements = statements
        self.context = statements.context
        self.loop = loop
        self.count = count
        self.active = active
        self.chunks = range(-(-count // instructions.width))
        self.values = LaneValues(instructions, statements, loop.var)
        self.memory: LaneMemory = self.values.memory
        self.masks: list[Expression | None] = [None] * len(self.chunks)
        self.depth = 0

    def emit(self, body: Sequence[ast.stmt]) -> list[Node]:
        return [*self.tail(), *self.body(body)]

    def tail(self) -> list[Node]:
        """The masks of the chunks that may not be full."""
        width = self.instructions.width
        nodes: list[Node] = []
        for chunk in self.chunks:
            first = chunk * width
            if self.active is not None:
                rest: ast.expr = ast.BinOp(self.active, ast.Sub(), ast.Constant(first))
                if first + width > self.count:  # the loop has fewer lanes than its registers
                    rest = ast.Call(ast.Name("min", ast.Load()), [ast.Constant(self.count - first), rest], [])
                count = self.context.index(rest)
                self.masks[chunk] = symbol(self.tail_name(count, chunk, nodes))
            elif first + width > self.count:
                self.masks[chunk] = self.instructions.first_lanes(self.count - first)
        return nodes

    def tail_name(self, count: ast.expr, chunk: int, nodes: list[Node]) -> str:
        """The variable with the mask of the first ``count`` lanes; one that exists here already is reused."""
        tails, text = self.context.tails, unparse(count)
        if text not in tails:
            name = self.context.fresh(f"tail_{chunk}" if len(self.chunks) > 1 else "tail")
            mask = self.instructions.first_lanes(self.statements.expressions.integer(count))
            nodes.append(Declaration(f"const {self.instructions.mask_type}", name, mask))
            if not names_in(count) <= {"min", "max", *self.context.ranges}:
                return name  # a local's value may change
            tails[text] = name
        return tails[text]

    def suffix(self, chunk: int) -> str:
        return self.context.suffix() + (f"_{chunk}" if len(self.chunks) > 1 else "")

    def body(self, body: Sequence[ast.stmt]) -> list[Node]:
        return [node for statement in body for node in self.statement(statement)]

    def statement(self, node: ast.stmt) -> list[Node]:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            return self.assignment(node.targets[0], node.value)
        if isinstance(node, ast.AugAssign):
            return self.assignment(node.target, ast.BinOp(node.target, node.op, node.value), augmented=True)
        if isinstance(node, ast.AnnAssign) and not local_type(node).shape:
            return self.declaration(node)
        if isinstance(node, ast.If):
            return self.branch(node)
        if isinstance(node, ast.Pass):
            return []
        raise Unsupported("a vector loop holds assignments, declarations of one value for each lane, and if", node)

    def declaration(self, node: ast.AnnAssign) -> list[Node]:
        assert isinstance(node.target, ast.Name) and node.value is not None
        dtype = local_type(node).dtype
        names: dict[tuple[int, ...], str] = {}
        nodes = []
        for chunk in self.chunks:
            value = self.values.lanes(node.value, dtype, chunk, self.masks[chunk])
            names[(chunk,)] = self.context.fresh(node.target.id + self.suffix(chunk))
            nodes.append(Declaration(self.instructions.type_of(dtype), names[(chunk,)], value))
        self.context.locals[node.target.id] = Local(dtype, "lanes", names, depth=self.depth)
        return nodes

    # --- conditions -----------------------------------------------------------------------------------------
    def branch(self, node: ast.If) -> list[Node]:
        known = self.context.truth(node.test)
        if known is not None:
            with self.context.scope():
                return self.body(node.body if known else node.orelse)
        parts = self.values.parted(node.test)
        if parts is not None:
            inner = ast.If(parts[1], node.body, node.orelse)
            return self.branch(ast.If(parts[0], [inner], node.orelse))
        if not self.values.varies(node.test):
            branches = []
            for body in (node.body, node.orelse):
                with self.context.block():
                    branches.append(self.body(body))
            return [If(self.statements.expressions.condition(node.test), branches[0], branches[1] or None)]
        nodes: list[Node] = []
        outer = self.masks
        tests = [self.undecided(node.test, chunk) for chunk in self.chunks]
        if not any(tests):
            with self.context.scope():
                return self.body(node.body)
        conditions: list[Expression | None] = []
        for chunk, test in enumerate(tests):
            if test is None:
                conditions.append(outer[chunk])
                continue
            mask = self.values.both(outer[chunk], self.mask_of(test, chunk))
            conditions.append(self.named_mask("mask", mask, chunk, nodes))
        nodes += self.masked(node.body, conditions)
        if node.orelse:
            rest: list[Expression | None] = []
            for chunk, condition in enumerate(conditions):
                if tests[chunk] is None or condition is None:
                    mask = self.instructions.constant_mask([])
                else:
                    mask = self.instructions.mask_not(condition, outer[chunk])
                rest.append(self.named_mask("otherwise", mask, chunk, nodes))
            nodes += self.masked(node.orelse, rest)
        return nodes

    def undecided(self, test: ast.expr, chunk: int) -> ast.expr | None:
        """What is left of a condition for the lanes of a chunk; None where it holds for all of them."""
        width = self.instructions.width
        first = chunk * width
        with self.context.scope():
            self.context.ranges[self.loop.var] = (first, min(first + width, self.count) - 1)
            if self.context.truth(test) is True:
                return None
            if isinstance(test, ast.BoolOp):
                left = self.context.undecided(test)
                return left[0] if len(left) == 1 else ast.BoolOp(test.op, left)
            return test

    def mask_of(self, test: ast.expr, chunk: int) -> Expression:
        """The lanes of a chunk for which a condition holds: a constant, if each is decided."""
        first, held = chunk * self.instructions.width, []
        for lane in range(first, first + self.instructions.width):
            with self.context.scope():
                self.context.ranges[self.loop.var] = (lane, lane)
                held.append(self.context.truth(test))
            if held[-1] is None:
                return self.values.lanes(test, "bool", chunk, self.masks[chunk])
        return self.instructions.constant_mask([lane for lane, holds in enumerate(held) if holds])

    def named_mask(self, base: str, mask: Expression, chunk: int, nodes: list[Node]) -> Expression:
        name = self.context.fresh(base + self.suffix(chunk))
        nodes.append(Declaration(f"const {self.instructions.mask_type}", name, mask))
        return symbol(name)

    def masked(self, body: Sequence[ast.stmt], masks: list[Expression | None]) -> list[Node]:
        outer = self.masks
        self.masks, self.depth = masks, self.depth + 1
        with self.context.scope():
            nodes = self.body(body)
        self.masks, self.depth = outer, self.depth - 1
        return nodes

    # --- assignments ----------------------------------------------------------------------------------------
    def assignment(self, target: ast.expr, value: ast.expr, augmented: bool = False) -> list[Node]:
        if isinstance(target, ast.Name):
            local = self.context.locals.get(target.id)
            if local is None or local.storage != "lanes":
                raise Unsupported(f"every lane of the loop over {self.loop.var} would write {target.id}", target)
            return [self.assign_local(local, value, chunk) for chunk in self.chunks]
        assert isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name)
        if not self.values.varies(target):
            return [self.assign_one(target, value, augmented)]
        local = self.context.locals.get(target.value.id)
        if local is not None and local.storage == "registers":
            return [self.assign_register(local, target, value, chunk) for chunk in self.chunks]
        dtype = self.context.dtype_of(target.value.id)
        past_caches, value = streamed(value) is not None, stored_value(value)
        nodes = []
        for chunk in self.chunks:
            mask = self.masks[chunk]
            register = self.values.lanes(value, dtype, chunk, mask)
            nodes.append(self.memory.store(target, register, chunk, mask, past_caches))
        return nodes

    def registers(self, value: ast.expr, dtype: str, nodes: list[Node]) -> list[Expression]:
        """A value, in variables that are added to the nodes: a register a chunk."""
        found = []
        for chunk in self.chunks:
            name = self.context.fresh("lanes" + self.suffix(chunk))
            register = self.values.lanes(value, dtype, chunk, self.masks[chunk])
            nodes.append(Declaration(self.instructions.type_of(dtype), name, register))
            found.append(symbol(name))
        return found

    def assign_local(self, local: Local, value: ast.expr, chunk: int) -> Node:
        place = symbol(local.names[(chunk,)])
        new = self.values.lanes(value, local.dtype, chunk, self.masks[chunk])
        mask = self.masks[chunk] if self.depth > local.depth else None
        return Assign(place, new if mask is None else self.instructions.merged(mask, new, place, local.dtype))

    def assign_one(self, target: ast.Subscript, value: ast.expr, augmented: bool) -> Node:
        """All lanes write the same value to the same element."""
        if augmented or self.values.varies(value) or self.depth or self.active is not None:
            raise Unsupported(f"every lane of the loop over {self.loop.var} would write one element", target)
        return self.statements.assignment(target, value)

    def assign_register(self, local: Local, target: ast.Subscript, value: ast.expr, chunk: int) -> Node:
        register, _ = register_place(self.context, self.instructions.width, local, target, self.loop.var, chunk)
        place = symbol(local.names[register])
        new = self.values.lanes(value, local.dtype, chunk, self.masks[chunk])
        width = self.instructions.width
        here = min(width, self.count - chunk * width)
        needed = min(width, local.shape[-1] - register[-1] * width)
        everything = self.depth == 0 and (local.same_lanes or (self.active is None and here >= needed))
        mask = None if everything else self.masks[chunk]
        return Assign(place, new if mask is None else self.instructions.merged(mask, new, place, local.dtype))
