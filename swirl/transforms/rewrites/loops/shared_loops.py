"""Neighbouring nests share an outermost loop that needs no order.

Followed by scalar replacement and hoisting, this turns the naive loops of Lake's Figs. 3.1 to 3.3 into the shape of
Figs. 3.4 to 3.6. It looks at loops and dependences only, not at names, loop order or the kind of layer.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from swirl.analysis.dependences import NotProved, carried
from swirl.analysis.statements import statements_of
from swirl.errors import Refused
from swirl.ir.nest import (
    Nest,
    Program,
    constant,
    expr,
    kind_of,
    loop_of,
    names_in,
    references,
    subscripts,
    substitute,
    variable_of,
)
from swirl.ir.paths import Path, at, enclosing, loops, replace_at
from swirl.ir.printing import unparse
from swirl.ir.trees import nodes
from swirl.transforms.rewrites.loops.fusion import fuse_at
from swirl.transforms.rewrites.loops.permutation import permute_at
from swirl.transforms.rewrites.sites import Site


def with_shared_loops(program: Program) -> Program:
    """Fuse neighbouring nests under a common outermost loop without dependences, and so on inwards.

    A nest without a partner gets a loop without dependences outermost, if it has one and its first loop is not one.
    """
    nests: list[Nest] = []
    pending = list(program.nests)
    while pending:
        nest = pending.pop(0)
        best = _best_run(program, nest, pending)
        if best is not None:
            nest, pending = best.nest, pending[best.length - 1 :]
        nests.append(_inwards(program, nest))
    return program.with_nests(nests)


@dataclass(frozen=True)
class _Run:
    """Nests joined under one loop: how many, and whether the loop is free of dependences."""

    nest: Nest
    length: int
    free: bool


def _best_run(program: Program, nest: Nest, following: list[Nest]) -> _Run | None:
    """The longest run under a loop without dependences; among equals, the one whose loop is outermost already."""
    best: _Run | None = None
    for rotated in filter(None, (_rotated(nest, chain) for chain in _chains(nest))):
        run = _run_from(program, rotated, following)
        if best is None or (run.free, run.length) > (best.free, best.length):
            best = run
        if best.free and best.length == len(following) + 1:
            break
    return best


def _chains(nest: Nest) -> list[tuple[str, ...]]:
    """For each loop of a nest that may come outermost its variable, after those that would then be inside of it; first
    the outermost one."""
    if len(nest.body) != 1 or not _plain(nest.body[0]):
        return []
    return _beginnings(list(dict.fromkeys(variable_of(node) for _, node in loops(nest.body))))


def _beginnings(names: list[str]) -> list[tuple[str, ...]]:
    """The first name, the first two, and so on."""
    return [tuple(names[: place + 1]) for place in range(len(names))]


def _plain(node: ast.stmt) -> bool:
    """Whether the statement is a loop of which every loop inside is a ``range`` too: not scheduled by hand
    yet."""
    return isinstance(node, ast.For) and all(kind_of(n) == "range" for n in nodes(node) if isinstance(n, ast.For))


@lru_cache(maxsize=1024)  # a nest is tried beside each that comes before it
def _rotated(nest: Nest, chain: tuple[str, ...]) -> Nest | None:
    """The nest with the loop ``chain[-1]`` outermost, the others inside it in their order; None where that is not
    legal."""
    if len(chain) == 1:
        return nest
    rotated = _rotated_at(nest, (("body", 0),), chain)
    return rotated if rotated is not None and len(rotated.body) == 1 else None


def _run_from(program: Program, nest: Nest, following: list[Nest]) -> _Run:
    root: Path = (("body", 0),)
    free = _free(nest, root)
    length = 1
    for candidate in following:
        head = at(nest.body, root)
        assert isinstance(head, ast.For)
        fitting = _same_name_first(_chains(candidate), head, candidate.body[0])
        rotations = filter(None, (_rotated(candidate, chain) for chain in fitting))
        joined = next(filter(None, (_joined(program, nest, rotated, free) for rotated in rotations)), None)
        if joined is None:
            break
        nest, length = joined, length + 1
    return _Run(nest, length, free)


def _same_name_first(chains: Sequence[tuple[str, ...]], head: ast.For, second: ast.stmt) -> list[tuple[str, ...]]:
    """Those loops of the statement ``second`` that could join the loop ``head``: over the same dimension, the one of
    the same name first. Only they are brought outermost, which may take long.

    Equal extents may be chance (a batch of 8 images of 8 channels): where both loops touch an array, they
    must run over one dimension of it.

    Args:
        chains: see :func:`_chains`.
    """
    fitting = [chain for chain in chains if _same_dimension(head, second, chain[-1])]
    return sorted(fitting, key=lambda chain: chain[-1] != variable_of(head))


def _named_by_author(program: Program, nest: Nest, path: Path, name: str) -> Nest:
    """``nest`` with the loop at ``path`` called ``name``, where its layer names that dimension so and the
    loop's own name was made up (for zeroing): recipes name loops as the layer does."""
    node = at(nest.body, path)
    assert isinstance(node, ast.For)
    given = {target for targets in program.aliases.values() for target in targets}
    var = variable_of(node)
    around = {variable_of(n) for n in enclosing(nest.body, path) if isinstance(n, ast.For)}
    if var == name or var in given or name not in given or name in names_in(node) | around:
        return nest
    return nest.with_body(replace_at(nest.body, path, [substitute(node, {var: ast.Name(name, ast.Load())})]))


