"""What a nest does: floating-point operations and bytes touched, of the whole and of each of its loops."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from swirl.analysis.domains import Domain
from swirl.analysis.footprints import Footprint, Touched, footprints
from swirl.analysis.loop_tree import facts
from swirl.analysis.statements import Statement, statements_of
from swirl.ir.buffers import Buffer
from swirl.ir.item_numbers import whole_batch
from swirl.ir.names import Scope, whole_scope, with_distinct_names
from swirl.ir.nest import Nest, Program
from swirl.ir.operations import CALLS, OPERATORS
from swirl.ir.trees import fold
from swirl.ir.types import dtype_of, is_float


@dataclass(frozen=True)
class Work:
    """What a loop does. Locals and local arrays count as registers.

    Args:
        executions: how often the loop is entered.
        operations: floating-point operations of all these executions: each ``+ - * /`` and each call (``sqrt``,
            ``max``, …) is one, so a fused multiply-add counts two. Of a conditional expression, the longer branch.
        exact: whether these numbers are exact, not upper bounds (a condition on data counts as true).
        touched: in *one* execution; where that depends on the loops around it, at most that.
    """

    executions: int
    operations: int
    exact: bool
    touched: tuple[Touched, ...]

    @property
    def bytes(self) -> int:
        return sum(touched.bytes for touched in self.touched)


def loop_works(nest: Nest, buffers: Mapping[str, Buffer]) -> list[Work]:
    """The work of each loop of a nest, outer before inner."""
    nest = with_distinct_names(nest)
    scope = whole_scope(nest, buffers)
    return [
        Work(loop.executions, *_counted(loop.inside, scope), tuple(each.touched for each in loop.in_all_iterations))
        for loop in facts(nest, buffers)
    ]


def program_work(program: Program) -> Work:
    """The work of all nests, for a whole batch; a buffer that several of them touch counts once."""
    program = whole_batch(program)
    nests = [with_distinct_names(nest) for nest in program.nests]
    counted = [_counted(statements_of(nest), whole_scope(nest, program.buffers)) for nest in nests]
    operations, exact = sum(count for count, _ in counted), all(sure for _, sure in counted)
    touched = tuple(each.touched for each in nests_footprints(nests, program.buffers))
    return Work(1, operations, exact, touched)


def nests_footprints(nests: Iterable[Nest], buffers: Mapping[str, Buffer]) -> list[Footprint]:
    """What nests, in which a name has one meaning, touch of each buffer."""
    return footprints([statement for nest in nests for statement in statements_of(nest)], Domain(), buffers)


def _counted(statements: Sequence[Statement], scope: Scope) -> tuple[int, bool]:
    """The operations of statements in all their iterations, and whether their number is exact."""
    operations, exact = 0, True
    for statement in statements:
        each = operations_of(statement.computed, scope)
        if each:
            count, sure = statement.domain.count
            operations, exact = operations + each * count, exact and sure
    return operations, exact


def operations_of(node: ast.AST, scope: Scope) -> int:
    """The floating-point operations of one execution of a statement or an expression, as :class:`Work` counts them."""

    def floating(part: ast.expr) -> bool:
        return is_float(dtype_of(part, scope))

    def counted(part: ast.AST, inside: list[int]) -> int:
        match part:
            case ast.Expr():
                return 0  # a prefetch
            case ast.IfExp():
                test, *branches = inside
                return test + max(branches)
            case ast.AugAssign(target) if floating(target):
                return sum(inside) + 1
            case ast.BinOp(_, op, _) if not OPERATORS[type(op)].of_integers and floating(part):
                return sum(inside) + 1
            case ast.Call(ast.Name(name), arguments) if name in CALLS and floating(part):
                return sum(inside) + CALLS[name].operations(len(arguments))
        return sum(inside)

    return fold(node, counted)
