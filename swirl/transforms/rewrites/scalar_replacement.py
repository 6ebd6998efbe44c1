"""An element that stays the same over loops is kept in a local."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable

from swirl.errors import Refused
from swirl.ir.hints import stored_value, stream, streamed
from swirl.ir.nest import (
    LocalType,
    Nest,
    Path,
    Program,
    at,
    clone,
    clones,
    declare,
    expr,
    for_loop,
    fresh,
    loop_of,
    reference,
    references,
    replace_at,
    subscripts,
)
from swirl.ir.printing import unparse
from swirl.ir.statements import parsed
from swirl.ir.trees import statements_in
from swirl.transforms.rewrites.candidates import Candidate, candidates
from swirl.transforms.rewrites.checked import check_marks
from swirl.transforms.rewrites.reductions import reductions_over
from swirl.transforms.rewrites.references import stored_targets
from swirl.transforms.rewrites.refusals import refuse
from swirl.transforms.rewrites.sites import Site, take_mark, taken_names, with_mark


def replaced(program: Program, nest: Nest, buffer: str | None = None) -> Nest:
    """``nest`` with every replacement made, largest region first."""
    given_up: set[tuple[Path, str]] = set()
    start: Path = ()  # blocks before it have nothing to replace, unless what was replaced behind them has changed that
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


class _Replace(ast.NodeTransformer):
    """Puts the local in place of the reference; ``streamed`` tells whether a store of it was non-temporal."""

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


def _replace(program: Program, nest: Nest, candidate: Candidate) -> Nest:
    """The nest with one reference replaced over its block."""
    block = nest.body
    if candidate.parent:
        owner = at(nest.body, candidate.parent)
        assert isinstance(owner, ast.For)
        block = owner.body
    local = fresh(f"{candidate.name}_t", taken_names(program, [nest]))
    dtype = program.buffers[candidate.name].dtype
    own: list[ast.expr] = [ast.Name(head.var, ast.Load()) for head in candidate.heads]

    def place(store: bool) -> ast.expr:
        if own:
            return reference(local, clones(own), store)
        return ast.Name(local, ast.Store() if store else ast.Load())

    def element(store: bool) -> ast.expr:
        node = parsed(candidate.text)
        assert isinstance(node, ast.Subscript)
        return reference(candidate.name, clones(subscripts(node)), store)

    def over(statement: ast.stmt, guarded: bool = True) -> ast.stmt:
        if guarded and candidate.guard is not None:
            statement = ast.If(clone(parsed(candidate.guard)), [statement], [])
        for head in reversed(candidate.heads):
            statement = for_loop(head.var, head.stop, [statement], kind=head.kind)
        return statement

    uses = [
        i for i, s in enumerate(block) if any(unparse(ref) == candidate.text for ref in references(s))
    ]
    writes = [
        i
        for i in uses
        if any(unparse(t) == candidate.text for n in statements_in(block[i]) for t in stored_targets(n))
    ]
    rewrite = _Replace(candidate.text, place)
    new = [rewrite.visit(clone(s)) if i in uses else s for i, s in enumerate(block)]
    first = uses[0]
    assigned = _assigns_first(block[first], candidate.text)
    head: list[ast.stmt] = []
    if own:
        head.append(declare(local, LocalType(dtype, tuple(h.extent for h in candidate.heads))))
        if candidate.guard is not None:  # where there is no element, there is a zero that nobody reads
            head.append(over(ast.Assign([place(True)], expr(_START.get(dtype, 0.0))), guarded=False))
        if not assigned:
            head.append(over(ast.Assign([place(True)], element(False))))
    elif candidate.guard is not None:
        head.append(declare(local, LocalType(dtype), expr(_START.get(dtype, 0.0))))
        if not assigned:
            head.append(over(ast.Assign([place(True)], element(False))))
    elif not assigned:
        head.append(declare(local, LocalType(dtype), element(False)))
    elif isinstance(assignment := new[first], ast.Assign):
        new[first] = declare(local, LocalType(dtype), assignment.value)
    else:  # assigned in a loop: what it starts with is never read
        head.append(declare(local, LocalType(dtype), expr(_START.get(dtype, 0.0))))
    result = [*new[:first], *head, *new[first:]]
    if writes:
        behind = writes[-1] + 1 + len(head)
        value = stream(place(False)) if rewrite.streamed else place(False)
        result[behind:behind] = [over(ast.Assign([element(True)], value))]
    if not candidate.parent:
        return nest.with_body(result)
    owner = copy.copy(
        at(nest.body, candidate.parent)
    )  # a copy keeps the mark of the loop that a command is about
    assert isinstance(owner, ast.For)
    owner.body = result
    return nest.with_body(replace_at(nest.body, candidate.parent, [owner]))


_START: dict[str, int] = {"int32": 0, "bool": False}


def _assigns_first(node: ast.stmt, text: str) -> bool:
    """Whether the statement certainly assigns every element of the reference before reading it."""
    while isinstance(node, ast.For) and (loop_of(node).kind == "vector" or loop_of(node).extent):
        node = node.body[0]
    return (
        isinstance(node, ast.Assign)
        and unparse(node.targets[0]) == text
        and not any(unparse(ref) == text for ref in references(node.value))
    )


def localize_reductions(program: Program, site: Site) -> tuple[Program, Site]:
    """Targets in buffers of the reductions over the loop at ``site`` become locals; the site may move
    down."""
    program = with_mark(program, site, "partials")
    nest = program.nests[site.nest]
    for reduction in reductions_over(nest.body, site.path):
        if reduction.name not in program.buffers:
            continue
        around = [
            candidate
            for candidate in candidates(program, nest, reduction.name)
            if candidate.text == reduction.text and site.path[: len(candidate.parent)] == candidate.parent
        ]
        if not around:
            raise refuse(
                f"{reduction.text} is accumulated over the loop, but something else may touch it",
                nest,
                site.path,
                "asked for partial results",
            )
        nest = _replace(program, nest, around[0])
    program = program.with_nest(site.nest, nest)
    return program, take_mark(program, "partials")
