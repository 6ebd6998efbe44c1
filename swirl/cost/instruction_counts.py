"""The instructions that a finished nest issues, whose tiles and vectors are spelled out.

Each multiply-add is one, also where lanes are masked; another operation is as many as could be issued in its time. A
load is counted once for the statements of a block, and outside of the loops that its subscripts do not move with:
registers keep it. Conditions on data count as true.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from swirl.analysis.loop_tree import NEAR, sum_loop
from swirl.analysis.statements import Statement, statements_of
from swirl.analysis.strides import memory_stride
from swirl.analysis.work import operations_of
from swirl.ir.buffers import Buffer
from swirl.ir.names import Scope, stored_in, whole_scope
from swirl.ir.nest import Loop, Nest, names_in, subscripts
from swirl.ir.operations import CALLS, OPERATORS
from swirl.ir.paths import Path, at
from swirl.ir.printing import unparse
from swirl.ir.trees import fold, nodes
from swirl.ir.types import dtype_of, has_doubles, is_float
from swirl.target.targets import Target

STORED_AND_LOADED = 3
"""Times of an addition that the next one to the same element of memory waits for it: it is stored and loaded again."""


Lanes = tuple[int, int]
"""Lanes whose results are wanted, and all those of the vectors."""


def used_share(found: Sequence[Lanes]) -> float:
    """That of the wanted ones; 0 where there are no vectors."""
    wanted, every = (sum(column) for column in zip(*found, strict=True)) if found else (0, 0)
    return wanted / every if every else 0.0


@dataclass(frozen=True)
class InstructionCounts:
    """Instructions of a nest; the lanes of its operations, and those of its stores.

    Args:
        multiply_adds, loads, stores: see :class:`swirl.cost.time.Demand`.
        gathered: of the loads and stores, those of single lanes that are not neighbours.
        waits: multiply-adds each of which waits for the one before it; a sum in memory waits for its store, too.
        spills: loads and stores of sums for which there is no register.
        iterations: of loops that run.
    """

    multiply_adds: int
    loads: int
    stores: int
    gathered: int
    waits: int
    spills: int
    iterations: int
    computed_lanes: Lanes
    stored_lanes: Lanes


def vector_lanes(nest: Nest, buffers: Mapping[str, Buffer], target: Target) -> int:
    """Elements of a vector: half as many where some are of double precision."""
    return target.simd_width // 2 if has_doubles(nest, buffers) else target.simd_width


def count_instructions(nest: Nest, buffers: Mapping[str, Buffer], lanes: int, registers: int) -> InstructionCounts:
    """The instructions of a nest in which a name has one meaning (:func:`swirl.ir.names.with_distinct_names`).

    Args:
        lanes: elements of a vector.
        registers: of vectors.
    """
    scope = whole_scope(nest, buffers)
    multiply_adds = stores = gathered = 0
    sums: dict[Path, _SumsOfLoop] = {}
    running: dict[Path, int] = {}
    computed_lanes, stored_lanes = (0, 0), (0, 0)
    loads: dict[_LoadKey, int] = {}
    gathers: dict[_LoadKey, int] = {}
    for each in statements_of(nest):
        statement = _Issued(nest, buffers, each, lanes)
        multiply_adds += _issue_slots(each.computed, scope) * statement.executions
        computed_lanes = statement.add_lanes(computed_lanes, operations_of(each.computed, scope))
        running |= statement.running_iterations()
        if (found := statement.sum_of_loop()) is not None:
            path, own = found
            sums[path] = sums[path].beside(own) if path in sums else own
        for reference, kind in _memory_accesses(each.computed, buffers):
            if kind != "load":
                stores += statement.iterations * statement.vector_accesses(reference)
                gathered += statement.iterations * statement.single_lanes(reference)
                stored_lanes = statement.add_lanes(stored_lanes, 1)
            if kind != "store":
                key, times = statement.load_count(reference)
                loads[key] = times * statement.vector_accesses(reference)
                gathers[key] = times * statement.single_lanes(reference)
    return InstructionCounts(
        multiply_adds,
        sum(loads.values()),
        stores,
        gathered + sum(gathers.values()),
        sum(each.waits for each in sums.values()),
        sum(each.spills(registers) for each in sums.values()),
        sum(running.values()),
        computed_lanes,
        stored_lanes,
    )


@dataclass(frozen=True)
class _SumsOfLoop:
    """The sums that a loop adds to.

    Args:
        iterations: of the loop, all in all.
        chain: multiply-adds of an iteration, of the longest sum, that wait for each other.
        registers: that the sums take.
    """

    iterations: int
    chain: int
    registers: int

    def beside(self, other: _SumsOfLoop) -> _SumsOfLoop:
        """These sums and others of the same loop."""
        return _SumsOfLoop(
            max(self.iterations, other.iterations),
            max(self.chain, other.chain),
            self.registers + other.registers,
        )

    @property
    def waits(self) -> int:
        """Multiply-adds that wait for each other."""
        return self.iterations * self.chain

    def spills(self, registers: int) -> int:
        """Loads and stores of what has no register: one is taken by an operand."""
        return 2 * self.iterations * max(0, self.registers + 1 - registers)


def _issue_slots(node: ast.AST, scope: Scope) -> int:
    """The multiply-adds that could be issued in the time of a statement's arithmetic."""

    def floating(*parts: ast.expr) -> bool:
        return any(is_float(dtype_of(part, scope)) for part in parts)

    def issued(part: ast.AST, inside: list[int]) -> int:
        match part:
            case ast.Expr():
                return 0  # a prefetch is not arithmetic
            case ast.AugAssign(target, op, value) if floating(target):
                return sum(inside) + _operation_slots(op, [value])
            case ast.BinOp(left, op, right) if floating(part):
                return sum(inside) + _operation_slots(op, [left, right])
            case ast.Call(ast.Name(name), arguments) if name in CALLS:
                return sum(inside) + CALLS[name].slots * CALLS[name].operations(len(arguments))
            case ast.Compare(left, _, others) if floating(left, *others):
                return sum(inside) + 1
            case ast.IfExp() if floating(part):
                return sum(inside) + 1
        return sum(inside)

    return fold(node, issued)


