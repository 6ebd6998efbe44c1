"""Which references may live in a local, and over which block: the candidates of scalar_replace."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from swirl.analysis.accesses import parsed
from swirl.analysis.dependences import NotProved, disjoint, find, pinned
from swirl.analysis.domains import Domain
from swirl.analysis.statements import Statement, statements_of
from swirl.ir.affine import literal_lanes, ranges_at
from swirl.ir.nest import Loop, Nest, Program, constant, kind_of, names_in, references, subscripts, variable_of
from swirl.ir.paths import Path, at, walk
from swirl.ir.printing import unparse
from swirl.ir.trees import declared_in, name_of, statements_in
from swirl.transforms.rewrites.references import in_bounds
from swirl.transforms.rewrites.uses import Use, uses_in

MAX_REGISTERS = 32
"""The most elements (vectors count once) that the automatic pass puts into one local array."""


@dataclass(frozen=True)
class Head:
    """An unrolled or vector loop inside the block that the reference moves with: a dimension of the local
    array."""

    var: str
    stop: ast.expr
    extent: int
    kind: str


@dataclass(frozen=True)
class Candidate:
    """One reference, and the block of statements over which it is one element (or one array of registers)."""

    parent: Path  # the path of the statement that owns the block; () for the nest's own body
    text: str
    name: str
    heads: tuple[Head, ...]
    certain: bool  # the block touches the element whatever the data and the bounds are
    guard: str | None = None  # the condition around every use, if the element may not exist otherwise
    only: int | None = None  # the one statement of the block over which it is


def _blocks(body: list[ast.stmt]) -> Iterator[tuple[Path, list[ast.stmt]]]:
    yield (), body
    for path, node in walk(body):
        if isinstance(node, ast.For):
            yield path, node.body


@dataclass(frozen=True)
class Obstacle:
    """Why a reference that would gain cannot live in a local over a block.

    Args:
        parent: the statement that owns the block.
        text: the reference.
        problem: in words.
        witness: where two references touch one element, if that is why.
    """

    parent: Path
    text: str
    problem: str
    witness: str | None = None


def candidates(program: Program, nest: Nest, buffer: str | None, start: Path = ()) -> Iterator[Candidate]:
    """The references that gain from a local, with the block that each lives over, outermost block first.

    Args:
        start: the block to begin with, named by the statement that owns it.
    """
    return (found for found in _judged(program, nest, buffer, start) if isinstance(found, Candidate))


def obstacle(program: Program, nest: Nest, buffer: str) -> Obstacle | None:
    """Why no reference to a buffer can live in a local: the first one that would gain, and what prevents it; None if
    none would."""
    found = [each for each in _judged(program, nest, buffer, ()) if isinstance(each, Obstacle)]
    return next((each for each in found if each.witness is not None), found[0] if found else None)


def _judged(program: Program, nest: Nest, buffer: str | None, start: Path) -> Iterator[Candidate | Obstacle]:
    """The references that would gain, each as a candidate or with what prevents it."""
    known: Sequence[Statement] = ()
    for parent, block in _blocks(nest.body):
        if parent < start or _has_parallel(block):
            continue
        outside = _loops_around(nest, parent)
        uses = uses_in(block, buffer, program)
        inside = _Inside(block)
        for text, found in uses.items():
            node = parsed(text)
            assert isinstance(node, ast.Subscript)
            heads = _heads(inside, node, outside, found)
            if heads is None or not _gains(found, heads, text, buffer is not None):
                continue
            known = known or statements_of(nest)
            yield _judged_as(Candidate(parent, text, name_of(node), heads, True), program, nest, known, found, outside)


def over_statement(program: Program, nest: Nest, path: Path, text: str) -> Candidate | Obstacle:
    """A reference, over one statement alone: others of its block may touch its element."""
    statement, parent = at(nest.body, path), path[:-1]
    if parent and not isinstance(at(nest.body, parent), ast.For):
        return Obstacle(parent, text, "the statement is in a condition")
    node, outside = parsed(text), _loops_around(nest, parent)
    assert isinstance(node, ast.Subscript)
    found = uses_in([statement], name_of(node), program)[text]
    heads = _heads(_Inside([statement]), node, outside, found)
    if heads is None:
        return Obstacle(parent, text, f"{text} is another element for each iteration")
    candidate = Candidate(parent, text, name_of(node), heads, True, only=path[-1][1])
    return _judged_as(candidate, program, nest, statements_of(nest), found, outside)


def _loops_around(nest: Nest, parent: Path) -> set[str]:
    """The variables of the loops around the statements that the one at ``parent`` owns."""
    around = [at(nest.body, parent[: depth + 1]) for depth in range(len(parent))]
    return {variable_of(node) for node in around if isinstance(node, ast.For)}


def _judged_as(
    candidate: Candidate,
    program: Program,
    nest: Nest,
    known: Sequence[Statement],
    found: list[Use],
    outside: set[str],
) -> Candidate | Obstacle:
    """The candidate with what is to be known of it, or what prevents it.

    Args:
        candidate: a reference that moves with none but its heads.
        known: the statements of the nest.
        found: its uses.
        outside: the variables of the loops around its block.
    """
    parent, text, heads = candidate.parent, candidate.text, candidate.heads
    certain, guard = any(use.runs for use in found), None
    node = parsed(text)
    assert isinstance(node, ast.Subscript)
    if not certain and not _exists(program, nest, parent, node, heads):
        guard = _common_guard(found, outside | {head.var for head in heads})
        if guard is None:
            problem = f"{text} is touched under conditions alone, and may be outside of {candidate.name} otherwise"
            return Obstacle(parent, text, problem)
    shared = _shared(nest, known, candidate)
    return replace(candidate, certain=certain, guard=guard) if shared is None else shared


def _common_guard(uses: list[Use], fixed: set[str]) -> str | None:
    """The condition around every use, if it is the same one and depends on nothing that the block changes."""
    guards = {use.guards for use in uses}
    if len(guards) != 1 or any(use.conditional and not use.guards for use in uses):
        return None
    if not all(loop.extent or loop.kind == "vector" for use in uses for loop in use.loops):
        return None
    tests = [parsed(test) for test in guards.pop()]
    if not tests or any(names_in(test) - {"min", "max"} - fixed for test in tests):
        return None
    return " and ".join(f"({unparse(test)})" for test in tests)


def _has_parallel(block: list[ast.stmt]) -> bool:
    return any(isinstance(n, ast.For) and kind_of(n) == "parallel" for s in block for n in statements_in(s))


@dataclass(frozen=True)
class _Inside:
    """The names that a block binds: found once, used for every reference."""

    block: list[ast.stmt]

    @cached_property
    def loops(self) -> list[str]:
        """The variables of the loops, by appearance."""
        every = (node for statement in self.block for node in statements_in(statement))
        return list(dict.fromkeys(variable_of(node) for node in every if isinstance(node, ast.For)))

    @cached_property
    def names(self) -> set[str]:
        """Loop variables and locals of the block."""
        return set(self.loops).union(*map(declared_in, self.block))


def _head(loops: Sequence[Loop]) -> Head | None:
    """Loops of one name, each around a use of a reference, as a dimension of a register array; None if they are not
    unrolled or vectors, all alike."""
    stops = {unparse(loop.stop) for loop in loops}
    if len(stops) != 1 or any(constant(loop.start) != 0 for loop in loops):
        return None
    (kind, extent), *others = {
        (each.kind, literal_lanes(each.stop) if each.kind == "vector" else each.extent) for each in loops
    }
    if others or extent is None or kind not in ("unrolled", "vector"):
        return None
    return Head(loops[0].var, loops[0].stop, extent, kind)


def _heads(inside: _Inside, node: ast.Subscript, outside: set[str], uses: Sequence[Use]) -> tuple[Head, ...] | None:
    """The unrolled and vector loops inside that the reference moves with; None where it moves with anything
    else."""
    if any(True for index in subscripts(node) for _ in references(index)):
        return None
    inner = {name for index in subscripts(node) for name in names_in(index)} - {"min", "max"} - outside
    heads: list[Head] = []
    for var in inner:
        head = _head([loop for use in uses for loop in use.loops if loop.var == var])
        if head is None:
            return None
        heads.append(head)
    # The last vector of unrolled ones may be ragged: its bound moves with their loop, which must be a dimension, too.
    copies = {head.var for head in heads if head.kind == "unrolled"}
    if any(names_in(head.stop) & inside.names - copies for head in heads):
        return None
    # In the order of the loops: unrolled ones by appearance, the lane last.
    heads.sort(key=lambda head: (head.kind == "vector", inside.loops.index(head.var)))
    return tuple(heads) if sum(head.kind == "vector" for head in heads) <= 1 else None


def _exists(program: Program, nest: Nest, parent: Path, node: ast.Subscript, heads: tuple[Head, ...]) -> bool:
    """Whether a reference is inside of its buffer whatever the conditions in the block of ``parent`` are."""
    ranges = ranges_at(nest.body, (*parent, ("body", 0))) | {head.var: (0, head.extent - 1) for head in heads}
    return in_bounds(program.buffers[name_of(node)].shape, node, ranges)


def _gains(uses: list[Use], heads: tuple[Head, ...], text: str, asked: bool) -> bool:
    """Whether the reference occurs twice, or in a loop that repeats it; and may be touched whatever the
    conditions are."""
    moving = {head.var for head in heads}
    repeated = any(loop.var not in moving for use in uses for loop in use.loops)
    if heads and not repeated:
        return False  # one use an element: a local inside the vector loop does
    stored = [use.stored for use in uses]
    registers = prod(head.extent for head in heads if head.kind != "vector")
    if not asked and heads and (registers > MAX_REGISTERS or not (any(stored) or registers == 1)):
        return False
    if not repeated and all(use.move for use in uses) and sum(stored) <= 1 and len(stored) - sum(stored) <= 1:
        return False  # a load and a store: what a replacement leaves
    return repeated or sum(use.count for use in uses) > 1


def _shared(nest: Nest, known: Sequence[Statement], candidate: Candidate) -> Obstacle | None:
    """Another reference in the block that may touch the same element while one of them is written; None where there is
    none.

    Two registers of one array must not stand for one element, either. The element is loaded and stored whenever the
    block runs, whatever the conditions in it are. ``known`` are the statements of the nest.
    """
    parent, name, text, heads = candidate.parent, candidate.name, candidate.text, candidate.heads
    around = [at(nest.body, parent[: depth + 1]) for depth in range(len(parent))]
    depth = sum(isinstance(node, ast.For) for node in around)
    whole = parent if candidate.only is None else (*parent, ("body", candidate.only))
    inside = [s for s in known if s.path[: len(whole)] == whole]
    own = [(s, access) for s in inside for access in s.accesses if access.text == text]
    statement, access = next(((s, a) for s, a in own if a.kind != "read"), own[0])
    own_loops = (Loop(h.var, h.kind, ast.Constant(0), h.stop) for h in heads)
    element = replace(
        statement,
        domain=Domain((*statement.loops[:depth], *own_loops), statement.domain.guards[: len(around) - depth]),
        accesses=(access,),
    )
    # Lanes run side by side: what one of them keeps in a register, another one must not touch either.
    around_it = [loop.var for loop in element.loops[:depth] if loop.kind != "vector"]
    outer, same = set(around_it), [f"{var}_a = {var}_b" for var in around_it]
    fixed = pinned(element, element, access, access, outer)
    questions = [(element, f"{head.var}_a != {head.var}_b") for head in heads if head.var not in fixed]
    for other in inside:
        same_array = [a for a in other.accesses if a.name == name and a.text != text]
        kept = tuple(a for a in same_array if not disjoint(element, other, access, a, outer))
        if kept:
            questions.append((replace(other, accesses=kept), "1 = 1"))
    try:
        for other, differing in questions:
            conflict = find(element, other, [*same, differing], reductions=True)
            if conflict is None:
                continue
            if other is element:
                moving = ", ".join(head.var for head in heads)
                problem = f"{text} is one element for several {moving}, which a local for each would take apart"
            else:
                problem = f"{conflict.second_access.text} may touch the element {text}"
            where = ", ".join(f"{var}={value}" for var, value in conflict.second_at.items())
            both = f"{text} and {conflict.second_access.text}"
            if conflict.first_at.items() - conflict.second_at.items():
                where = ", ".join(f"{var}={value}" for var, value in conflict.first_at.items()) + f" and {where}"
            witness = f"{both} are one element for {where}" if where else f"{both} may be one element"
            return Obstacle(parent, text, problem, witness)
    except NotProved:
        return Obstacle(parent, text, f"not proved within the time allowed that nothing else touches {text}")
    return None
