"""An element that stays the same over loops is kept in a local."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from swirl.analysis.accesses import parsed
from swirl.errors import Refused
from swirl.ir.hints import stored_value, stream, streamed
from swirl.ir.nest import (
    LocalType,
    Nest,
    Program,
    clone,
    clones,
    declare,
    expr,
    for_loop,
    fresh,
    kind_of,
    loop_of,
    reference,
    references,
    subscripts,
    with_inner,
)
from swirl.ir.paths import Path, at, replace_at
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer, name_of, targets_in
from swirl.transforms.rewrites.checks.checked import check_marks
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.sites import Site, take_mark, taken_names, with_mark
from swirl.transforms.rewrites.storage.candidates import Candidate, Obstacle, candidates, over_statement
from swirl.transforms.rewrites.sums.argmax_lanes import winners_over
from swirl.transforms.rewrites.sums.reductions import reductions_over


def replaced(program: Program, nest: Nest, buffer: str | None = None) -> Nest:
    """``nest`` with every replacement made, largest region first."""
    given_up: set[tuple[Path, str]] = set()
    start: Path = ()  # blocks before it have nothing to replace, unless a later replacement has changed that
    changed = False
    while True:
        found = (c for c in candidates(program, nest, buffer, start) if (c.parent, c.text) not in given_up)
        candidate = next(found, None)
        if candidate is None:
            if not changed:
                return nest
            start, changed = (), False
            continue
        start = candidate.parent
        try:
            after = _replace(program, nest, candidate)
            if not candidate.certain:  # the element is now touched where it may not have been
                check_marks(after)
            nest, changed = after, True
        except Refused:
            given_up.add((candidate.parent, candidate.text))


class _Replace(Transformer):
    """Replaces the reference by the local; ``streamed`` tells whether a store of it was non-temporal."""

    streamed = False

    def __init__(self, text: str, place: Callable[[bool], ast.expr]):
        self.text, self.place = text, place

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if streamed(node.value) is not None and unparse(node.targets[0]) == self.text:
            self.streamed, node.value = True, stored_value(node.value)
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if unparse(node) == self.text:
            return self.place(isinstance(node.ctx, ast.Store))
        return self.generic_visit(node)


@dataclass(frozen=True)
class _Local:
    """The local in place of a reference: a variable, or an array where several elements are kept.

    Args:
        name: of the local.
        dtype: of its elements.
        candidate: what it replaces.
    """

    name: str
    dtype: str
    candidate: Candidate

    def place(self, store: bool) -> ast.expr:
        """The local, or its element of these lanes."""
        if self.candidate.heads:
            own: list[ast.expr] = [ast.Name(head.var, ast.Load()) for head in self.candidate.heads]
            return reference(self.name, own, store)
        return ast.Name(self.name, ast.Store() if store else ast.Load())

    def element(self, store: bool) -> ast.expr:
        """The buffer's element."""
        node = parsed(self.candidate.text)
        assert isinstance(node, ast.Subscript)
        return reference(self.candidate.name, clones(subscripts(node)), store)

    def over(self, statement: ast.stmt, guarded: bool = True) -> ast.stmt:
        """The statement for every element that is kept and exists."""
        if guarded and self.candidate.guard is not None:
            statement = ast.If(clone(parsed(self.candidate.guard)), [statement], [])
        for head in reversed(self.candidate.heads):
            statement = for_loop(head.var, head.stop, [statement], kind=head.kind)
        return statement

    def begun(self, assigned: bool) -> list[ast.stmt]:
        """The statements that declare the local and load it from the buffer.

        Args:
            assigned: whether the first use assigns it, so that nothing reads its first value.
        """
        heads, guarded = self.candidate.heads, self.candidate.guard is not None
        loaded = [] if assigned else [self.over(ast.Assign([self.place(True)], self.element(False)))]
        if heads:
            declared = declare(self.name, LocalType(self.dtype, tuple(head.extent for head in heads)))
            if not guarded:
                return [declared, *loaded]
            # if there is no element, a zero that nothing reads
            return [declared, self.over(ast.Assign([self.place(True)], self._zero()), guarded=False), *loaded]
        if guarded:
            return [self.declared(self._zero()), *loaded]
        return [self.declared(self._zero() if assigned else self.element(False))]

    def declared(self, value: ast.expr) -> ast.AnnAssign:
        """The declaration of a variable."""
        return declare(self.name, LocalType(self.dtype), value)

    def _zero(self) -> ast.expr:
        return expr({"int32": 0, "bool": False}.get(self.dtype, 0.0))


