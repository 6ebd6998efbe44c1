"""inline: the elements of a buffer are computed again where they are read."""

from __future__ import annotations

import ast
from collections.abc import Container, Mapping

from swirl.analysis.accesses import Access
from swirl.analysis.coverage import unwritten_read
from swirl.analysis.dependences import before
from swirl.analysis.sets import NotProved, limited, set_of
from swirl.analysis.statements import Statement, statements
from swirl.ir.affine import affine, ranges_at, simplify_body
from swirl.ir.nest import (
    LocalType,
    Nest,
    Program,
    clone,
    declare,
    expr,
    fresh,
    loop_of,
    make_nest,
    names_in,
    references,
    subscripts,
    substitute,
)
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer, certain_references, nodes
from swirl.transforms.arguments import BufferName
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.checks.ways_out import step, tried
from swirl.transforms.rewrites.sites import taken_names
from swirl.transforms.rewrites.storage.contraction import vanishing, without_buffer

INDEX = "index"


@command()
def inline(program: Program, buffer: BufferName, *, local: bool = True) -> Program:
    """Compute the elements of a buffer again where they are read, instead of where they were stored.

    rewrite:
        for i in range(N):
            d[i] = g[i] if v[i] > 0.0 else 0.0          for i in range(N):
        for i in range(N):                      →           s[0] += (g[i] if v[i] > 0.0 else 0.0) * x[i]
            s[0] += d[i] * x[i]

    What a select, ``and`` or ``or`` does not evaluate is not read: ``d[i - 1] if i >= 1 else 0.0`` needs no ``d[-1]``.

    Args:
        buffer: a buffer that only this program touches, each element set by one plain assignment.
        local: where a block reads an element several times, compute it once and hold it in a local. If False, each sum
            has the whole formula, and ``factor`` sees that two loops make the same sum.

    Raises:
        CommandError: no such buffer.  Refused: others read it, it is set in several places, or what it is computed
        from changes before a read.
    """
    program, record = vanishing(program, buffer)
    whole = [s for nest in program.nests for s in nest.body]
    known = statements(whole)
    writes = [(s, a) for s in known for a in s.accesses if a.name == buffer and a.kind != "read"]
    if not writes:
        nest = next((n for n in program.nests if buffer in n.arguments), None)
        if nest is None:
            return without_buffer(program, buffer)
        raise refuse(f"{buffer} is read, but nothing here sets it", nest, (("body", 0),), f"asked to inline {buffer}")
    statement, access = writes[0]
    nest, path = _place(program, statement)
    note = f"asked to inline {buffer}"
    contracted = tried(
        program, (step("contract", buffer),), (step("fuse_layers"), step("contract", buffer)), (step("fuse_layers"),)
    )
    solved = _solved(access, ranges_at(nest.body, path))
    problem = _formula_problem(statement, access, solved, len(writes), buffer, program)
    if problem is not None:
        raise refuse(problem, nest, path, note, way_out=contracted)
    try:
        witness = unwritten_read(known, buffer) or _changed(known, statement, access)
    except NotProved:
        raise refuse(f"not proved that {buffer} is the same where it is read", nest, path, note) from None
    if witness is not None:
        raise refuse(
            f"{buffer} would not be the same where it is read", nest, path, note, witness=witness, way_out=contracted
        )
    assert isinstance(statement.node, ast.Assign) and solved is not None
    formula = _Formula(buffer, solved, statement.node.value)
    taken = taken_names(program)
    nests = []
    for old in program.nests:
        body = _Inliner(formula, record.dtype, taken, local).block(_without(old.body, statement.node))
        if body:
            nests.append(make_nest(old.label, simplify_body(body), program.buffers))
    return checked(program, without_buffer(program.with_nests(nests), buffer))


def _place(program: Program, statement: Statement) -> tuple[Nest, tuple[tuple[str, int], ...]]:
    """The nest of a statement whose path counts the statements of all nests, and its path there."""
    (field, index), rest = statement.path[0], statement.path[1:]
    for nest in program.nests:
        if index < len(nest.body):
            return nest, ((field, index), *rest)
        index -= len(nest.body)
    raise AssertionError(statement.text)