def _same_dimension(first: ast.For, second: ast.stmt, var: str) -> bool:
    """Whether a loop and the loop over ``var`` in another statement run over one dimension of an array that both touch,
    or touch no common array with their variables."""
    one, two = _dimensions(first, variable_of(first)), _dimensions(second, var)
    shared = {(name, dim) for name, dim in one if (name, dim) in two}
    if shared:
        return True
    names = {unparse(ref.value) for ref in references(first)} & {unparse(ref.value) for ref in references(second)}
    return not any(name in names for name, _ in one | two)


def _dimensions(node: ast.stmt, var: str) -> set[tuple[str, int]]:
    """(array, dimension) of every subscript that a variable occurs in."""
    return {
        (unparse(ref.value), dim)
        for ref in references(node)
        for dim, index in enumerate(subscripts(ref))
        if var in names_in(index)
    }


def _joined(program: Program, first: Nest, second: Nest, free: bool) -> Nest | None:
    """The two nests under one loop, if that is legal and costs no freedom."""
    one, two = first.body[0], second.body[0]
    assert isinstance(one, ast.For) and isinstance(two, ast.For)
    heads = loop_of(one), loop_of(two)
    if any(unparse(a) != unparse(b) for a, b in ((heads[0].start, heads[1].start), (heads[0].stop, heads[1].stop))):
        return None
    if heads[0].step != heads[1].step or heads[0].kind != heads[1].kind:
        return None
    first = _named_by_author(program, first, (("body", 0),), heads[1].var)
    try:
        pair = program.with_nests([first, second])
        fused = fuse_at(pair, Site(0, (("body", 0),))).nests[0]
    except (Refused, NotProved):
        return None
    if (free or _free(second, (("body", 0),))) and not _free(fused, (("body", 0),)):
        return None
    return fused


def _free(nest: Nest, path: Path) -> bool:
    """Whether the loop carries no dependence, reductions included; a single iteration, if there were another one: so
    that loops are shared alike for every extent, and recipes find them."""
    node = at(nest.body, path)
    assert isinstance(node, ast.For)
    loop = loop_of(node)
    start = constant(loop.start)
    if loop.extent == 1 and start is not None:
        longer = replace(loop, stop=expr(start + 2), step=1)
        nest = nest.with_body(replace_at(nest.body, path, [longer.node(node.body)]))
    try:
        return carried(nest.body, path, reductions=True, known=statements_of(nest)) is None
    except NotProved:
        return False