def _replace(program: Program, nest: Nest, candidate: Candidate) -> Nest:
    """The nest with one reference replaced over its block."""
    owner = at(nest.body, candidate.parent) if candidate.parent else None
    assert owner is None or isinstance(owner, ast.For)
    block = nest.body if owner is None else owner.body
    dtype = program.buffers[candidate.name].dtype
    local = _Local(fresh(f"{candidate.name}_t", taken_names(program, [nest])), dtype, candidate)
    uses = [i for i, s in enumerate(block) if any(unparse(ref) == candidate.text for ref in references(s))]
    uses = uses if candidate.only is None else [candidate.only]
    rewrite = _Replace(candidate.text, local.place)
    new = [rewrite.visit(clone(s)) if i in uses else s for i, s in enumerate(block)]
    first = uses[0]
    assigned = _assigns_first(block[first], candidate.text)
    begun = local.begun(assigned)
    assignment = new[first]
    if assigned and not candidate.heads and candidate.guard is None and isinstance(assignment, ast.Assign):
        new[first], begun = local.declared(assignment.value), []
    result = [*new[:first], *begun, *new[first:]]
    writes = [i for i in uses if _writes(block[i], candidate.text)]
    if writes:
        after = writes[-1] + 1 + len(begun)
        value = stream(local.place(False)) if rewrite.streamed else local.place(False)
        result[after:after] = [local.over(ast.Assign([local.element(True)], value))]
    if owner is None:
        return nest.with_body(result)
    return nest.with_body(replace_at(nest.body, candidate.parent, [with_inner(owner, result)]))


def _writes(node: ast.stmt, text: str) -> bool:
    """Whether the statement, or one inside of it, writes the reference."""
    return any(unparse(target) == text for target in targets_in([node]))


def _assigns_first(node: ast.stmt, text: str) -> bool:
    """Whether the statement certainly assigns every element of the reference before reading it."""
    while isinstance(node, ast.For) and (kind_of(node) == "vector" or loop_of(node).extent):
        node = next(s for s in node.body if any(unparse(ref) == text for ref in references(s)))
    return (
        isinstance(node, ast.Assign)
        and unparse(node.targets[0]) == text
        and not any(unparse(ref) == text for ref in references(node.value))
    )


def localize_reductions(program: Program, site: Site) -> tuple[Program, Site]:
    """Targets in buffers of the reductions over the loop at ``site`` become locals; the site may move
    down."""
    for reduction in reductions_over(program.nests[site.nest].body, site.path):
        found = _localized(program, site, reduction.target)
        if found is None:
            raise refuse(
                f"{reduction.text} is accumulated over the loop, but something else may touch it",
                program.nests[site.nest],
                site.path,
                "asked for partial results",
            )
        program, site = found
    return program, site


def localize_winners(program: Program, site: Site) -> tuple[Program, Site]:
    """Targets in buffers of the winners that the loop at ``site`` finds become locals, where nothing else may touch
    them; the site may move down."""
    for winner in winners_over(program.nests[site.nest].body, site.path):
        for target in winner.targets:
            program, site = _localized(program, site, target) or (program, site)
    return program, site


def _localized(program: Program, site: Site, target: ast.expr) -> tuple[Program, Site] | None:
    """The program in which the target of a loop is a local, and where the loop is now; None where something else may
    touch the element."""
    name, text = name_of(target), unparse(target)
    if name not in program.buffers:
        return program, site
    marked = with_mark(program, site, "partials")
    nest = marked.nests[site.nest]
    around = (
        candidate
        for candidate in candidates(program, nest, name)
        if candidate.text == text and site.path[: len(candidate.parent)] == candidate.parent
    )
    found = next(around, None) or over_statement(program, nest, site.path, text)
    if isinstance(found, Obstacle):
        take_mark(marked, "partials")
        return None
    program = marked.with_nest(site.nest, _replace(program, nest, found))
    return program, take_mark(program, "partials")
