"""What a loop does not change, and its lanes tell apart, is computed before the loop: one value for each lane."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from math import prod

from swirl.ir.names import Scope, changed_in, of_declaration, of_loop, scope_at
from swirl.ir.nest import (
    LocalType,
    Loop,
    Nest,
    Program,
    clone,
    constant,
    declare,
    expr,
    fresh,
    local_type,
    loop_of,
    names_in,
    nested,
    reference,
    substitute,
)
from swirl.ir.operations import COSTLY
from swirl.ir.paths import Path, at, edit_at, loops
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer
from swirl.ir.types import dtype_of, joint, resolved
from swirl.transforms.rewrites.references import runs
from swirl.transforms.rewrites.sites import taken_names
from swirl.transforms.rewrites.values.reciprocals import safe_divisor

LEAST = 4
"""Iterations of a loop from which on it is worth registers to compute something before it."""
REGISTERS = 8
"""That the values of a loop take at the most: beside them there are sums, and half of AVX2's 16 are theirs."""


def hoisted_from_lanes(program: Program, nest: Nest) -> Nest:
    """``nest`` with costly values that a loop does not change computed before it, for each of the lanes and copies that
    the loop has inside.

    rewrite:
                                                      inverse: float32[4, 16] = empty(4, 16)
                                                      for u in unrolled(4):
                                                          for i in vector(16):
        for c in range(C):                                    inverse[u, i] = 1.0 / sqrt(s[u, i] + 1e-05)
            for u in unrolled(4):                     for c in range(C):
                for i in vector(16):              →       for u in unrolled(4):
                    y[c, u, i] = x[c, u, i] /                 for i in vector(16):
                        sqrt(s[u, i] + 1e-05)                     y[c, u, i] = x[c, u, i] * inverse[u, i]

    Values are costly if they are divisions, or calls that take many instructions. A division by such a value becomes a
    multiplication where its reciprocal is safe, as where a scalar is hoisted.
    """
    for path in reversed([path for path, _ in loops(nest.body)]):  # what is put before a loop moves later ones
        node = at(nest.body, path)
        assert isinstance(node, ast.For)
        head, extent = loop_of(node), loop_of(node).extent
        if head.kind != "range" or not runs(node) or (extent is not None and extent < LEAST):
            continue
        found = _Hoisting(program, nest, path, node)
        new = found.loop()
        if found.before:
            nest = nest.with_body(edit_at(nest.body, path, lambda _, b=found.before, n=new: [*b, n]))  # type: ignore[misc]
    return nest


@dataclass
class _Hoisting:
    """Moves values out of one loop.

    Args:
        program, nest, path, node: the loop, and where it is.

    Attributes:
        before: the statements that compute the values.
    """

    program: Program
    nest: Nest
    path: Path
    node: ast.For
    before: list[ast.stmt] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scope = scope_at(self.nest.body, self.path, self.program.buffers)
        self.changing = changed_in(self.node)
        self.taken = taken_names(self.program, [self.nest])
        self._known: dict[object, str] = {}
        self._registers = 0

    def loop(self) -> ast.For:
        """The loop without these values."""
        node = clone(self.node)
        node.body = self._chains(node.body, [], {**self.scope, **of_loop(node)})
        return node

    def _chains(self, body: list[ast.stmt], lanes: list[Loop], scope: Scope) -> list[ast.stmt]:
        """The statements of a block, each with the locals that are declared before it."""
        found = []
        for statement in body:
            found.append(self._chain(statement, lanes, scope))
            if isinstance(statement, ast.AnnAssign):
                scope = {**scope, **of_declaration(statement)}
        return found

    def _chain(self, statement: ast.stmt, lanes: list[Loop], scope: Scope) -> ast.stmt:
        """A statement that may be a loop over copies or lanes with nothing beside its body."""
        if not isinstance(statement, ast.For):
            return statement
        head = loop_of(statement)
        whole = head.kind in ("unrolled", "vector") and constant(head.start) == 0 and head.step == 1
        if not whole or head.extent is None or any(isinstance(each, ast.If) for each in statement.body):
            return statement
        lanes, scope = [*lanes, head], {**scope, **of_loop(statement)}
        if any(isinstance(each, ast.For) for each in statement.body):
            statement.body = self._chains(statement.body, lanes, scope)
        elif head.kind == "vector":
            statement.body = self._block(statement.body, lanes, scope)
        return statement

    def _block(self, body: list[ast.stmt], lanes: list[Loop], scope: Scope) -> list[ast.stmt]:
        """The innermost statements."""
        visitor = _Values(self, lanes, scope)
        return [visitor.visit(each) for each in body]

    def invariant(self, node: ast.expr, lanes: list[Loop]) -> bool:
        """Whether the loop changes nothing in an expression but for the lane, and the lane matters."""
        names, own = names_in(node), {lane.var for lane in lanes}
        return bool(names & own) and not names & (self.changing - own) and "rand" not in names

    def value(self, node: ast.expr, dtype: str, lanes: list[Loop], scope: Scope) -> ast.expr | None:
        """An element of the array that has the values of an expression; None where there are too many of them."""
        own = [lane for lane in lanes if lane.var in names_in(node)]
        dtype = resolved(dtype, None)
        key = unparse(node), dtype, tuple((lane.var, lane.extent) for lane in own)
        if key not in self._known:
            if own[-1].kind != "vector":
                return None
            registers = prod(lane.extent or 1 for lane in own[:-1])
            if self._registers + registers > REGISTERS:
                return None
            self._registers += registers
            name = fresh("inverse" if unparse(node).startswith("1.0 /") else "lanes", self.taken)
            self.taken.add(name)
            self._known[key] = name
            shape = tuple(lane.extent or 1 for lane in own)
            empty = expr(f"empty({', '.join(map(str, shape))})")
            element = reference(name, [ast.Name(lane.var, ast.Load()) for lane in own], True)
            self.before.append(declare(name, LocalType(dtype, shape), empty))
            self.before += nested(own, [ast.Assign([element], clone(node))])
        return reference(self._known[key], [ast.Name(lane.var, ast.Load()) for lane in own])


