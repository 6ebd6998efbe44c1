"""Vector loops in plain C++ (the portable target): each statement has its own loop over the lanes."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from swirl.codegen.context import C_TYPES, Context, Local, Unsupported
from swirl.codegen.ctree_compat import (
    Assign,
    Declaration,
    Expression,
    For,
    If,
    Node,
    array_ref,
    logical_and,
    logical_not,
    symbol,
)
from swirl.codegen.to_c import Statements
from swirl.codegen.values import converted
from swirl.ir.nest import Loop, expr, local_type


class PlainLanes:
    """Locals of the body become small arrays with one element for each lane; conditions become arrays of truth
    values."""

    def loop(self, statements: Statements, loop: Loop, body: Sequence[ast.stmt]) -> list[Node]:
        count, active = statements.lanes_of(loop)
        if active is not None:
            loop = Loop(loop.var, loop.kind, loop.start, expr(f"min({count}, stop)", stop=loop.stop))
        with statements.context.scope():
            return _Lanes(statements, loop, count).body(body, [])

    def filled(self, *_: object) -> None:
        """g++ sees the statements one by one."""

    def transposed_loads(
        self, statements: Statements, copies: Loop, values: Sequence[int], body: Sequence[ast.stmt]
    ) -> tuple[list[Node], Sequence[ast.stmt]]:
        return [], body

    def declare(self, context: Context, name: str, dtype: str, shape: tuple[int, ...]) -> tuple[Local, list[Node]]:
        raise Unsupported(f"{name}: the portable target has no vector registers")

    def element(self, local: Local, key: tuple[int, ...]) -> Expression:
        raise Unsupported("the portable target has no vector registers")


class _Lanes:
    def __init__(self, statements: Statements, loop: Loop, count: int):
        self.statements = statements
        self.context = statements.context
        self.expressions = statements.expressions
        self.head = loop
        self.count = count

    def body(self, body: Sequence[ast.stmt], guards: list[tuple[str, bool]]) -> list[Node]:
        result: list[Node] = []
        for statement in body:
            if isinstance(statement, ast.If):
                result += self.branch(statement, guards)
            elif isinstance(statement, ast.AnnAssign) and not local_type(statement).shape:
                result += self.declaration(statement, guards)
            elif isinstance(statement, (ast.Assign, ast.AugAssign)):
                result.append(self.each(guards, lambda statement=statement: self.statements.statement(statement)))
            elif not isinstance(statement, ast.Pass):
                raise Unsupported(
                    "a vector loop holds assignments, declarations of one value for each lane, and if", statement
                )
        return result

    def each(self, guards: list[tuple[str, bool]], make) -> Node:  # type: ignore[no-untyped-def]
        """A loop over the active lanes around what ``make`` makes."""
        with self.context.block():
            init, test, step = self.statements.head(self.head)
            inside = make()
            if guards:
                inside = [If(self.guard(guards), inside)]
            return For(init, test, step, inside)

    def guard(self, guards: list[tuple[str, bool]]) -> Expression:
        lane = symbol(self.context.locals[self.head.var].name)
        refs = ((array_ref(name, [lane]), positive) for name, positive in guards)
        return logical_and(*(ref if positive else logical_not(ref) for ref, positive in refs))

    def declaration(self, node: ast.AnnAssign, guards: list[tuple[str, bool]]) -> list[Node]:
        assert isinstance(node.target, ast.Name) and node.value is not None
        dtype, value = local_type(node).dtype, node.value
        name = self.context.fresh(node.target.id + self.context.suffix())
        local = Local(dtype, "lane_memory", {(): name}, lane=self.head.var)

        def make() -> list[Node]:
            lane = symbol(self.context.locals[self.head.var].name)
            return [Assign(array_ref(name, [lane]), converted(self.expressions.value(value), dtype))]

        loop = self.each(guards, make)
        self.context.locals[node.target.id] = local
        return [Declaration(C_TYPES[dtype], name, shape=(self.count,)), loop]

    def branch(self, node: ast.If, guards: list[tuple[str, bool]]) -> list[Node]:
        mask = self.context.fresh("mask" + self.context.suffix())

        def make() -> list[Node]:
            lane = symbol(self.context.locals[self.head.var].name)
            return [Assign(array_ref(mask, [lane]), self.expressions.condition(node.test))]

        result = [Declaration("bool", mask, shape=(self.count,)), self.each(guards, make)]
        for body, positive in ((node.body, True), (node.orelse, False)):
            with self.context.scope():
                result += self.body(body, [*guards, (mask, positive)])
        return result
