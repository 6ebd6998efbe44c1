"""Statements and loops of a nest → ctree's C nodes.

Everything here is one thread's sequential code; ``parallel.py`` puts OpenMP around it, vector loops go to
``vector.py`` (registers) or ``lanes.py`` (plain C++).
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Protocol

from swirl.analysis.congruence import of_loop
from swirl.codegen.context import C_TYPES, Context, Local, Unsupported
from swirl.codegen.ctree_compat import (
    Assign,
    AugAssign,
    Declaration,
    Expression,
    For,
    If,
    NamedCast,
    Node,
    Op,
    UnaryOp,
    binary,
    call,
    constant,
    symbol,
)
from swirl.codegen.scalar import ScalarExpressions
from swirl.codegen.sum_order import adds_in_order
from swirl.codegen.values import converted
from swirl.ir.affine import loop_range
from swirl.ir.buffers import DTYPES
from swirl.ir.hints import Prefetch, prefetch_of, stored_value
from swirl.ir.nest import Loop, local_type, loop_of, subscripts
from swirl.ir.nest import constant as constant_of
from swirl.ir.trees import name_of, nodes

# Bytes of one local array beyond which it is a thread's static storage: an OpenMP thread's stack may be 2 MB.
MOST_STACK_BYTES = 256 * 1024
MOST_COPIES = 16  # statements of a body that g++ may make by unrolling a loop of copies
SUMS_AT_ONCE = 4  # iterations that g++ writes out of a loop that adds copies to sums in registers

_LOCALITY = {0: 0, 1: 3, 2: 2, 3: 1}  # level of the cache → what __builtin_prefetch calls it
_AUGMENTED = {ast.Add: Op.Add, ast.Sub: Op.Sub, ast.Mult: Op.Mul, ast.Div: Op.Div}


class VectorLoops(Protocol):
    """How a target does vector loops."""

    def loop(self, statements: Statements, loop: Loop, body: Sequence[ast.stmt]) -> list[Node]:
        """The statements of one vector loop."""

    def filled(
        self, statements: Statements, copies: Loop, values: Sequence[int], body: Sequence[ast.stmt]
    ) -> list[Node] | None:
        """The copies of an unrolled body in which a vector loop writes what those of the others leave out of a row;
        None where it is not so, or makes no difference."""

    def transposed_loads(
        self, statements: Statements, copies: Loop, values: Sequence[int], body: Sequence[ast.stmt]
    ) -> tuple[list[Node], Sequence[ast.stmt]]:
        """Loads of whole rows before the copies of an unrolled body, and the body that takes its lanes from them; none,
        and the body as it is, where it makes no difference."""

    def declare(self, context: Context, name: str, dtype: str, shape: tuple[int, ...]) -> tuple[Local, list[Node]]:
        """A local array whose last dimension is held in vector registers."""

    def element(self, local: Local, key: tuple[int, ...]) -> Expression:
        """One element of such an array."""


class Statements:
    """Turns statements into C nodes; ``vectors`` does the vector loops."""

    def __init__(self, context: Context, vectors: VectorLoops):
        self.context = context
        self.vectors = vectors
        self.expressions = ScalarExpressions(context, vectors.element)

    def body(self, statements: Sequence[ast.stmt]) -> list[Node]:
        """Statements one after the other, in the current block."""
        result, before = [], False
        for statement in statements:
            crowded = len(statements) > 1 and self._crowded(statement)
            if crowded and before:
                result.append(call("load_again"))
            before |= crowded
            result += self.statement(statement)
        return result

    def block(self, statements: Sequence[ast.stmt]) -> list[Node]:
        """The inside of a C++ block of its own."""
        with self.context.block():
            return self.body(statements)

    def statement(self, node: ast.stmt) -> list[Node]:
        if isinstance(node, ast.For):
            return self.loop(node)
        if isinstance(node, ast.If):
            return self.branch(node)
        if isinstance(node, ast.AnnAssign):
            return self.declaration(node)
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            return [self.assignment(node.targets[0], node.value)]
        if isinstance(node, ast.AugAssign):
            return [self.augmented(node)]
        if isinstance(node, ast.Pass):
            return []
        if isinstance(node, ast.Expr) and (found := prefetch_of(node)) is not None:
            return [self.prefetch(found)]
        raise Unsupported("not a statement of the grammar", node)

    # --- loops ----------------------------------------------------------------------------------------------
    def loop(self, node: ast.For) -> list[Node]:
        loop = loop_of(node)
        if loop.kind == "vector":
            return self.vectors.loop(self, loop, node.body)
        if loop.kind == "unrolled":
            return self.copies(loop, node.body)
        with self.context.block():
            init, test, step = self.head(loop)
            # Before the body, whose own locals are known after it.
            crowded, unrolled = self._crowded(node), None
            if self.context.vector_width and _stays_a_loop(loop, node.body):
                unrolled = f"GCC unroll {self._iterations_at_once(loop, node)}"
            inside = self.body(node.body)
            if adds_in_order(node, self.context):
                inside.append(call("in_order"))
            if crowded:
                inside.insert(0, call("load_again"))
            return [For(init, test, step, inside, unrolled)]

    def _iterations_at_once(self, loop: Loop, node: ast.For) -> int:
        """How many iterations g++ shall write out of a loop around copies. A register tile of sums needs no more
        registers for more iterations; what is saved is counting, and a processor's wrong guess of where a short loop
        ends: up to 8 % of convolutions on Intel's AVX-512. Passes that add up few sums are bound by memory; they lose
        what the processor learns of a load that runs often, up to 8 %."""
        many = loop.most is not None and loop.most >= 2 * SUMS_AT_ONCE
        return SUMS_AT_ONCE if many and self._fills_registers(node) else 1

    def _crowded(self, statement: ast.stmt) -> bool:
        """Whether a statement is copies that add to locals from outside of it, which fill half of the registers. With
        what is loaded for more than one such statement, g++ puts some on the stack: on AVX2, a register tile of weights
        for images of 4 × 4 took 1.4 times as long."""
        return _written_out(statement) and self._fills_registers(statement)

    def _fills_registers(self, statement: ast.stmt) -> bool:
        """Whether the locals from outside of a statement that it adds to take half of the registers."""
        if not self.context.registers:
            return False
        added = {name_of(node.target) for node in nodes(statement) if isinstance(node, ast.AugAssign)}
        held = [local for name, local in self.context.locals.items() if name in added and local.storage == "registers"]
        return 2 * sum(len(local.names) for local in held) >= self.context.registers

    def head(self, loop: Loop) -> tuple[Node, Expression, Node]:
        """The three parts of a C++ ``for``; declares the loop's variable in the current block."""
        context = self.context
        start, stop = self.expressions.integer(loop.start), self.expressions.integer(loop.stop)
        name = context.fresh(loop.var)
        context.ranges.pop(loop.var, None)
        context.grids[loop.var] = of_loop(loop, context.grids, context.ranges)
        context.ranges |= loop_range(loop, context.ranges)
        context.locals[loop.var] = Local("int32", "scalar", {(): name})
        if loop.step == 1:
            increment = UnaryOp(Op.PostInc(), symbol(name))
        else:
            step = Op.Add() if loop.step > 0 else Op.Sub()
            increment = AugAssign(symbol(name), step, constant(abs(loop.step), "int32"))
        test = binary("<" if loop.step > 0 else ">", symbol(name), stop)
        return Declaration("int", name, start), test, increment

    def copies(self, loop: Loop, body: Sequence[ast.stmt]) -> list[Node]:
        """The copies of an unrolled body, one after the other."""
        context = self.context
        limits = context.limits(loop.start), context.limits(loop.stop)
        if any(limit is None or limit[0] != limit[1] for limit in limits):
            raise Unsupported("the bounds of an unrolled loop are not constants", loop.node([ast.Pass()]))
        start, stop = (limit[0] for limit in limits if limit is not None)
        values = range(start, stop, loop.step)
        filled = self.vectors.filled(self, loop, values, body)
        if filled is not None:
            return filled
        with context.scope():
            result, body = self.vectors.transposed_loads(self, loop, values, body)
            for value in values:
                with self.copy(loop, value):
                    result += self.body(body)
        return result

    @contextmanager
    def copy(self, loop: Loop, value: int) -> Iterator[None]:
        """One of the copies of an unrolled body."""
        with self.context.scope():
            self.context.unrolled[loop.var] = value
            self.context.ranges[loop.var] = (value, value)
            yield

    def branch(self, node: ast.If) -> list[Node]:
        known = self.context.truth(node.test)
        if known is not None:
            with self.context.scope():
                return self.body(node.body if known else node.orelse)
        condition = self.expressions.condition(node.test)
        return [If(condition, self.block(node.body), self.block(node.orelse) if node.orelse else None)]

    # --- declarations and assignments -----------------------------------------------------------------------
    def declaration(self, node: ast.AnnAssign) -> list[Node]:
        assert isinstance(node.target, ast.Name) and node.value is not None
        context, name, kind = self.context, node.target.id, local_type(node)
        base = name + context.suffix()
        if not kind.shape:
            value = converted(self.expressions.value(node.value), kind.dtype)
            c_name = context.fresh(base)
            context.locals[name] = Local(kind.dtype, "scalar", {(): c_name})
            return [Declaration(C_TYPES[kind.dtype], c_name, value)]
        storage = context.storage[id(node)]
        if storage.kind == "registers":
            local, nodes = self.vectors.declare(context, base, kind.dtype, kind.shape)
            local = replace(local, same_lanes=storage.same_lanes)
        elif storage.kind == "elements":
            indices = list(itertools.product(*map(range, kind.shape)))
            names = {index: context.fresh("_".join(map(str, (base, *index)))) for index in indices}
            local = Local(kind.dtype, storage.kind, names, kind.shape)
            nodes = declaration_rows(C_TYPES[kind.dtype], names)
        else:
            local = Local(kind.dtype, storage.kind, {(): context.fresh(base)}, kind.shape)
            nodes = [memory_array(local)]
        context.locals[name] = local
        return nodes

    def assignment(self, target: ast.expr, value: ast.expr) -> Node:
        place = self.expressions.value(target)
        return Assign(place.node, converted(self.expressions.value(stored_value(value)), place.dtype))

    def augmented(self, node: ast.AugAssign) -> Node:
        operator = _AUGMENTED.get(type(node.op))
        place, value = self.expressions.value(node.target), self.expressions.value(node.value)
        if operator is None or place.dtype in ("bool", "int32"):  # whose sums wrap
            return self.assignment(node.target, ast.BinOp(node.target, node.op, node.value))
        dtype = max(place.dtype, value.dtype) if value.is_float and value.literal is None else place.dtype
        return AugAssign(place.node, operator(), converted(value, dtype))

    def prefetch(self, found: Prefetch) -> Node:
        """The address counted from the array's start, not a reference, as it may be outside."""
        place: Expression = constant(0, "int32")
        for position, (index, extent) in enumerate(
            zip(found.indices, self.context.shape_of(found.buffer), strict=True)
        ):
            number = NamedCast("long", self.expressions.integer(index))
            place = binary("+", binary("*", place, constant(extent, "int32")), number) if position else number
        element = C_TYPES[self.context.dtype_of(found.buffer)]
        start = NamedCast(f"const {element} *", symbol(self.context.names[found.buffer]))
        numbers = constant(0, "int32"), constant(_LOCALITY[found.level], "int32")
        return call("__builtin_prefetch", binary("+", start, place), *numbers)

    # --- for the vector emitters ----------------------------------------------------------------------------
    def lanes_of(self, loop: Loop) -> tuple[int, ast.expr | None]:
        """Number of lanes of a vector loop, and the expression of how many are active where that may be
        fewer."""
        if constant_of(loop.start) != 0 or loop.step != 1:
            raise Unsupported("a vector loop starts at 0, by steps of 1", loop.node([ast.Pass()]))
        stop = self.context.index(loop.stop)
        limits = self.context.limits(stop)
        if isinstance(stop, ast.Constant) and isinstance(stop.value, int):
            return max(stop.value, 0), None
        known = [constant_of(arg) for arg in getattr(loop.stop, "args", [])]
        literals = [number for number in known if number is not None]
        most = min([*literals, *([limits[1]] if limits is not None else [])], default=None)
        if most is None:
            raise Unsupported("the number of lanes has no literal limit", loop.node([ast.Pass()]), "vector(min(16, …))")
        if isinstance(stop, ast.Call):  # the literal limit of min() is implied by the number of registers
            rest = [arg for arg in stop.args if not isinstance(arg, ast.Constant)]
            if len(rest) == 1 and isinstance(stop.func, ast.Name) and stop.func.id == "min":
                return max(most, 0), rest[0]
        return max(most, 0), stop