# --- inside a fused loop --------------------------------------------------------------------------------
def _inwards(program: Program, nest: Nest) -> Nest:
    """Neighbouring loops inside are fused in the same way, level by level."""
    pending = _outermost(nest.body)
    while pending:
        path = pending.pop(0)
        nest = _fuse_block(program, nest, path)
        node = at(nest.body, path)
        assert isinstance(node, ast.For)
        pending += [(*path, *inner) for inner in _outermost(node.body)]
    return nest


def _outermost(body: list[ast.stmt]) -> list[Path]:
    """The loops in a block that are in no other loop of it."""
    return [path for path, _ in loops(body) if not any(isinstance(node, ast.For) for node in enclosing(body, path))]


def _fuse_block(program: Program, nest: Nest, parent: Path) -> Nest:
    """Neighbouring loops directly in the loop at ``parent`` are fused where that is legal; statements
    between them move up if they touch nothing that the first loop touches."""
    index = 0
    while True:
        node = at(nest.body, parent)
        assert isinstance(node, ast.For)
        if index + 1 >= len(node.body):
            return nest
        if not isinstance(node.body[index], ast.For):
            index += 1
            continue
        found = next((i for i in range(index + 1, len(node.body)) if isinstance(node.body[i], ast.For)), None)
        between = node.body[index + 1 : found] if found is not None else []
        if found is None or any(not _independent(node.body[index], s) for s in between):
            index += 1
            continue
        new_body = [*node.body[:index], *between, node.body[index], *node.body[found:]]
        candidate = nest.with_body(replace_at(nest.body, parent, [loop_of(node).node(new_body)]))
        fused = _fused_pair(program, candidate, (*parent, ("body", index + len(between))))
        if fused is None:
            index += 1
        else:
            nest, index = fused, index + len(between)


def _independent(loop: ast.stmt, statement: ast.stmt) -> bool:
    """Whether no array or local is touched by both (read by both is fine too, but not worth telling
    apart)."""
    calls = {
        n.func.id
        for s in (loop, statement)
        for n in nodes(s)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    stored = _stored(loop) | _stored(statement)
    return not ((names_in(loop) & names_in(statement)) - calls) & stored


def _stored(tree: ast.AST) -> set[str]:
    names = set()
    for node in nodes(tree):
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, (ast.AugAssign, ast.AnnAssign))
            else []
        )
        for target in targets:
            names.add(unparse(target.value if isinstance(target, ast.Subscript) else target))
    return names


def _fused_pair(program: Program, nest: Nest, path: Path) -> Nest | None:
    """The loop at ``path`` joined with the next one; the second may have another of its loops brought
    outermost."""
    first = at(nest.body, path)
    second_path: Path = (*path[:-1], (path[-1][0], path[-1][1] + 1))
    second = at(nest.body, second_path)
    if not _plain(first) or not _plain(second) or not names_in(first) & names_in(second):
        return None
    was_free = _free(nest, path)
    assert isinstance(first, ast.For)
    fitting = _same_name_first(_chains_inside(second), first, second)
    rotations = (nest if len(chain) == 1 else _rotated_at(nest, second_path, chain) for chain in fitting)
    for rotated in filter(None, rotations):
        partner = at(rotated.body, second_path)
        assert isinstance(partner, ast.For)
        named = _named_by_author(program, rotated, path, variable_of(partner))
        try:
            fused = fuse_at(program.with_nests([named]), Site(0, path)).nests[0]
        except (Refused, NotProved):
            continue
        if was_free and not _free(fused, path):
            continue
        return fused
    return None


def _chains_inside(node: ast.stmt) -> list[tuple[str, ...]]:
    """The same as :func:`_chains` for loops with nothing between them."""
    names: list[str] = []
    while isinstance(node, ast.For):
        names.append(variable_of(node))
        node = node.body[0] if len(node.body) == 1 else ast.Pass()
    return _beginnings(names)


def _rotated_at(nest: Nest, path: Path, chain: tuple[str, ...]) -> Nest | None:
    order = [chain[-1], *chain[:-1]]
    try:
        return permute_at(Program("", (nest,), {}), nest, path, dict(zip(chain, order, strict=True)))
    except (Refused, NotProved):
        return None
