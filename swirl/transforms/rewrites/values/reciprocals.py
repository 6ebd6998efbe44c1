"""Divisors by whose reciprocal a program may multiply, and those that several statements of a block share."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from swirl.ir.names import Scope, changed_in, scope_at
from swirl.ir.nest import LocalType, Nest, Program, clone, declare, fresh, names_in
from swirl.ir.operations import FUNCTIONS
from swirl.ir.paths import Path, at, edit_block, walk
from swirl.ir.printing import unparse
from swirl.ir.trees import ASSIGNMENTS, Transformer, guarded
from swirl.ir.types import WEAK_INT, dtype_of, folded
from swirl.transforms.rewrites.sites import taken_names


def safe_divisor(divisor: ast.expr, scope: Scope, body: list[ast.stmt]) -> bool:
    """Whether the reciprocal neither overflows nor loses digits, whatever the data are: then a quotient and the product
    with it differ by one rounding, for infinities and NaN too. Above 2**126, where only exponentials lead, it is
    subnormal and has two bits less.

    Args:
        divisor: what is divided by.
        scope: of its names.
        body: of the nest.
    """
    number = folded(divisor)
    if number is not None:
        return 2.0**-126 <= abs(number) <= 2.0**126
    match divisor:
        case ast.Call(ast.Name("sqrt")):
            return True
        case ast.Call(ast.Name("float32" | "float64"), [argument]):
            return dtype_of(argument, scope) in ("int32", WEAK_INT)
        case ast.BinOp(left, ast.Add(), right):
            for part, added in ((left, folded(right)), (right, folded(left))):
                known = _definition(part.id, scope, body) if isinstance(part, ast.Name) else part
                match known:
                    case ast.Call(ast.Name(name)) if added is not None and name in FUNCTIONS:
                        return FUNCTIONS[name].range[0] >= 0 and 2.0**-126 <= added <= 2.0**63
        case ast.Name(name):
            value = _definition(name, scope, body)
            return value is not None and safe_divisor(value, scope, body)
    return False


def is_number_of_items(divisor: ast.expr, scope: Scope, body: list[ast.stmt]) -> bool:
    """Whether it is made of a run-time scalar that depends on the number of items: for a whole batch, a literal."""
    match divisor:
        case ast.Call(ast.Name("float32" | "float64" | "min"), arguments):
            return any(is_number_of_items(argument, scope, body) for argument in arguments)
        case ast.BinOp(left, _, right):
            return any(is_number_of_items(side, scope, body) for side in (left, right))
        case ast.Subscript(ast.Name(name)) if name in scope:
            return bool(scope[name].formula)
        case ast.Name(name) if name in scope:
            value = _definition(name, scope, body)
            return value is not None and is_number_of_items(value, scope, body)
    return False


def _definition(name: str, scope: Scope, body: list[ast.stmt]) -> ast.expr | None:
    """The value of a local that only its declaration sets."""
    declared = scope[name].declared
    if declared is None:
        return None
    declaration = at(body, declared)
    set_again = any(isinstance(s, (ast.Assign, ast.AugAssign)) and name in changed_in(s) for _, s in walk(body))
    return declaration.value if isinstance(declaration, ast.AnnAssign) and not set_again else None


def shared_reciprocals(program: Program, nest: Nest) -> Nest:
    """``nest`` in which statements that divide by the same multiply by its reciprocal, a local: where a block does so
    twice or more, and :func:`safe_divisor` holds."""
    while (run := _first_run(program, nest)) is not None:
        nest = nest.with_body(_with_local(program, nest, run))
    return nest


@dataclass
class _Run:
    """Statements of one block that divide by the same.

    Args:
        divisor: as it stands in all of them.
        first: path of the first of them.
        last: place in the block of the last one.
        count: of quotients.
        certain: whether one of them is evaluated whenever the block is.
    """

    divisor: ast.expr
    first: Path
    last: int
    count: int = 0
    certain: bool = False


def _first_run(program: Program, nest: Nest) -> _Run | None:
    """The first statements for which a reciprocal is worth a local."""
    open_runs: dict[tuple[Path, str, str], _Run] = {}
    for path, statement in walk(nest.body):
        block, (branch, index) = path[:-1], path[-1]
        if isinstance(statement, ASSIGNMENTS) and statement.value is not None:
            for divisor, certain in _divisors(statement.value):
                if isinstance(divisor, ast.Constant):
                    continue
                run = open_runs.setdefault((block, branch, unparse(divisor)), _Run(divisor, path, index))
                run.last, run.count, run.certain = index, run.count + 1, run.certain or certain
        if open_runs:
            stored = changed_in(statement)
            for key in [key for key, run in open_runs.items() if stored & names_in(run.divisor)]:
                run = open_runs.pop(key)
                if _pays(program, nest, run):
                    return run
    return next((run for run in open_runs.values() if _pays(program, nest, run)), None)


def _divisors(value: ast.expr, certain: bool = True) -> Iterator[tuple[ast.expr, bool]]:
    """What ``value`` divides by, and whether that is evaluated whenever ``value`` is."""
    if isinstance(value, ast.Subscript):  # integers
        return
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div):
        yield value.right, certain
    for part, guards in guarded(value):
        yield from _divisors(part, certain and not guards)


def _pays(program: Program, nest: Nest, run: _Run) -> bool:
    if run.count < 2 or not run.certain:
        return False
    scope = scope_at(nest.body, run.first, program.buffers)
    return safe_divisor(run.divisor, scope, nest.body) and not is_number_of_items(run.divisor, scope, nest.body)


def _with_local(program: Program, nest: Nest, run: _Run) -> list[ast.stmt]:
    scope = scope_at(nest.body, run.first, program.buffers)
    name = fresh("inverse", taken_names(program, [nest]))
    shared = _Shared(unparse(run.divisor), name)
    first = run.first[-1][1]

    def edited(block: list[ast.stmt]) -> list[ast.stmt]:
        using = [
            shared.visit(clone(node)) if isinstance(node, ASSIGNMENTS) else node for node in block[first : run.last + 1]
        ]
        reciprocal = ast.BinOp(ast.Constant(1.0), ast.Div(), run.divisor)
        local = declare(name, LocalType(dtype_of(run.divisor, scope)), reciprocal)
        return [*block[:first], local, *using, *block[run.last + 1 :]]

    return edit_block(nest.body, run.first, edited)


class _Shared(Transformer):
    """Multiplies by a local in place of dividing by what it is the reciprocal of."""

    def __init__(self, divisor: str, name: str):
        self.divisor = divisor
        self.name = name

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Div) or unparse(node.right) != self.divisor:
            return node
        inverse = ast.Name(self.name, ast.Load())
        if isinstance(node.left, ast.Constant) and node.left.value == 1.0:
            return inverse
        return ast.BinOp(node.left, ast.Mult(), inverse)