class _Values(Transformer):
    """Replaces the largest costly values among the innermost statements of a loop."""

    def __init__(self, owner: _Hoisting, lanes: list[Loop], scope: Scope):
        self.owner, self.lanes, self.scope = owner, lanes, scope
        self.locals: dict[str, ast.expr] = {}
        """Locals that the loop does not change, with what they are."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        assert isinstance(node.target, ast.Name)
        if node.value is not None and not local_type(node).shape:
            known = substitute(clone(node.value), self.locals)
            same = self._type(node.value) == local_type(node).dtype
            node.value = self.visit(node.value)
            if same and self.owner.invariant(known, self.lanes):
                self.locals[node.target.id] = known
        self.scope = {**self.scope, **of_declaration(node)}
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        node.value = self.visit(node.value)
        self._changes(node)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AugAssign:
        node.value = self.visit(node.value)
        self._changes(node)
        return node

    def visit_If(self, node: ast.If) -> ast.If:
        self._changes(node)
        return node

    def _changes(self, statement: ast.stmt) -> None:
        """Locals that a statement changes are no longer what they were declared as."""
        for name in changed_in(statement) & self.locals.keys():
            del self.locals[name]

    def visit_IfExp(self, node: ast.IfExp) -> ast.IfExp:
        return node  # what is not computed for all lanes stays where it is

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.BoolOp:
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        known = substitute(clone(node), self.locals)
        if isinstance(node.op, ast.Div):
            if self.owner.invariant(known, self.lanes):
                return self._replaced(node, known, self._type(node))
            divisor = substitute(clone(node.right), self.locals)
            safe = safe_divisor(divisor, self.scope, self.owner.nest.body)
            if self.owner.invariant(divisor, self.lanes) and safe:
                dtype = joint(self._type(node.left), self._type(node.right))
                reciprocal = ast.BinOp(ast.Constant(1.0), ast.Div(), divisor)
                value = self.owner.value(reciprocal, dtype, self.lanes, self.scope)
                if value is not None:
                    return ast.BinOp(self.visit(node.left), ast.Mult(), value)
        node.left, node.right = self.visit(node.left), self.visit(node.right)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        known = substitute(clone(node), self.locals)
        if unparse(node.func) in COSTLY and self.owner.invariant(known, self.lanes):
            return self._replaced(node, known, self._type(node))
        node.args = [self.visit(arg) for arg in node.args]
        return node

    def _replaced(self, node: ast.expr, known: ast.expr, dtype: str) -> ast.expr:
        value = self.owner.value(known, dtype, self.lanes, self.scope)
        return node if value is None else value

    def _type(self, node: ast.expr) -> str:
        return dtype_of(node, self.scope)
