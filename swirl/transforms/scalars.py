"""scalar_replace: an element that stays the same over loops is kept in a local."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from swirl.errors import CommandError, Refused
from swirl.ir.affine import bounds, ranges_at
from swirl.ir.buffers import Buffer
from swirl.ir.deps import NotProved, find, parsed, statements
from swirl.ir.nest import (
    LocalType,
    Loop,
    Nest,
    Path,
    Program,
    at,
    clone,
    clones,
    constant,
    declare,
    expr,
    for_loop,
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
from swirl.transforms.base import Site, check_marks, checked, command, take_mark, with_mark, refuse, taken_names
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
    given_up: set[tuple[Path, str]] = set()
    while True:
        found = (c for c in _candidates(program, nest, buffer) if (c.parent, c.text) not in given_up)
        candidate = next(found, None)
        if candidate is None:
            return nest
        try:
            after = _replace(program, nest, candidate)
            if not candidate.certain:  # the element is now touched where it may not have been
                check_marks(after)
            nest = after
        except Refused:
            given_up.add((candidate.parent, candidate.text))


@dataclass(frozen=True)
class _Head:
    """An unrolled or vector loop inside the block that the reference moves with: a dimension of the local array."""

    var: str
    stop: ast.expr
    extent: int
    kind: str


@dataclass(frozen=True)
class _Candidate:
    """One reference, and the block of statements over which it is one element (or one array of registers)."""

    parent: Path  # of the statement that owns the block; () for the nest's own body
    text: str
    name: str
    heads: tuple[_Head, ...]
    certain: bool  # the block touches the element whatever the data and the bounds are


@dataclass(frozen=True)
class _Use:
    """A statement (or a condition) in which the reference occurs, and what is between it and the block."""

    node: ast.AST
    count: int
    loops: tuple[Loop, ...]
    conditional: bool
    move: bool

    @property
    def runs(self) -> bool:
        """Whether it is executed whatever the data and the bounds are."""
        return not self.conditional and all(loop.extent or loop.kind == "vector" for loop in self.loops)


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
        ranges = ranges_at(nest.body, (*parent, ("body", 0)))
        uses = _uses(block, buffer, program)
        inside = _Inside(block)
        for text, found in uses.items():
            node = parsed(text)
            assert isinstance(node, ast.Subscript)
            heads = _heads(inside, node, outside)
            if heads is None or not _gains(found, heads, text, buffer is not None):
                continue
            name = _name_of(node)
            certain = any(use.runs for use in found)
            if not certain and not _in_bounds(program.buffers[name], node, {**ranges, **_head_ranges(heads)}):
                continue
            if _alone(nest, parent, name, text, heads):
                yield _Candidate(parent, text, name, heads, certain)


def _has_parallel(block: list[ast.stmt]) -> bool:
    return any(isinstance(n, ast.For) and loop_of(n).kind == "parallel" for s in block for n in ast.walk(s))


def _name_of(target: ast.expr) -> str:
    node = target.value if isinstance(target, ast.Subscript) else target
    assert isinstance(node, ast.Name)
    return node.id


def _uses(block: list[ast.stmt], buffer: str | None, program: Program) -> dict[str, list[_Use]]:
    """Every reference to a buffer in the block, as text, with its uses; by buffer, in order of first appearance."""
    found: dict[str, dict[str, list[_Use]]] = {}

    def count(tree: ast.stmt | ast.expr, heads: tuple[Loop, ...], conditional: bool) -> None:
        texts: dict[str, int] = {}
        for ref in references(tree):
            name = _name_of(ref)
            if name in program.buffers and (buffer is None or name == buffer):
                text = ast.unparse(ref)
                texts[text] = texts.get(text, 0) + 1
                found.setdefault(name, {}).setdefault(text, [])
        for text, number in texts.items():
            unsure = conditional or not _evaluated(tree, text)
            use = _Use(tree, number, heads, unsure, _is_move(tree, text))
            found[text.split("[")[0]][text].append(use)

    def visit(body: list[ast.stmt], heads: tuple[Loop, ...], conditional: bool) -> None:
        for node in body:
            if isinstance(node, ast.For):
                visit(node.body, (*heads, loop_of(node)), conditional)
            elif isinstance(node, ast.If):
                count(node.test, heads, conditional)
                visit(node.body, heads, True)
                visit(node.orelse, heads, True)
            else:
                count(node, heads, conditional)

    visit(block, (), False)
    return {text: uses for by_text in found.values() for text, uses in by_text.items()}


def _evaluated(tree: ast.AST, text: str) -> bool:
    """Whether the reference is evaluated for certain when ``tree`` is: not only in a branch of a select."""
    if isinstance(tree, ast.Subscript) and ast.unparse(tree) == text:
        return True
    if isinstance(tree, ast.IfExp):
        return _evaluated(tree.test, text)
    if isinstance(tree, ast.BoolOp):
        return _evaluated(tree.values[0], text)
    return any(_evaluated(child, text) for child in ast.iter_child_nodes(tree))


def _is_move(node: ast.AST, text: str) -> bool:
    """Whether the statement only loads the element into a local, or stores a local to it."""
    if isinstance(node, ast.AnnAssign):
        return node.value is not None and ast.unparse(node.value) == text
    if isinstance(node, ast.Assign):
        target, value = node.targets[0], node.value
        other = value if ast.unparse(target) == text else target
        simple = isinstance(other, ast.Name) or (
            isinstance(other, ast.Subscript) and all(isinstance(i, ast.Name) for i in subscripts(other))
        )
        return simple and text in (ast.unparse(target), ast.unparse(value))
    return False


def _stores(use: _Use, text: str) -> bool:
    return isinstance(use.node, ast.stmt) and any(ast.unparse(target) == text for target in _targets(use.node))


@dataclass(frozen=True)
class _Inside:
    """What a block binds: found once, asked for every reference."""

    block: list[ast.stmt]

    @cached_property
    def loops(self) -> dict[str, list[_Head | None]]:
        """Loop variable → its loops as dimensions of a register array; None for a loop that cannot be one."""
        result: dict[str, list[_Head | None]] = {}
        for statement in self.block:
            for node in ast.walk(statement):
                if isinstance(node, ast.For):
                    loop = loop_of(node)
                    extent = vector_lanes(node) if loop.kind == "vector" else loop.extent
                    plain = loop.kind in ("unrolled", "vector") and extent is not None and constant(loop.start) == 0
                    head = _Head(loop.var, loop.stop, extent, loop.kind) if plain and extent is not None else None
                    result.setdefault(loop.var, []).append(head)
        return result

    @cached_property
    def names(self) -> set[str]:
        """Loop variables and locals of the block."""
        declared = {ast.unparse(n.target) for s in self.block for n in ast.walk(s) if isinstance(n, ast.AnnAssign)}
        return set(self.loops) | declared


def _heads(inside: _Inside, node: ast.Subscript, outside: set[str]) -> tuple[_Head, ...] | None:
    """The unrolled and vector loops inside that the reference moves with; None where it moves with anything else."""
    if any(True for index in subscripts(node) for _ in references(index)):
        return None
    inner = {name for index in subscripts(node) for name in names_in(index)} - {"min", "max"} - outside
    heads: list[_Head] = []
    for var in inner:
        candidates = inside.loops.get(var, [None])
        head = candidates[0]
        if head is None or names_in(head.stop) & inside.names:
            return None
        if any(other is None or ast.unparse(other.stop) != ast.unparse(head.stop) for other in candidates[1:]):
            return None
        heads.append(head)
    # In the order in which the loops stand: unrolled ones by appearance, the lane last.
    order = list(inside.loops)
    heads.sort(key=lambda head: (head.kind == "vector", order.index(head.var)))
    return tuple(heads) if sum(head.kind == "vector" for head in heads) <= 1 else None


def _head_ranges(heads: tuple[_Head, ...]) -> dict[str, tuple[int, int]]:
    return {head.var: (0, head.extent - 1) for head in heads}


def _in_bounds(buffer: Buffer, node: ast.Subscript, ranges: dict[str, tuple[int, int]]) -> bool:
    """Whether the element exists wherever the block runs."""
    limits = [bounds(index, ranges) for index in subscripts(node)]
    return all(
        limit is not None and limit[0] >= 0 and limit[1] < extent
        for limit, extent in zip(limits, buffer.shape, strict=True)
    )


def _gains(uses: list[_Use], heads: tuple[_Head, ...], text: str, asked: bool) -> bool:
    """Whether the reference occurs twice, or in a loop that repeats it; and may be touched whatever the conditions are."""
    moving = {head.var for head in heads}
    repeated = any(loop.var not in moving for use in uses for loop in use.loops)
    if heads and not repeated:
        return False  # one use an element: a local inside the vector loop does
    stored = [_stores(use, text) for use in uses]
    registers = prod(head.extent for head in heads if head.kind != "vector")
    if not asked and heads and (registers > MAX_REGISTERS or not (any(stored) or registers == 1)):
        return False
    if not repeated and all(use.move for use in uses) and sum(stored) <= 1 and len(stored) - sum(stored) <= 1:
        return False  # a load and a store: what a replacement leaves
    return repeated or sum(use.count for use in uses) > 1


def _alone(nest: Nest, parent: Path, name: str, text: str, heads: tuple[_Head, ...]) -> bool:
    """Whether no other reference in the block may touch the same element while one of them is written.

    Nor may two registers of one array stand for one element. Whatever the conditions in the block are, the element is
    loaded and stored whenever the block runs.
    """
    around = [at(nest.body, parent[: depth + 1]) for depth in range(len(parent))]
    depth = sum(isinstance(node, ast.For) for node in around)
    inside = [s for s in statements(nest.body) if s.path[: len(parent)] == parent]
    own = [(s, access) for s in inside for access in s.accesses if access.text == text]
    statement, access = next(((s, a) for s, a in own if a.kind != "read"), own[0])
    element = replace(
        statement,
        loops=(*statement.loops[:depth], *(Loop(h.var, h.kind, ast.Constant(0), h.stop) for h in heads)),
        guards=statement.guards[: len(around) - depth],
        accesses=(access,),
    )
    same = [f"{loop.var}_a = {loop.var}_b" for loop in element.loops[:depth]]
    questions = [(element, f"{head.var}_a != {head.var}_b") for head in heads]
    for other in inside:
        kept = tuple(a for a in other.accesses if a.name == name and a.text != text)
        if kept:
            questions.append((replace(other, accesses=kept), "1 = 1"))
    try:
        return all(find(element, other, [*same, apart], reductions=True) is None for other, apart in questions)
    except NotProved:
        return False


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return list(node.targets)
    return [node.target] if isinstance(node, ast.AugAssign) else []


class _Replace(ast.NodeTransformer):
    """Puts the local in place of the reference."""

    def __init__(self, text: str, place: Callable[[bool], ast.expr]):
        self.text, self.place = text, place

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if ast.unparse(node) == self.text:
            return self.place(isinstance(node.ctx, ast.Store))
        return self.generic_visit(node)


def _replace(program: Program, nest: Nest, candidate: _Candidate) -> Nest:
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

    def over(statement: ast.stmt) -> ast.stmt:
        for head in reversed(candidate.heads):
            statement = for_loop(head.var, head.stop, [statement], kind=head.kind)
        return statement

    uses = [i for i, s in enumerate(block) if any(ast.unparse(ref) == candidate.text for ref in references(s))]
    writes = [i for i in uses if any(ast.unparse(t) == candidate.text for n in ast.walk(block[i]) for t in _targets(n))]
    rewrite = _Replace(candidate.text, place)
    new = [rewrite.visit(clone(s)) if i in uses else s for i, s in enumerate(block)]
    first = uses[0]
    assigned = _assigns_first(block[first], candidate.text)
    head: list[ast.stmt] = []
    if own:
        head.append(declare(local, LocalType(dtype, tuple(h.extent for h in candidate.heads))))
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
        result[behind:behind] = [over(ast.Assign([element(True)], place(False)))]
    if not candidate.parent:
        return nest.with_body(result)
    owner = copy.copy(at(nest.body, candidate.parent))  # a copy keeps the mark of the loop that a command is about
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
        and ast.unparse(node.targets[0]) == text
        and not any(ast.unparse(ref) == text for ref in references(node.value))
    )


def localize_reductions(program: Program, site: Site) -> tuple[Program, Site]:
    """Targets in buffers of the reductions over the loop at ``site`` become locals; the site may move down."""
    program = with_mark(program, site, "partials")
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
    return program, take_mark(program, "partials")
