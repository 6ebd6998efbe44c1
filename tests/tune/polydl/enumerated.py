"""Algorithm 1 of PolyDL by running a program, iteration by iteration: what the analysis is compared with."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from swirl.ir.nest import Program, kind_of, variable_of

Element = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Use:
    """An element that an instance touches."""

    text: str
    element: Element
    reads: bool
    writes: bool


@dataclass(frozen=True)
class Ran:
    """An instance: its statement, the loops around with their values, and what it touches."""

    statement: int
    loops: tuple[tuple[int, str, str], ...]  # identity, variable, kind
    values: tuple[int, ...]
    uses: tuple[Use, ...]


def trace(program: Program) -> list[Ran]:
    """All instances in their order."""
    found: list[Ran] = []
    for nest in program.nests:
        _run(nest.body, (), (), program, found)
    return found


def _run(
    body: list[ast.stmt],
    loops: tuple[tuple[int, str, str], ...],
    values: tuple[int, ...],
    program: Program,
    found: list[Ran],
) -> None:
    known: dict[str, object] = {variable: value for (_, variable, _), value in zip(loops, values, strict=True)}
    known |= {"min": min, "max": max}
    for node in body:
        if isinstance(node, ast.For):
            assert isinstance(node.iter, ast.Call)
            bounds = [eval(ast.unparse(argument), {}, known) for argument in node.iter.args]
            inside = (*loops, (id(node), variable_of(node), kind_of(node)))
            for value in range(*bounds):
                _run(node.body, inside, (*values, value), program, found)
            continue
        uses = tuple(_uses(node.test if isinstance(node, ast.If) else node, known, program))
        found.append(Ran(id(node), loops, values, uses))
        if isinstance(node, ast.If):
            holds = eval(ast.unparse(node.test), {}, known)
            _run(node.body if holds else node.orelse, loops, values, program, found)


def _uses(node: ast.AST, known: Mapping[str, object], program: Program) -> Iterator[Use]:
    stored = node.target if isinstance(node, ast.AugAssign) else None
    if isinstance(node, ast.IfExp):
        yield from _uses(node.test, known, program)
        yield from _uses(node.body if eval(ast.unparse(node.test), {}, dict(known)) else node.orelse, known, program)
        return
    for child in ast.iter_child_nodes(node):
        if child is not stored:
            yield from _uses(child, known, program)
    reference = stored if stored is not None else node
    name = reference.value.id if isinstance(reference, ast.Subscript) and isinstance(reference.value, ast.Name) else ""
    if isinstance(reference, ast.Subscript) and name in program.buffers:
        index = reference.slice
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        at = tuple(eval(ast.unparse(part), {}, dict(known)) for part in parts)
        updated = stored is not None
        writes = updated or isinstance(reference.ctx, ast.Store)
        yield Use(ast.unparse(reference), (name, at), updated or not writes, writes)


@dataclass(frozen=True)
class Found:
    """A reuse; see :class:`swirl.tune.polydl.working_sets.Reuse`."""

    source: str
    target: str
    loop: str
    kinds: frozenset[str]
    parallel: bool
    least: int
    most: int
    several: bool


def reuses(program: Program) -> list[Found]:
    """All of them."""
    ran = trace(program)
    pairs: dict[tuple[int, str, int, str, int], list[tuple[int, int]]] = {}
    kinds: dict[tuple[int, str, int, str, int], set[str]] = {}
    by_element: dict[Element, list[tuple[int, Use]]] = {}
    for number, one in enumerate(ran):
        for use in one.uses:
            by_element.setdefault(use.element, []).append((number, use))
    for several in by_element.values():
        for first, a in several:
            for second, b in several:
                if first < second:
                    level = _level(ran[first], ran[second])
                    key = ran[first].statement, a.text, ran[second].statement, b.text, level
                    pairs.setdefault(key, []).append((first, second))
                    for after, is_after in (("R", b.reads), ("W", b.writes)):
                        for before, is_before in (("R", a.reads), ("W", a.writes)):
                            if is_after and is_before:
                                kinds.setdefault(key, set()).add(f"{after}A{before}")
    result: list[Found] = []
    for key, several in pairs.items():
        source = min(first for first, _ in several)
        targets = [second for first, second in several if first == source]
        common = _common(ran[several[0][0]], ran[several[0][1]])
        loop = ran[source].loops[key[-1]][1] if key[-1] < common else ""
        wide = next((n for n in range(common) if _spans(ran, several, n)), None)
        if wide is None:
            sizes = [_size(ran, range(source, end + 1)) for end in (min(targets), max(targets))]
        else:
            inside = [n for n, one in enumerate(ran) if _inside(one, ran[source], wide)]
            sizes = [_size(ran, inside)] * 2
        later = min(targets) < max(targets) and wide is None
        result.append(Found(key[1], key[3], loop, frozenset(kinds[key]), wide is not None, sizes[0], sizes[1], later))
    return result


def _common(one: Ran, two: Ran) -> int:
    count = 0
    while count < min(len(one.loops), len(two.loops)) and one.loops[count] == two.loops[count]:
        count += 1
    return count


def _level(one: Ran, two: Ran) -> int:
    common = _common(one, two)
    return next((n for n in range(common) if one.values[n] != two.values[n]), common)


def _spans(ran: list[Ran], pairs: list[tuple[int, int]], level: int) -> bool:
    if ran[pairs[0][0]].loops[level][2] != "parallel":
        return False
    return any(ran[first].values[level] != ran[second].values[level] for first, second in pairs)


def _inside(one: Ran, source: Ran, level: int) -> bool:
    return one.loops[: level + 1] == source.loops[: level + 1] and one.values[:level] == source.values[:level]


def _size(ran: list[Ran], numbers: range | list[int]) -> int:
    return len({use.element for number in numbers for use in ran[number].uses})