# --- legality -------------------------------------------------------------------------------------------
def _solved(access: Access, ranges: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, ast.expr]] | None:
    """Each variable of a write's subscripts as the number of a subscript and its formula in that, ``i // 16`` and
    ``i % 16`` for ``i = outer * 16 + inner``; None if a subscript does not determine its variables."""
    solved: dict[str, tuple[int, ast.expr]] = {}
    for number, index in enumerate(access.indices):
        form = affine(index)
        if form is None:
            return None
        around = None  # the coefficient of the previous digit: this digit is less than their quotient
        terms = sorted(form.terms.items(), key=lambda term: -term[1])
        if terms and (form.constant or terms[-1][1] != 1):
            return None
        for var, coefficient in terms:
            low, high = ranges.get(var, (0, 0))
            if var in solved or var not in ranges or low < 0 or coefficient < 1:
                return None
            if around is not None and (around % coefficient or high >= around // coefficient):
                return None
            text = INDEX if around is None else f"{INDEX} % {around}"
            solved[var] = number, expr(f"({text}) // {coefficient}")
            around = coefficient
    return solved


def _formula_problem(
    statement: Statement, access: Access, solved: Container[str] | None, count: int, buffer: str, program: Program
) -> str | None:
    """Why the assignment cannot be repeated elsewhere, or None."""
    if count > 1:
        return f"{buffer} is set in {count} places"
    if not isinstance(statement.node, ast.Assign) or access.kind != "write":
        return f"{buffer} is accumulated, not set once"
    if solved is None:
        return f"the subscripts of {access.text} do not determine the loops' variables"
    value = statement.node.value
    called = {n.func.id for n in nodes(value) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    others = names_in(value) - called - set(program.buffers)
    if buffer in names_in(value):
        return f"{buffer} is computed from itself"
    unknown = ", ".join(sorted(name for name in others if name not in solved))
    if unknown:
        return f"{buffer} is computed from {unknown}, which means nothing elsewhere"
    return None


def _changed(known: list[Statement], write: Statement, access: Access) -> str | None:
    """A statement that changes what an element is computed from before the element is read, in words; or None."""
    operands = [a for a in write.accesses if a.kind == "read"]
    for statement in known:
        for changed in statement.accesses:
            sources = [a for a in operands if a.name == changed.name]
            if changed.kind == "read" or not sources:
                continue
            for read in known:
                for element in read.accesses:
                    if element.name == access.name and element.kind == "read":
                        for source in sources:
                            if _between(write, access, source, statement, changed, read, element):
                                return f"{statement.text} changes {source.name} before {read.text} reads {element.text}"
    return None


def _between(
    write: Statement,
    access: Access,
    source: Access,
    change: Statement,
    changed: Access,
    read: Statement,
    element: Access,
) -> bool:
    """Whether ``change`` may run after ``write`` and before the ``read`` of the same element, touching ``source``."""
    constraints = [*write.domain.for_isl("_a"), *change.domain.for_isl("_c"), *read.domain.for_isl("_b")]
    constraints += [*write.evaluated(source, "_a"), *read.evaluated(element, "_b")]
    constraints += [before(write, change, ("_a", "_c")), before(change, read, ("_c", "_b"))]
    for pairs, suffix in (
        (zip(write.subscripts(access), read.subscripts(element), strict=True), "_b"),
        (zip(write.subscripts(source), change.subscripts(changed), strict=True), "_c"),
    ):
        for one, two in pairs:
            if one is not None and two is not None:  # an indirect subscript may be any element
                constraints.append(f"{one.replace('@', '_a')} = {two.replace('@', suffix)}")
    names = [var + "_a" for var in write.variables()]
    names += [var + "_c" for var in change.variables()] + [var + "_b" for var in read.variables()]
    with limited() as context:
        text = f"{{ [{', '.join(names)}] : {' and '.join(constraints)} }}"
        return not set_of(context, text).is_empty()


# --- rewriting ------------------------------------------------------------------------------------------
class _Formula(Transformer):
    """Replaces a reference by the value, for its subscripts."""

    def __init__(self, buffer: str, solved: Mapping[str, tuple[int, ast.expr]], value: ast.expr):
        self.buffer, self.solved, self.value = buffer, solved, value

    def at(self, node: ast.Subscript) -> ast.expr:
        indices = subscripts(node)
        return substitute(
            self.value,
            {var: substitute(formula, {INDEX: indices[number]}) for var, (number, formula) in self.solved.items()},
        )

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == self.buffer:
            return self.at(node)
        return self.generic_visit(node)


class _Inliner:
    """Rewrites blocks: an element read several times by the statements of one block gets a local there."""

    def __init__(self, formula: _Formula, dtype: str, taken: set[str], local: bool):
        self.formula, self.dtype, self.taken, self.local = formula, dtype, taken, local

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        locals_ = self._shared(body) if self.local else {}
        result: list[ast.stmt] = []
        for statement in body:
            for text, (local, first) in locals_.items():
                if first is statement:
                    node = ast.parse(text, mode="eval").body
                    assert isinstance(node, ast.Subscript)
                    result.append(declare(local, LocalType(self.dtype), self.formula.at(node)))
            result.append(self._statement(statement, {text: local for text, (local, _) in locals_.items()}))
        return result

    def _statement(self, statement: ast.stmt, locals_: dict[str, str]) -> ast.stmt:
        if isinstance(statement, ast.For):
            return loop_of(statement).node(self.block(statement.body))
        if isinstance(statement, ast.If):
            test = self.formula.visit(clone(statement.test))
            return ast.If(test, self.block(statement.body), self.block(statement.orelse))
        return self.formula.visit(_Named(locals_).visit(clone(statement)))

    def _shared(self, body: list[ast.stmt]) -> dict[str, tuple[str, ast.stmt]]:
        """Reference → a local for it and the statement that it is declared before."""
        counts: dict[str, list[ast.stmt]] = {}
        for statement in body:
            if not isinstance(statement, (ast.For, ast.If)):
                for ref in references(statement):
                    if unparse(ref.value) == self.formula.buffer:
                        counts.setdefault(unparse(ref), []).append(statement)
        result = {}
        for text, uses in counts.items():
            if len(uses) > 1 and any(text == unparse(found) for found in certain_references(uses[0])):
                result[text] = fresh(f"{self.formula.buffer}_t", self.taken), uses[0]
                self.taken.add(result[text][0])
        return result


class _Named(Transformer):
    def __init__(self, locals_: dict[str, str]):
        self.locals = locals_

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        local = self.locals.get(unparse(node))
        return ast.Name(local, ast.Load()) if local is not None else self.generic_visit(node)


def _without(body: list[ast.stmt], gone: ast.stmt) -> list[ast.stmt]:
    """The body without a statement, and without the loops and conditions that held only it."""
    result: list[ast.stmt] = []
    for statement in body:
        if statement is gone:
            continue
        if isinstance(statement, ast.For):
            inner = _without(statement.body, gone)
            if inner:
                result.append(statement if inner == statement.body else loop_of(statement).node(inner))
        elif isinstance(statement, ast.If):
            branches = _without(statement.body, gone), _without(statement.orelse, gone)
            if branches[0] or branches[1]:
                result.append(ast.If(statement.test, branches[0] or [ast.Pass()], branches[1]))
        else:
            result.append(statement)
    return result