def _operation_slots(op: ast.operator, operands: Sequence[ast.expr]) -> int:
    """An operation whose operands have been counted: a sum with a product is one multiply-add with it."""
    joined = isinstance(op, (ast.Add, ast.Sub)) and any(
        isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult) for each in operands
    )
    return 0 if joined else OPERATORS[type(op)].slots


def _memory_accesses(node: ast.AST, buffers: Mapping[str, Buffer]) -> Iterator[tuple[ast.Subscript, str]]:
    """The elements of buffers that a statement uses, each with ``load``, ``store`` or, where it adds, ``both``."""
    for part in nodes(node):
        if isinstance(part, ast.Subscript) and isinstance(part.value, ast.Name) and part.value.id in buffers:
            stored = "both" if isinstance(node, ast.AugAssign) else "store"
            yield part, stored if isinstance(part.ctx, ast.Store) else "load"


_LoadKey = tuple[Path, str]
"""The statements for which an element is loaded once, and the element."""


@dataclass(frozen=True)
class _Issued:
    """A statement in its loops, as it is issued in vectors of so many lanes."""

    nest: Nest
    buffers: Mapping[str, Buffer]
    statement: Statement
    lanes: int

    @cached_property
    def scalar_loops(self) -> list[tuple[Path, Loop]]:
        """The loops without those over lanes, with their paths; outermost first."""
        return [(path, loop) for path, loop in self.statement.loop_paths() if loop.kind != "vector"]

    @property
    def running(self) -> list[tuple[Path, Loop]]:
        """Those that run."""
        return [(path, loop) for path, loop in self.scalar_loops if loop.kind != "unrolled"]

    @cached_property
    def lane_loops(self) -> list[Loop]:
        """The loops over lanes."""
        return [loop for loop in self.statement.loops if loop.kind == "vector"]

    @cached_property
    def iterations(self) -> int:
        """Of all loops but those over lanes."""
        return self.statement.domain.count_of([loop for _, loop in self.scalar_loops])

    @cached_property
    def executions(self) -> int:
        """How often the statement is issued: once for each vector."""
        return self.iterations * prod(-(-(loop.extent or self.lanes) // self.lanes) for loop in self.lane_loops)

    def add_lanes(self, found: Lanes, results: int) -> Lanes:
        """Lanes, and those of so many results of the statement."""
        wanted, every = found
        return wanted + results * self.statement.domain.count[0], every + results * self.executions * self.lanes

    def vector_accesses(self, reference: ast.Subscript) -> int:
        """Instructions for an element in all lanes: one where it is the same in all, or where they are neighbours; a
        few where they are near each other; otherwise one for each lane."""
        return prod(
            self._accesses_along(reference, loop) for loop in self.lane_loops if loop.var in _subscript_names(reference)
        )

    def single_lanes(self, reference: ast.Subscript) -> int:
        """Of these instructions, those for one lane each; 0 where there are vectors."""
        along = [loop for loop in self.lane_loops if loop.var in _subscript_names(reference)]
        whole = prod(-(-(loop.extent or self.lanes) // self.lanes) for loop in along)
        each = prod(self._accesses_along(reference, loop) for loop in along)
        return each if each > NEAR * whole else 0

    def running_iterations(self) -> dict[Path, int]:
        """The loops around that run, by their paths, and how often each of them does."""
        loops = [loop for _, loop in self.running]
        count_of = self.statement.domain.count_of
        return {path: count_of(loops[: place + 1]) for place, (path, _) in enumerate(self.running)}

    def sum_of_loop(self) -> tuple[Path, _SumsOfLoop] | None:
        """The innermost loop that runs around an addition to what it does not move with, and this sum."""
        found = sum_loop(self.statement)
        if found is None:
            return None
        path, _, inside = found
        target = self.statement.accesses[0]
        names = {name for index in target.own for name in names_in(index)}
        copies = [loop for loop in inside if loop.kind == "unrolled"]
        chain = prod(loop.extent or 1 for loop in copies if loop.var not in names)
        held = prod(loop.extent or 1 for loop in copies if loop.var in names)
        vectors = prod(-(-(loop.extent or self.lanes) // self.lanes) for loop in self.lane_loops if loop.var in names)
        iterations = self.statement.domain.count_of([loop for _, loop in self.running])
        if target.name in self.buffers:
            return path, _SumsOfLoop(iterations, chain * STORED_AND_LOADED, 0)
        return path, _SumsOfLoop(iterations, chain, held * vectors)

    def _accesses_along(self, reference: ast.Subscript, loop: Loop) -> int:
        assert isinstance(reference.value, ast.Name)
        buffer, ranges = self.buffers[reference.value.id], self.statement.ranges
        stride = memory_stride(buffer, subscripts(reference), loop.var, ranges)
        extent = loop.extent or self.lanes
        return extent if stride is None or abs(stride) > NEAR else max(1, abs(stride)) * -(-extent // self.lanes)

    def load_count(self, reference: ast.Subscript) -> tuple[_LoadKey, int]:
        """The block in which an element is loaded, and how often: not for each copy and each iteration of inner loops
        that it does not move with, unless its buffer is stored there."""
        assert isinstance(reference.value, ast.Name)
        used, buffer = _subscript_names(reference), reference.value.id
        kept = [(path, loop) for path, loop in self.scalar_loops if loop.kind != "unrolled" or loop.var in used]
        while kept and kept[-1][1].kind == "range" and kept[-1][1].var not in used:
            if buffer in stored_in([at(self.nest.body, kept[-1][0])]):
                break
            kept.pop()
        block = next((path for path, loop in reversed(kept) if loop.kind != "unrolled"), ())
        return (block, unparse(reference)), self.statement.domain.count_of([loop for _, loop in kept])


def _subscript_names(reference: ast.Subscript) -> set[str]:
    return {name for index in subscripts(reference) for name in names_in(index)}
