"""The statements of a nest with what surrounds them: instances, the elements touched, and when they run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from swirl.analysis.accesses import Access, LocalLoops, access, accesses_of, parsed
from swirl.analysis.domains import Domain
from swirl.ir.names import stored_in
from swirl.ir.nest import Loop, Nest, loop_of, references
from swirl.ir.paths import Path
from swirl.ir.printing import unparse
from swirl.ir.trees import ASSIGNMENTS, condition_of, declared_in, name_of, statements_in, target_of


@dataclass(frozen=True)
class Statement:
    """A leaf statement, or the evaluation of a condition, in its context.

    Args:
        path: of the statement.
        node: the statement; of a condition, the ``if``.
        domain: the loops and conditions around.
        loop_depths: for each of the loops, the length of the path to its body, less one.
        accesses: what it refers to.
        scope: the locals that are visible.
    """

    path: Path
    node: ast.stmt
    domain: Domain
    loop_depths: tuple[int, ...]
    accesses: tuple[Access, ...]
    scope: LocalLoops = field(compare=False)

    def access(self, target: ast.expr, kind: str) -> Access:
        """A reference at the statement's place."""
        return access(target, kind, self.scope)

    @property
    def computed(self) -> ast.AST:
        """What is computed: the statement, or the condition."""
        return self.node.test if isinstance(self.node, ast.If) else self.node

    @property
    def text(self) -> str:
        return unparse(self.node)

    @property
    def identity(self) -> int | None:
        """The number that :func:`tag` gave to the statement."""
        return getattr(self.node, "identity", None)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """Those around, outermost first."""
        return self.domain.loops

    @property
    def guards(self) -> tuple[str, ...]:
        """The conditions around."""
        return self.domain.guard_texts

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Least and greatest value of each loop variable, where known."""
        return self.domain.ranges

    @property
    def variable_set(self) -> frozenset[str]:
        return self.domain.variables

    def variables(self) -> list[str]:
        return [loop.var for loop in self.loops]

    def loop_paths(self) -> list[tuple[Path, Loop]]:
        """The loops around with their paths, outermost first."""
        return [(self.path[: depth + 1], loop) for depth, loop in zip(self.loop_depths, self.loops, strict=True)]

    @cached_property
    def touched(self) -> frozenset[str]:
        """The names of what it reads, writes or updates."""
        return frozenset(access.name for access in self.accesses)

    @cached_property
    def changed(self) -> frozenset[str]:
        """The names of what it writes or updates."""
        return frozenset(access.name for access in self.accesses if access.kind != "read")

    def subscripts(self, access: Access) -> list[str | None]:
        """The templates of an access of the statement; None where a subscript is not affine in the loops around, as one
        that a local holds."""
        pairs = zip(access.templates, access.names, strict=True)
        return [text if names <= self.domain.known else None for text, names in pairs]

    def evaluated(self, access: Access, suffix: str) -> list[str]:
        """Constraints on the instances in which the value of a read is needed, beyond those of :attr:`domain`."""
        found = (self.domain.condition(parsed(condition)) for condition in access.when)
        return [condition.replace("@", suffix) for condition in found if condition is not None]

    def conditions_of(self, access: Access) -> list[str]:
        """Constraints, with ``@`` after variables, on the instances in which an access is made as the statement is
        written: with what conditions on loop variables say that are joined with others on data. A command may take
        such a condition apart, so that :attr:`domain` does not have it."""
        conditions = (*map(condition_of, self.domain.guards), *map(parsed, access.when))
        parts = [part for condition in conditions for part in necessary(condition)]
        return [known for part in parts if (known := self.domain.condition(part)) is not None]

    def time(self, suffix: str, length: int) -> list[str]:
        """When an instance runs: positions and loop variables alternate, and zeros fill up to ``length``; a vector
        loop's statement counts before its lane, and a condition before what is in its branches."""
        result, lanes = self._times(suffix) if suffix else self._plain_times
        return result + ["0"] * (length - len(result) - len(lanes)) + lanes

    @cached_property
    def _plain_times(self) -> tuple[list[str], list[str]]:
        return self._times("")

    def _times(self, suffix: str) -> tuple[list[str], list[str]]:
        """What comes first in :meth:`time`, and the lanes."""
        result: list[str] = []
        lanes: list[str] = []
        by_depth = dict(zip(self.loop_depths, self.loops, strict=True))
        for depth, (name, index) in enumerate(self.path):
            result.append(str(index + 1 if name == "body" else index + 1001))  # a condition counts as 0 in its branches
            if depth in by_depth:
                loop = by_depth[depth]
                value = loop.var + suffix if loop.step > 0 else f"(-{loop.var}{suffix})"
                (lanes if loop.kind == "vector" else result).append(value)
        return result, lanes

    @property
    def time_length(self) -> int:
        return len(self.path) + len(self.loops)


