"""Numbers of a program that depend on how many items a batch has: run-time scalars with a formula."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from types import CodeType

from swirl.ir.affine import simplify_body
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, clone
from swirl.ir.operations import CALLS
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer, name_of

FORMULA = "items"
"""The formula of the number of items itself."""
ITEMS = Buffer("net.items", (1,), "int32", "scalar", formula=FORMULA)
"""The number of items in the batch: a run-time scalar."""

_CALLS = {name: known.numbers for name, known in CALLS.items() if known.numbers is not None}
_CALLS |= {"int": int, "float": float}


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


def with_numbers(node: ast.expr, buffers: Mapping[str, Buffer], items: int) -> ast.expr:
    """An expression in which run-time scalars are the numbers that they are for so many items."""
    scalars = {name: buffer for name, buffer in buffers.items() if buffer.formula}
    known = {name: value_of(buffer.formula, items) for name, buffer in scalars.items()}
    integers = {name for name, buffer in scalars.items() if buffer.dtype == "int32"}
    found: ast.expr = _Constants(known, integers).visit(clone(node))
    return found


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
