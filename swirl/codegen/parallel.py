"""OpenMP around the statements of a nest.

A kernel is run by every thread of an enclosing ``omp parallel``. Parallel loops become ``omp for``. There are two kinds
of statements outside of them: those that touch buffers are run by one thread (``omp single``, which hands the locals it
wrote to the others by ``copyprivate``), and those that write locals only are run by each thread on its own copies. A
barrier keeps a thread from writing what another one still has to read for its copies.

Non-temporal stores of a thread may still be under way when it reaches a barrier; a fence before the barrier ends them.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from swirl.codegen.context import Unsupported
from swirl.codegen.ctree_compat import Block, Declaration, For, If, Node, Pragma, call, symbol
from swirl.codegen.to_c import Statements
from swirl.ir.hints import streams
from swirl.ir.names import stored_in
from swirl.ir.nest import Loop, kind_of, loop_of, names_in
from swirl.ir.trees import declared_in, nodes

BARRIER = "omp barrier"


class WorkSharing:
    """Emits the statements of one nest, for a kernel or for a stand-alone listing."""

    def __init__(self, statements: Statements, standalone: bool = False):
        self.statements = statements
        self.context = statements.context
        self.standalone = standalone

    def nest(self, body: Sequence[ast.stmt]) -> list[Node]:
        """The statements of a nest, with what shares them among the threads."""
        with self.context.block():
            if not any(_has_parallel(statement) for statement in body):
                inside = [*self.statements.body(body), *self.fence(body)]
                return inside if self.standalone else [Pragma("omp single", Block(inside))]
            nodes = self.region(body)
        # Another nest may use the same names for its locals.
        return [Block(nodes)] if any(isinstance(node, Declaration) for node in nodes) else nodes

    def region(self, body: Sequence[ast.stmt]) -> list[Node]:
        """Statements that every thread of the team runs through together."""
        result: list[Node] = []
        position = 0
        while position < len(body):
            statement = body[position]
            if _has_parallel(statement):
                result += self.shared(statement)
                position += 1
                continue
            end = position
            alone = self._stores(statement)
            while end < len(body) and not _has_parallel(body[end]) and self._stores(body[end]) == alone:
                end += 1
            result += self.single(body[position:end]) if alone else self.redundant(body[position:end])
            position = end
        return result

    def _stores(self, statement: ast.stmt) -> bool:
        return not self.context.buffers.keys().isdisjoint(stored_in([statement]))

    def single(self, body: Sequence[ast.stmt]) -> list[Node]:
        """Statements that write buffers: one thread runs them, and the others get the locals it wrote."""
        if self.standalone:
            return [*self.statements.body(body), *self.fence(body)]
        outer = dict(self.context.locals)
        written = sorted(set(stored_in(body)) & set(outer))
        inside = [*self.statements.block(body), *self.fence(body)]
        names = [c_name for name in written for c_name in outer[name].names.values()]
        return [Pragma(f"omp single copyprivate({', '.join(names)})" if names else "omp single", Block(inside))]

    def redundant(self, body: Sequence[ast.stmt]) -> list[Node]:
        """Statements that write locals only: each thread runs them."""
        nodes = self.statements.body(body)
        reads = set().union(*(names_in(statement) for statement in body)) & set(self.context.buffers)
        return [*nodes, Pragma(BARRIER)] if reads and not self.standalone else nodes

    def shared(self, statement: ast.stmt) -> list[Node]:
        """A statement with a parallel loop in it, or that is one."""
        if isinstance(statement, ast.If):
            return self.branch(statement)
        assert isinstance(statement, ast.For)
        loop = loop_of(statement)
        if loop.kind == "parallel":
            return self.work_sharing_loop(loop, statement.body)
        if loop.kind == "vector":
            raise Unsupported(f"a vector loop over {loop.var} has a parallel loop inside")
        context = self.context
        if loop.kind == "unrolled":
            result = []
            for value in range(*_literal_bounds(loop)):
                with context.scope():
                    context.unrolled[loop.var] = value
                    context.ranges[loop.var] = (value, value)
                    result += self.region(statement.body)
            return result
        with context.block():
            init, test, step = self.statements.head(loop)
            return [For(init, test, step, self.region(statement.body))]

    def branch(self, statement: ast.If) -> list[Node]:
        """A condition around a parallel loop: every thread evaluates it, before any goes on."""
        context = self.context
        known = context.truth(statement.test)
        if known is not None:
            with context.scope():
                return self.region(statement.body if known else statement.orelse)
        condition = self.statements.expressions.condition(statement.test)
        result: list[Node] = []
        if names_in(statement.test) & set(context.buffers) and not self.standalone:
            name = context.fresh("condition")
            result = [Declaration("const bool", name, condition), Pragma(BARRIER)]
            condition = symbol(name)
        branches = []
        for body in (statement.body, statement.orelse):
            with context.block():
                branches.append(self.region(body))
        return [*result, If(condition, branches[0], branches[1] or None)]

    def work_sharing_loop(self, loop: Loop, body: Sequence[ast.stmt]) -> list[Node]:
        """``omp for``; parallel loops that are perfectly nested inside are collapsed into it."""
        loops = [loop]
        inner = body
        while len(inner) == 1 and isinstance(inner[0], ast.For):
            candidate = loop_of(inner[0])
            rectangular = not names_in(candidate.node([ast.Pass()]).iter) & {outer.var for outer in loops}
            if candidate.kind != "parallel" or not rectangular or candidate.options not in ((), loop.options):
                break
            loops.append(candidate)
            inner = inner[0].body
        self._refuse_shared_locals(loop, inner)
        fence = self.fence(inner)
        words = ["omp parallel for" if self.standalone and not fence else "omp for"]
        if len(loops) > 1:
            words.append(f"collapse({len(loops)})")
        words.append(f"schedule({dict(loop.options).get('schedule', 'static')})")
        if fence:
            words.append("nowait")
        with self.context.block():
            heads = [self.statements.head(level) for level in loops]
            nodes = self.statements.body(inner)
        for init, test, step in reversed(heads):
            nodes = [For(init, test, step, nodes)]
        nodes[0].pragma = " ".join(words)
        if not fence:
            return nodes
        if self.standalone:
            return [Pragma("omp parallel", Block([*nodes, *fence]))]
        return [*nodes, *fence, Pragma(BARRIER)]

    def fence(self, body: Sequence[ast.stmt]) -> list[Node]:
        """What ends a thread's non-temporal stores, where there may be any."""
        wanted = self.context.vector_width and any(map(streams, body))
        return [call("_mm_sfence")] if wanted else []

    def _refuse_shared_locals(self, loop: Loop, body: Sequence[ast.stmt]) -> None:
        declared = {name for statement in body for name in declared_in(statement)}
        shared = set(stored_in(body)) & set(self.context.locals) - declared
        if shared:
            raise Unsupported(
                f"the parallel loop over {loop.var} writes {', '.join(sorted(shared))}, declared outside",
                way_out="privatize it, or declare it in the loop",
            )


def _literal_bounds(loop: Loop) -> tuple[int, int, int]:
    if not isinstance(loop.start, ast.Constant) or loop.extent is None:
        raise Unsupported("the bounds of an unrolled loop are not literals", loop.node([ast.Pass()]))
    start = int(str(loop.start.value))
    return start, start + loop.extent * loop.step, loop.step


def _has_parallel(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.For) and kind_of(node) == "parallel" for node in nodes(statement))