def necessary(test: ast.expr, holds: bool = True) -> list[ast.expr]:
    """Conditions that all hold where ``test`` does (or does not): of ``c > 0 and data``, each by itself."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return necessary(test.operand, not holds)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if holds else ast.Or):
        return [part for value in test.values for part in necessary(value, holds)]
    return [test if holds else ast.UnaryOp(ast.Not(), test)]


def tag(body: list[ast.stmt]) -> None:
    """Numbers the statements and conditions of a private copy, so that they are recognised after a
    rewrite."""
    count = 0
    for statement in body:
        for node in statements_in(statement):
            if not isinstance(node, ast.For):
                setattr(node, "identity", count)  # noqa: B010
                count += 1


def statements(body: list[ast.stmt], prefix: Path = ()) -> list[Statement]:
    """The leaf statements and conditions of a nest's body, in textual order; ``prefix`` comes before their paths."""
    found: list[Statement] = []
    _collect(found, body, "body", prefix, Domain(), (), {})
    return found


def statements_at(body: list[ast.stmt], path: Path, instead: list[ast.stmt]) -> list[Statement]:
    """The leaf statements and conditions in ``instead``, which takes the place of the statement at ``path`` of a nest's
    body."""
    domain, depths = Domain(), tuple[int, ...]()
    scope: LocalLoops = {}
    for depth, (_, index) in enumerate(path):
        for before in body[:index]:
            scope = _with_declared(scope, before, domain)
        if depth == len(path) - 1:
            break
        node, field = body[index], path[depth + 1][0]
        if isinstance(node, ast.For):
            domain, depths = Domain((*domain.loops, loop_of(node)), domain.guards), (*depths, depth)
        else:
            assert isinstance(node, ast.If)
            domain = Domain(domain.loops, (*domain.guards, (node.test, field == "body")))
        body = getattr(node, field)
    found: list[Statement] = []
    _collect(found, instead, path[-1][0], path[:-1], domain, depths, scope, path[-1][1])
    return found


def statements_of(nest: Nest) -> Sequence[Statement]:
    """The same of a nest, which are made once."""
    if "statements" not in nest.facts:
        nest.facts["statements"] = statements(nest.body)
    found: list[Statement] = nest.facts["statements"]
    return found


LocalUse = tuple[ast.Subscript, bool, tuple[Loop, ...]]
"""A reference to a local array, whether it is stored to, and the loops around it."""


def local_uses(body: Sequence[ast.stmt], name: str, loops: tuple[Loop, ...] = ()) -> Iterator[LocalUse]:
    """The references to a local array in statements after its declaration, which is in ``loops``."""
    for statement in body:
        parts: list[ast.AST] = [statement]
        if isinstance(statement, ast.For):
            yield from local_uses(statement.body, name, (*loops, loop_of(statement)))
            parts = [statement.iter]
        elif isinstance(statement, ast.If):
            yield from local_uses([*statement.body, *statement.orelse], name, loops)
            parts = [statement.test]
        target = target_of(statement) if isinstance(statement, ASSIGNMENTS) else None
        for reference in (ref for part in parts for ref in references(part) if name_of(ref) == name):
            yield reference, reference is target, loops


def outer_locals(body: list[ast.stmt], loop: ast.For) -> list[str]:
    """Locals that a loop somewhere in ``body`` assigns, and that are declared outside of it: one for all iterations."""
    outside = {name for statement in body for name in declared_in(statement)} - declared_in(loop)
    return [name for name in stored_in([loop]) if name in outside]


def _collect(
    found: list[Statement],
    body: list[ast.stmt],
    field: str,
    prefix: Path,
    domain: Domain,
    depths: tuple[int, ...],
    scope: LocalLoops,
    first: int = 0,
) -> None:
    for index, node in enumerate(body, first):
        path = (*prefix, (field, index))
        if isinstance(node, ast.For):
            inside = Domain((*domain.loops, loop_of(node)), domain.guards)
            _collect(found, node.body, "body", path, inside, (*depths, len(path) - 1), scope)
            continue
        scope = _with_declared(scope, node, domain)
        found.append(Statement(path, node, domain, depths, tuple(accesses_of(node, scope)), scope))
        if isinstance(node, ast.If):
            for branch, part, holds in (("body", node.body, True), ("orelse", node.orelse, False)):
                inside = Domain(domain.loops, (*domain.guards, (node.test, holds)))
                _collect(found, part, branch, path, inside, depths, scope)


def _with_declared(scope: LocalLoops, node: ast.stmt, domain: Domain) -> LocalLoops:
    """The locals known after a statement in these loops."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {**scope, node.target.id: tuple(loop.var for loop in domain.loops)}
    return scope