def _stays_a_loop(loop: Loop, body: Sequence[ast.stmt]) -> bool:
    """Whether g++ must not unroll a loop around copies that a command has asked for.

    g++ unrolls loops of up to 16 iterations. More copies than asked for spill: a register tile of 6 pixels × 2 vectors
    in a block of 8 channels keeps what it loads for all of them on the stack, 143 times for 288 products. And each load
    then runs only once a row, so the processor cannot predict its addresses from earlier ones: the passes of batch norm
    over images of 28 × 28 are 7 % slower, over blocks of 7 × 7 24 %. A few more copies in short rows do no harm.
    """
    copies = max(map(_copies, body))
    return copies > 1 and loop.most is not None and loop.most * copies > MOST_COPIES


def _written_out(statement: ast.stmt) -> bool:
    """Whether a statement is several copies, which g++ does not put in a loop; it writes out loops of two iterations,
    too, whatever they are told."""
    if isinstance(statement, ast.If):
        return any(map(_written_out, [*statement.body, *statement.orelse]))
    if not isinstance(statement, ast.For):
        return False
    loop = loop_of(statement)
    if loop.kind == "unrolled":
        return _copies(statement) > 1
    short = loop.most is not None and (loop.most <= 2 or not _stays_a_loop(loop, statement.body))
    return short and any(map(_written_out, statement.body))


