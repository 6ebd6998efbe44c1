"""scalar_replace: an element that stays the same over loops is kept in a local."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

from swirl.errors import CommandError
from swirl.ir.deps import NotProved, Statement, find, statements
from swirl.ir.nest import (
    LocalType,
    Nest,
    Path,
    Program,
    at,
    declare,
    fresh,
    loop_of,
    names_in,
    reference,
    references,
    replace_at,
    subscripts,
    walk,
)
from swirl.ir.validate import vector_lanes
from swirl.transforms.base import Site, checked, command, find_marked, marked_loop, refuse, taken_names
from swirl.transforms.reductions import reductions_over

MAX_REGISTERS = 32
"""Elements (vectors count once) that the automatic pass puts into one local array at the most."""


@command()
def scalar_replace(program: Program, buffer: str | None = None, *, nest: int | str | None = None) -> Program:
    """Keep elements in locals over the loops that do not move them; read before, written back behind.

    rewrite:
        for h in range(H):                  mean_t: float32 = mean[c]
            mean[c] += x[c, h]      →       for h in range(H):
                                                mean_t += x[c, h]
                                            mean[c] = mean_t

    Inside unrolled and vector loops the elements become an array of registers.

    Args:
        buffer: only references to this buffer; by default every reference that gains.
        nest: only in this nest (index or label).

    Raises:
        CommandError: no such buffer.  Refused: asked for a buffer of which no reference can be replaced.

    Source: Lake, section 3.2; Callahan, Carr, Kennedy, PLDI 1990.
    """
    if buffer is not None and buffer not in program.buffers:
        raise CommandError(f"no buffer named {buffer!r} in {program.name}", way_out=f"the buffers are {', '.join(program.buffers)}")
    result = program
    for index, target in enumerate(program.nests):
        if nest is None or nest in (index, target.label):
            result = result.with_nest(index, replaced(result, target, buffer))
    if buffer is not None and result.text == program.text:
        holders = [n for n in program.nests if buffer in n.arguments]
        if holders:
            raise refuse(f"no reference to {buffer} stays the same over a loop, or another one may touch the same element",
                         holders[0], (("body", 0),), "asked for scalars", way_out="interchange brings the loop inside")  # fmt: skip
    return checked(program, result)


def replaced(program: Program, nest: Nest, buffer: str | None = None) -> Nest:
    """``nest`` with every replacement made, largest region first."""
    while True:
        candidate = next(_candidates(program, nest, buffer), None)
        if candidate is None:
            return nest
        nest = _replace(program, nest, candidate)


@dataclass(frozen=True)
class _Candidate:
    """One reference, and the block of statements over which it is one element (or one array of registers)."""

    parent: Path  # of the statement that owns the block; () for the nest's own body
    text: str
    name: str
    heads: tuple[tuple[str, ast.expr, int, str], ...]  # variable, bound, extent, kind of unrolled and vector loops


def _blocks(body: list[ast.stmt]) -> Iterator[tuple[Path, list[ast.stmt]]]:
    yield (), body
    for path, node in walk(body):
        if isinstance(node, ast.For):
            yield path, node.body


def _candidates(program: Program, nest: Nest, buffer: str | None) -> Iterator[_Candidate]:
    for parent, block in _blocks(nest.body):
        if _has_parallel(block):
            continue
        around = [at(nest.body, parent[: depth + 1]) for depth in range(len(parent))]
        outside = {loop_of(node).var for node in around if isinstance(node, ast.For)}
        texts: dict[str, list[str]] = {}
        for statement in block:
            for ref in references(statement):
                name = ast.unparse(ref.value)
                if name in program.buffers and (buffer is None or name == buffer):
                    texts.setdefault(name, []).append(ast.unparse(ref))
        for name, found in texts.items():
            for text in dict.fromkeys(found):
                heads = _heads(block, text, outside)
                if heads is not None and _gains(block, text, heads, buffer is not None) and _alone(nest, parent, block, name, text):
                    yield _Candidate(parent, text, name, heads)


def _has_parallel(block: list[ast.stmt]) -> bool:
    return any(isinstance(n, ast.For) and loop_of(n).kind == "parallel" for s in block for n in ast.walk(s))


def _heads(block: list[ast.stmt], text: str, outside: set[str]) -> tuple[tuple[str, ast.expr, int, str], ...] | None:
    """The unrolled and vector loops inside that the reference moves with; None where it moves with anything else."""
    node = ast.parse(text, mode="eval").body
    assert isinstance(node, ast.Subscript)
    if any(True for index in subscripts(node) for _ in references(index)):
        return None
    names = {name for index in subscripts(node) for name in names_in(index)} - {"min", "max"}
    inner = names - outside
    heads: dict[str, tuple[str, ast.expr, int, str]] = {}
    for statement in block:
        for loop_node in ast.walk(statement):
            if isinstance(loop_node, ast.For) and loop_of(loop_node).var in inner:
                loop = loop_of(loop_node)
                extent = vector_lanes(loop_node) if loop.kind == "vector" else loop.extent
                if loop.kind not in ("unrolled", "vector") or extent is None or ast.unparse(loop.start) != "0":
                    return None
                if names_in(loop.stop) & _bound_inside(block):
                    return None
                if loop.var in heads and ast.unparse(heads[loop.var][1]) != ast.unparse(loop.stop):
                    return None
                heads[loop.var] = (loop.var, loop.stop, extent, loop.kind)
    if set(heads) != inner:
        return None
    ordered = sorted(heads.values(), key=lambda head: head[3] == "vector")
    return tuple(ordered) if sum(head[3] == "vector" for head in ordered) <= 1 else None


def _bound_inside(block: list[ast.stmt]) -> set[str]:
    loops_inside = {loop_of(n).var for s in block for n in ast.walk(s) if isinstance(n, ast.For)}
    locals_inside = {ast.unparse(n.target) for s in block for n in ast.walk(s) if isinstance(n, ast.AnnAssign)}
    return loops_inside | locals_inside


def _gains(block: list[ast.stmt], text: str, heads: tuple[tuple[str, ast.expr, int, str], ...], asked: bool) -> bool:
    """Whether the reference occurs twice, or in a loop that repeats it; and at least once unconditionally."""
    moving = {head[0] for head in heads}
    count, repeated, certain, written = 0, False, False, False

    def visit(body: list[ast.stmt], inside: bool, conditional: bool) -> None:
        nonlocal count, repeated, certain, written
        for node in body:
            if isinstance(node, ast.For):
                visit(node.body, inside or loop_of(node).var not in moving, conditional)
            elif isinstance(node, ast.If):
                count_in(node.test, inside, conditional)
                visit(node.body, inside, True)
                visit(node.orelse, inside, True)
            else:
                count_in(node, inside, conditional)
                target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
                written = written or (target is not None and ast.unparse(target) == text)

    def count_in(tree: ast.AST, inside: bool, conditional: bool) -> None:
        nonlocal count, repeated, certain
        uses = sum(ast.unparse(ref) == text for ref in references(tree))
        if uses:
            count += uses
            repeated = repeated or inside
            certain = certain or not (conditional or _under_select(tree, text))

    visit(block, False, False)
    size = 1
    for head in heads:
        size *= head[2] if head[3] != "vector" else 1
    if heads and not repeated:
        return False  # one use an element: a local inside the vector loop does
    if not asked and heads and (size > MAX_REGISTERS or not (written or size == 1)):
        return False
    if _already_moved(block, text):
        return False
    return certain and (repeated or count > 1)


def _under_select(tree: ast.AST, text: str) -> bool:
    """Whether every use in the statement stands in a branch of a select (it may be out of bounds otherwise)."""
    inside = sum(
        ast.unparse(ref) == text
        for node in ast.walk(tree)
        if isinstance(node, ast.IfExp)
        for branch in (node.body, node.orelse)
        for ref in references(branch)
    )
    return inside >= sum(ast.unparse(ref) == text for ref in references(tree))


def _already_moved(block: list[ast.stmt], text: str) -> bool:
    """Whether the block only loads the reference into a local and stores it back, which is what a replacement leaves."""
    uses = [node for s in block for node in ast.walk(s) if isinstance(node, ast.stmt) and not isinstance(node, (ast.For, ast.If))
            and any(ast.unparse(ref) == text for ref in references(node))]  # fmt: skip

    def is_move(node: ast.stmt) -> bool:
        if isinstance(node, ast.AnnAssign):
            return node.value is not None and ast.unparse(node.value) == text
        if isinstance(node, ast.Assign):
            sides = {ast.unparse(node.targets[0]), ast.unparse(node.value)}
            return text in sides and all(_is_local(side) or side == text for side in sides)
        return False

    def _is_local(side: str) -> bool:
        return side.split("[")[0].endswith("_t") or "_t_" in side.split("[")[0]

    return all(is_move(node) for node in uses)


def _alone(nest: Nest, parent: Path, block: list[ast.stmt], name: str, text: str) -> bool:
    """Whether no other reference in the block may touch the same element while one of them is written."""
    stores = {ast.unparse(target) for s in block for n in ast.walk(s) for target in _targets(n)}
    others = {ast.unparse(ref) for s in block for ref in references(s) if ast.unparse(ref.value) == name} - {text}
    if not others or not any(store.split("[")[0] == name for store in stores):
        return True
    inside = [s for s in statements(nest.body) if s.path[: len(parent)] == parent]
    depth = len([1 for d in range(len(parent)) if isinstance(at(nest.body, parent[: d + 1]), ast.For)])
    for first in inside:
        for second in inside:
            one, two = _only(first, text), _only_other(second, name, text)
            if one is None or two is None:
                continue
            same = [f"{loop.var}_a = {loop.var}_b" for loop in first.loops[:depth]]
            try:
                if find(one, two, same, reductions=True) is not None:
                    return False
            except NotProved:
                return False
    return True


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return list(node.targets)
    return [node.target] if isinstance(node, ast.AugAssign) else []


def _only(statement: Statement, text: str) -> Statement | None:
    kept = tuple(a for a in statement.accesses if a.text == text)
    return replace(statement, accesses=kept) if kept else None


def _only_other(statement: Statement, name: str, text: str) -> Statement | None:
    kept = tuple(a for a in statement.accesses if a.name == name and a.text != text)
    return replace(statement, accesses=kept) if kept else None


def _replace(program: Program, nest: Nest, candidate: _Candidate) -> Nest:
    """The nest with one reference replaced over its block."""
    block = nest.body if not candidate.parent else at(nest.body, candidate.parent).body  # type: ignore[attr-defined]
    local = fresh(f"{candidate.name}_t", taken_names(program, [nest]))
    dtype = program.buffers[candidate.name].dtype
    shape = tuple(extent for _, _, extent, _ in candidate.heads)
    own: list[ast.expr] = [ast.Name(head[0], ast.Load()) for head in candidate.heads]

    def place(store: bool) -> ast.expr:
        if own:
            return reference(local, copy.deepcopy(own), store)
        return ast.Name(local, ast.Store() if store else ast.Load())

    def element(store: bool) -> ast.expr:
        node = ast.parse(candidate.text, mode="eval").body
        assert isinstance(node, ast.Subscript)
        return reference(candidate.name, subscripts(node), store)

    class Rewrite(ast.NodeTransformer):
        def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
            if ast.unparse(node) == candidate.text:
                return place(isinstance(node.ctx, ast.Store))
            self.generic_visit(node)
            return node

    def over(statement: ast.stmt) -> ast.stmt:
        for var, stop, _, kind in reversed(candidate.heads):
            statement = ast.For(ast.Name(var, ast.Store()), ast.Call(ast.Name(kind, ast.Load()), [copy.deepcopy(stop)], []),
                                [statement], [], None)  # fmt: skip
        return statement

    uses = [i for i, s in enumerate(block) if any(ast.unparse(ref) == candidate.text for ref in references(s))]
    writes = [i for i, s in enumerate(block) if any(ast.unparse(t) == candidate.text for n in ast.walk(s) for t in _targets(n))]
    new = [Rewrite().visit(copy.deepcopy(s)) if i in uses else s for i, s in enumerate(block)]
    first = uses[0]
    assigned = _assigns_first(block[first], candidate.text)
    head: list[ast.stmt] = []
    if own:
        head.append(declare(local, LocalType(dtype, shape)))
        if not assigned:
            head.append(over(ast.Assign([place(True)], element(False))))
    elif not assigned:
        head.append(declare(local, LocalType(dtype), element(False)))
    else:
        statement = new[first]
        assert isinstance(statement, ast.Assign)
        new[first] = declare(local, LocalType(dtype), statement.value)
    tail: list[ast.stmt] = [over(ast.Assign([element(True)], place(False)))] if writes else []
    last = writes[-1] if writes else 0
    result = [*new[:first], *head, *new[first : last + 1], *tail, *new[last + 1 :]] if writes else [*new[:first], *head, *new[first:]]
    if not candidate.parent:
        return nest.with_body(result)
    parent = copy.copy(at(nest.body, candidate.parent))
    parent.body = result  # type: ignore[attr-defined]
    return nest.with_body(replace_at(nest.body, candidate.parent, [parent]))


def _assigns_first(node: ast.stmt, text: str) -> bool:
    """Whether the statement certainly assigns every element of the reference before reading it."""
    while isinstance(node, ast.For) and (loop_of(node).kind in ("unrolled", "vector") or loop_of(node).extent):
        node = node.body[0]
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == text and not any(
        ast.unparse(ref) == text for ref in references(node.value)
    )


def localize_reductions(program: Program, site: Site) -> tuple[Program, Site]:
    """Targets in buffers of the reductions over the loop at ``site`` become locals; the site may move down."""
    program, mark = marked_loop(program, site)
    nest = program.nests[site.nest]
    for reduction in reductions_over(nest.body, site.path):
        if reduction.name not in program.buffers:
            continue
        around = [candidate for candidate in _candidates(program, nest, reduction.name) if candidate.text == reduction.text
                  and site.path[: len(candidate.parent)] == candidate.parent]  # fmt: skip
        if not around:
            raise refuse(f"{reduction.text} is accumulated over the loop, but something else may touch it", nest, site.path,
                         "asked for partial results", way_out="fuse or distribute first")  # fmt: skip
        nest = _replace(program, nest, around[0])
    program = program.with_nest(site.nest, nest)
    return program, find_marked(program, site.nest, mark)
