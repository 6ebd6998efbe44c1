"""Conditions that a zero halo makes needless: the statements that they skip would read zeros, and add nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from swirl.analysis.dependences import NotProved, instance
from swirl.analysis.footprints import extremes
from swirl.analysis.statements import Statement, statements_of
from swirl.ir.names import Scope, Unwrapping, scope_at
from swirl.ir.nest import Nest, Program, clone, names_in, references, subscripts
from swirl.ir.paths import Path, replace_at, walk
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer, nodes
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.loops.bounds import conjunction, conjuncts

Halo = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Candidate:
    """A condition without one of its parts.

    Args:
        path: of the statement that is guarded, or that holds the select.
        part: what is left out.
        rest: what stays.
        value: of the select; None for an ``if``.
        trial: the nest without the part, every statement in its place.
        nest: the nest without the part.
    """

    path: Path
    part: ast.expr
    rest: list[ast.expr]
    value: ast.expr | None
    trial: Nest
    nest: Nest


def without_dead_guards(program: Program, nest: Nest, buffer: str, halo: Halo, within: Path = ()) -> Nest:
    """The nest without those conditions, in the statement at ``within``, that ``halo`` zeros around ``buffer`` make
    needless.

    Raises:
        Refused: with a larger halo, where there is one, a condition would be needless.
    """
    found = True
    while found:
        found = False
        for candidate in _candidates(nest):
            if candidate.path[: len(within)] == within and _Check(program, nest, buffer, halo, candidate).needless():
                nest, found = candidate.nest, True
                break
    return nest


def _candidates(nest: Nest) -> Iterator[_Candidate]:
    for path, node in walk(nest.body):
        if isinstance(node, ast.If):
            if not node.orelse:
                inner = Unwrapping(nest.body).own(node.body)
                for part, rest in _parts(node.test):
                    test = conjunction(rest) if rest else ast.Constant(True)
                    trial = nest.with_body(replace_at(nest.body, path, [ast.If(test, node.body, [])]))
                    new = trial if rest else nest.with_body(replace_at(nest.body, path, inner))
                    yield _Candidate(path, part, rest, None, trial, new)
        elif not isinstance(node, ast.For):
            for number, select in enumerate(_selects(node)):
                for part, rest in _parts(select.test):
                    new = nest.with_body(replace_at(nest.body, path, [_without(node, number, rest)]))
                    yield _Candidate(path, part, rest, select.body, new, new)


def _parts(test: ast.expr) -> Iterator[tuple[ast.expr, list[ast.expr]]]:
    parts = conjuncts(test)
    for position, part in enumerate(parts):
        yield part, parts[:position] + parts[position + 1 :]


def _selects(node: ast.AST) -> list[ast.IfExp]:
    """The selects ``value if condition else 0.0`` of a statement."""
    return [n for n in nodes(node) if isinstance(n, ast.IfExp) and _is_zero(n.orelse)]


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value == 0


def _without(statement: ast.stmt, number: int, rest: list[ast.expr]) -> ast.stmt:
    """The statement with another condition in one of its selects."""
    new = clone(statement)
    found = _selects(new)[number]

    class Replace(Transformer):
        def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
            if node is not found:
                self.generic_visit(node)
                return node
            return ast.IfExp(conjunction(rest), node.body, node.orelse) if rest else node.body

    result: ast.stmt = Replace().visit(new)
    return result


@dataclass
class _Check:
    """Whether the statements that a part of a condition skips would do nothing, in the halo."""

    program: Program
    nest: Nest
    buffer: str
    halo: Halo
    candidate: _Candidate
    zeros: set[Path | None] = field(default_factory=set)
    """Declarations of locals that start as zero."""
    beyond: tuple[Statement, ast.Subscript, list[str]] | None = None
    """A read outside of the halo, on a side where there is one."""

    def needless(self) -> bool:
        candidate = self.candidate
        known = statements_of(candidate.trial)
        inside = [s for s in known if s.path[: len(candidate.path)] == candidate.path]
        if candidate.value is None:
            inside = [s for s in inside if len(s.path) > len(candidate.path)]
        try:
            return self._all_idle(inside)
        except NotProved:
            return False

    def _all_idle(self, inside: list[Statement]) -> bool:
        for statement in inside:
            for_isl = statement.domain.condition
            part, rest = for_isl(self.candidate.part), map(for_isl, self.candidate.rest)
            if part is None:
                return False
            then = [f"(not {part})"]
            if self.candidate.value is None:
                if not (self._allowed(statement.node, statement, then) and self._idle(statement, then)):
                    return False
            else:
                then += [text for text in rest if text is not None]
                value = self.candidate.value
                if not (self._allowed(value, statement, then) and self._zero(value, statement, then)):
                    return False
        if self.beyond is not None:
            raise self._too_small(*self.beyond)
        return bool(inside)

    def _idle(self, statement: Statement, then: list[str]) -> bool:
        """Whether instances of the statement change nothing."""
        node = statement.node
        if isinstance(node, ast.AugAssign):
            return isinstance(node.op, (ast.Add, ast.Sub)) and self._zero(node.value, statement, then)
        if isinstance(node, ast.AnnAssign):
            if node.value is not None and self._zero(node.value, statement, then):
                self.zeros.add(statement.path)
            return True
        return isinstance(node, (ast.If, ast.Pass, ast.Expr))

    def _zero(self, node: ast.expr, statement: Statement, then: list[str]) -> bool:
        """Whether an expression is zero because it reads zeros around the buffer (and finite values elsewhere)."""

        def zero(part: ast.expr) -> bool:
            return self._zero(part, statement, then)

        if isinstance(node, ast.Name):
            return node.id != "INFINITY" and self._scope(statement)[node.id].declared in self.zeros
        if isinstance(node, ast.Subscript):
            return unparse(node.value) == self.buffer and self._outside(node, statement, then)
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.USub) and zero(node.operand)
        if isinstance(node, ast.IfExp):
            return zero(node.body) and zero(node.orelse)
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Mult):
                return zero(node.left) or zero(node.right)
            if isinstance(node.op, ast.Div):
                return zero(node.left) and isinstance(node.right, ast.Constant) and not _is_zero(node.right)
            return isinstance(node.op, (ast.Add, ast.Sub)) and zero(node.left) and zero(node.right)
        return _is_zero(node)

    def _outside(self, reference: ast.Subscript, statement: Statement, then: list[str]) -> bool:
        """Whether a reference never touches the buffer's own elements."""
        within = []
        for index, extent in zip(subscripts(reference), self.program.buffers[self.buffer].shape, strict=True):
            text = statement.domain.subscript(index)
            if text is not None:
                within.append(f"0 <= {text} < {extent}")
        return instance(statement, [*then, *within]) is None

    def _allowed(self, tree: ast.AST, statement: Statement, then: list[str]) -> bool:
        """Whether all references in a tree are allowed; one that needs more halo is noted, and allowed."""
        if isinstance(tree, ast.If):
            tree = tree.test
        elif isinstance(tree, ast.AnnAssign) and tree.value is not None:
            tree = tree.value  # its declarations do not exist yet
        for reference in references(tree):
            name, stored = unparse(reference.value), isinstance(reference.ctx, ast.Store)
            if any(True for index in subscripts(reference) for _ in references(index)):
                return False
            shape = self._scope(statement)[name].shape
            own = name == self.buffer and not stored
            halo = self.halo if own else ((0, 0),) * len(shape)
            if name in self.program.buffers and not stored and not own:
                halo = self.program.buffers[name].layout.halo or halo
            for index, extent, (before, after) in zip(subscripts(reference), shape, halo, strict=True):
                text = statement.domain.subscript(index)
                ends = (-1, extent) if text is None else extremes(statement, text, then)
                if ends is None or -before <= ends[0] and ends[1] < extent + after:
                    continue
                low, high = ends[0] < -before, ends[1] >= extent + after
                if not own or text is None or low and not before or high and not after:
                    return False
                where = f"({text}) < {-before}" if low else f"({text}) >= {extent + after}"
                self.beyond = (statement, reference, [*then, where])
        return True

    def _scope(self, statement: Statement) -> Scope:
        """What names mean at a statement of the trial."""
        return scope_at(self.candidate.trial.body, statement.path, self.program.buffers)

    def _too_small(self, statement: Statement, reference: ast.Subscript, constraints: Sequence[str]) -> Exception:
        values = instance(statement, constraints) or {}
        text = unparse(reference)
        at = ", ".join(f"{name}={value}" for name, value in values.items() if name in names_in(reference))
        element = [eval(unparse(index), {"min": min, "max": max}, dict(values)) for index in subscripts(reference)]
        return refuse(
            f"the halo of {self.buffer} is too small",
            self.nest,
            self.candidate.path,
            "its condition would be needless with a larger one",
            witness=f"{at} reads {text}, which is {self.buffer}{element}",
            way_out=f"{self._needed()} is enough; a side of 0 keeps its conditions",
        )

    def _needed(self) -> str:
        """The command with the padding that all reads of the buffer here need."""
        needed = [list(sides) for sides in self.halo]
        shape = self.program.buffers[self.buffer].shape
        for statement in statements_of(self.candidate.trial):
            for reference in references(statement.node):
                if unparse(reference.value) == self.buffer:
                    for index, extent, sides in zip(subscripts(reference), shape, needed, strict=True):
                        text = statement.domain.subscript(index)
                        ends = None if text is None else extremes(statement, text)
                        if ends is not None and sides[0]:
                            sides[0] = max(sides[0], -ends[0])
                        if ends is not None and sides[1]:
                            sides[1] = max(sides[1], ends[1] - extent + 1)
        counted = needed[self.program.buffers[self.buffer].batch_dims :]
        return f"set_padding({self.buffer!r}, {', '.join(f'({a}, {b})' for a, b in counted)})"
