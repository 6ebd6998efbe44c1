"""Which references may live in a local, and over which block: the candidates of scalar_replace."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod

from swirl.ir.accesses import parsed
from swirl.ir.affine import literal_lanes, ranges_at
from swirl.ir.deps import NotProved, apart, find, pinned
from swirl.ir.hints import stored_value
from swirl.ir.nest import Loop, Nest, Program, constant, kind_of, loop_of, names_in, references, subscripts, variable_of
from swirl.ir.paths import Path, at, walk
from swirl.ir.printing import unparse
from swirl.ir.statements import Statement, statements_of
from swirl.ir.trees import children, declared_in, name_of, statements_in, targets_in
from swirl.transforms.rewrites.references import in_bounds

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


@dataclass(frozen=True)
class _Use:
    """A statement (or a condition) in which the reference occurs, and what is between it and the block."""

    node: ast.AST
    count: int
    loops: tuple[Loop, ...]
    conditional: bool
    move: bool
    stored: bool
    guards: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        """Whether it is executed whatever the data and the bounds are."""
        return not self.conditional and all(loop.extent or loop.kind == "vector" for loop in self.loops)


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
        around = [at(nest.body, parent[: depth + 1]) for depth in range(len(parent))]
        outside = {variable_of(node) for node in around if isinstance(node, ast.For)}
        uses = _uses(block, buffer, program)
        inside = _Inside(block)
        for text, found in uses.items():
            node = parsed(text)
            assert isinstance(node, ast.Subscript)
            heads = _heads(inside, node, outside, found)
            if heads is None or not _gains(found, heads, text, buffer is not None):
                continue
            name = name_of(node)
            certain = any(use.runs for use in found)
            guard = None
            if not certain and not _exists(program, nest, parent, node, heads):
                guard = _common_guard(found, outside | {head.var for head in heads})
                if guard is None:
                    problem = f"{text} is touched under conditions alone, and may be outside of {name} otherwise"
                    yield Obstacle(parent, text, problem)
                    continue
            known = known or statements_of(nest)
            shared = _shared(nest, known, parent, name, text, heads)
            yield Candidate(parent, text, name, heads, certain, guard) if shared is None else shared


def _common_guard(uses: list[_Use], fixed: set[str]) -> str | None:
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
class _Occurrence:
    """A reference in one statement or condition.

    Args:
        name: what it is an element of.
        count: how often it occurs.
        sure: whether it is evaluated for certain when the statement is.
        move: whether the statement only loads it into a local, or stores a local to it.
        stored: whether it is assigned.
    """

    text: str
    name: str
    count: int
    sure: bool
    move: bool
    stored: bool


@lru_cache(maxsize=4096)  # trees are values: each is in many blocks, and in the nest after the next replacement
def _occurrences(tree: ast.stmt | ast.expr) -> tuple[_Occurrence, ...]:
    """Every reference in a statement without others inside, or in a condition, in order of appearance."""
    counts: dict[str, int] = {}
    names: dict[str, str] = {}
    for ref in references(tree):
        text = unparse(ref)
        counts[text] = counts.get(text, 0) + 1
        names[text] = name_of(ref)
    written = {unparse(target) for target in targets_in([tree])} if isinstance(tree, ast.stmt) else set()
    return tuple(
        _Occurrence(text, names[text], number, _evaluated(tree, text), _is_move(tree, text), text in written)
        for text, number in counts.items()
    )


def _uses(block: list[ast.stmt], buffer: str | None, program: Program) -> dict[str, list[_Use]]:
    """Every reference to a buffer in the block, as text, with its uses; by buffer, in order of first
    appearance."""
    found: dict[str, dict[str, list[_Use]]] = {}

    def count(tree: ast.stmt | ast.expr, heads: tuple[Loop, ...], conditional: bool, guards: tuple[str, ...]) -> None:
        for each in _occurrences(tree):
            if each.name not in program.buffers or (buffer is not None and each.name != buffer):
                continue
            use = _Use(
                tree,
                each.count,
                heads,
                conditional or not each.sure,
                each.move,
                each.stored,
                guards if each.sure else (),
            )
            found.setdefault(each.name, {}).setdefault(each.text, []).append(use)

    def visit(body: list[ast.stmt], heads: tuple[Loop, ...], conditional: bool, guards: tuple[str, ...]) -> None:
        for node in body:
            if isinstance(node, ast.For):
                visit(node.body, (*heads, loop_of(node)), conditional, guards)
            elif isinstance(node, ast.If):
                test = unparse(node.test)
                count(node.test, heads, conditional, guards)
                visit(node.body, heads, True, (*guards, test))
                visit(node.orelse, heads, True, (*guards, f"not ({test})"))
            else:
                count(node, heads, conditional, guards)

    visit(block, (), False, ())
    return {text: uses for by_text in found.values() for text, uses in by_text.items()}


def _evaluated(tree: ast.AST, text: str) -> bool:
    """Whether the reference is evaluated for certain when ``tree`` is: not only in a branch of a select."""
    if isinstance(tree, ast.Subscript) and unparse(tree) == text:
        return True
    if isinstance(tree, ast.IfExp):
        return _evaluated(tree.test, text)
    if isinstance(tree, ast.BoolOp):
        return _evaluated(tree.values[0], text)
    return any(_evaluated(child, text) for child in children(tree))


def _is_move(node: ast.AST, text: str) -> bool:
    """Whether the statement only loads the element into a local, or stores a local to it."""
    if isinstance(node, ast.AnnAssign):
        return node.value is not None and unparse(node.value) == text
    if isinstance(node, ast.Assign):
        target, value = node.targets[0], stored_value(node.value)
        other = value if unparse(target) == text else target
        simple = isinstance(other, ast.Name) or (
            isinstance(other, ast.Subscript) and all(isinstance(i, ast.Name) for i in subscripts(other))
        )
        return simple and text in (unparse(target), unparse(value))
    return False


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


def _heads(inside: _Inside, node: ast.Subscript, outside: set[str], uses: Sequence[_Use]) -> tuple[Head, ...] | None:
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


def _gains(uses: list[_Use], heads: tuple[Head, ...], text: str, asked: bool) -> bool:
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


def _shared(
    nest: Nest, known: Sequence[Statement], parent: Path, name: str, text: str, heads: tuple[Head, ...]
) -> Obstacle | None:
    """Another reference in the block that may touch the same element while one of them is written; None where there is
    none.

    Two registers of one array must not stand for one element, either. The element is loaded and stored whenever the
    block runs, whatever the conditions in it are. ``known`` are the statements of the nest.
    """
    around = [at(nest.body, parent[: depth + 1]) for depth in range(len(parent))]
    depth = sum(isinstance(node, ast.For) for node in around)
    inside = [s for s in known if s.path[: len(parent)] == parent]
    own = [(s, access) for s in inside for access in s.accesses if access.text == text]
    statement, access = next(((s, a) for s, a in own if a.kind != "read"), own[0])
    element = replace(
        statement,
        loops=(*statement.loops[:depth], *(Loop(h.var, h.kind, ast.Constant(0), h.stop) for h in heads)),
        guards=statement.guards[: len(around) - depth],
        accesses=(access,),
    )
    # Lanes run side by side: what one of them keeps in a register, another one must not touch either.
    around_it = [loop.var for loop in element.loops[:depth] if loop.kind != "vector"]
    outer, same = set(around_it), [f"{var}_a = {var}_b" for var in around_it]
    fixed = pinned(element, element, access, access, outer)
    questions = [(element, f"{head.var}_a != {head.var}_b") for head in heads if head.var not in fixed]
    for other in inside:
        near = [a for a in other.accesses if a.name == name and a.text != text]
        kept = tuple(a for a in near if not apart(element, other, access, a, outer))
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