def _copies(statement: ast.stmt) -> int:
    """How often the innermost statements of unrolled loops, one inside the other, are written out."""
    if not isinstance(statement, ast.For):
        return 1
    loop = loop_of(statement)
    return loop.extent * max(map(_copies, statement.body)) if loop.kind == "unrolled" and loop.extent else 1


def declaration_rows(type_name: str, names: dict[tuple[int, ...], str]) -> list[Node]:
    """Declarations of the variables of an array, one line for each row, with at most eight."""
    nodes = []
    for _, group in itertools.groupby(names.items(), key=lambda item: item[0][:-1]):
        row = [name for _, name in group]
        nodes += [Declaration(type_name, row[first : first + 8]) for first in range(0, len(row), 8)]
    return nodes


def memory_array(local: Local) -> Node:
    """The declaration of a C++ array, aligned to a cache line."""
    nbytes = prod(local.shape) * DTYPES[local.dtype]().itemsize
    storage = "static thread_local " if nbytes > MOST_STACK_BYTES else ""
    return Declaration(f"alignas(64) {storage}{C_TYPES[local.dtype]}", local.name, shape=local.shape)


def subscripts_fit(context: Context, node: ast.Subscript, **lanes: tuple[int, int]) -> bool:
    """Whether all subscripts are proved to stay inside the array, for active and inactive lanes."""
    assert isinstance(node.value, ast.Name)
    for index, extent in zip(subscripts(node), context.shape_of(node.value.id), strict=True):
        limits = context.limits(index, **lanes)
        if limits is None or limits[0] < 0 or limits[1] >= extent:
            return False
    return True
