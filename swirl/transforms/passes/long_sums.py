"""long_sums: sums of very many terms as sums of shorter ones."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from swirl.analysis.trips import most_terms, trips
from swirl.ir.affine import ranges_at, simplify, simplify_body
from swirl.ir.names import Named, scope_at, stored_in
from swirl.ir.nest import (
    LocalType,
    Loop,
    Nest,
    Program,
    clone,
    constant,
    declare,
    expr,
    for_loop,
    fresh,
    loop_of,
    names_in,
    nested,
    reference,
    subscripts,
    substitute,
    variable_of,
    with_inner,
)
from swirl.ir.paths import Path, at, replace_at, walk
from swirl.ir.printing import unparse
from swirl.ir.trees import as_target, references, statements_in
from swirl.ir.types import is_float
from swirl.ir.validate import vector_lanes
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.sites import taken_names
from swirl.transforms.rewrites.sums.reductions import Reduction, accumulation, combine, only_accumulated, retargeted

LONG = 1280
"""Additions that each term of a sum may go through. A float32 sum of positive terms then keeps four digits, whatever
they are: it is wrong by at most 2⁻²⁴ of itself an addition."""
PART = 256
"""Terms of a part of a longer sum."""
SHORT = 8
"""A part has at least ``part / SHORT`` terms: beginning it and adding it to the sum costs two more."""
ELEMENTS = 1 << 13
"""Of the sums that are added up side by side; they stay in the level-1 or level-2 cache."""


def long_sums(program: Program, long: int = LONG, part: int = PART) -> Program:
    """The program with partial sums where terms would go through more than ``long`` additions one after the other.

    rewrite:
        for n in range(100000):             for n_outer in range(400):
            s += x[n]               →           s_part: float32 = 0.0
                                                for n in range(250):
                                                    s_part += x[n_outer * 250 + n]
                                                s += s_part

    Sums of lanes and copies keep their arrays. A sum that is used meanwhile, or whose loops have bounds that depend on
    data, stays as it is.

    Args:
        program: after its recipe.
        long: additions that are too many.
        part: terms of a part, at the most.

    Source: Higham, *Accuracy and Stability of Numerical Algorithms*, section 4.2 (the number of additions that a term
    goes through bounds the error).
    """
    if most_terms(program) <= long:
        return program
    nests = []
    for nest in program.nests:
        while (split := _split(program, nest, long, part)) is not None:
            nest = split
        nests.append(nest)
    return checked(program, program.with_nests(nests))


_NONE = ast.Constant(0)


@dataclass(frozen=True)
class _Chain:
    """An addition, and the loops around it that only add to its target.

    Args:
        path: of the statement.
        reduction: what it adds to.
        home: what the target's name means.
        depths: of the loops of kind ``range`` that do not move the target, outermost first: how much of the path.
        counts: iterations of these.
    """

    path: Path
    reduction: Reduction
    home: Named
    depths: tuple[int, ...]
    counts: tuple[int, ...]


def _split(program: Program, nest: Nest, long: int, part: int) -> Nest | None:
    """The nest with one loop more that has parts, or is in strips for it; None where no sum is too long."""
    for chain in _chains(program, nest):
        if prod(chain.counts) <= long:
            continue
        terms = 1
        for depth, count in zip(reversed(chain.depths), reversed(chain.counts), strict=True):
            if terms * count <= part:
                terms *= count
                continue
            path = chain.path[:depth]
            found = (
                _with_part(program, nest, chain, path)
                if terms >= SHORT
                else _in_strips(program, nest, path, part // terms)
            )
            if found is not None:
                return found
            break
    return None


def _chains(program: Program, nest: Nest) -> Iterator[_Chain]:
    for path, node in walk(nest.body):
        reduction = accumulation(node) if isinstance(node, ast.AugAssign) else None
        if reduction is None or reduction.kind != "add" or _depends_on_data(reduction.target):
            continue
        home = scope_at(nest.body, path, program.buffers)[reduction.name]
        if not is_float(home.dtype):
            continue
        depths: list[int] = []
        counts: list[int] = []
        moves = names_in(reduction.target)
        outermost = len(home.declared) if home.declared is not None else 1
        for depth in range(len(path) - 1, outermost - 1, -1):
            around = at(nest.body, path[:depth])
            if not only_accumulated(around, reduction, every=True) or _stored(around) & moves - {reduction.name}:
                break
            if not isinstance(around, ast.For):
                continue
            loop = loop_of(around)
            if loop.var not in moves and loop.kind == "range":
                depths.insert(0, depth)
                counts.insert(0, trips(loop, ranges_at(nest.body, (*path[:depth], path[depth]))))
        yield _Chain(path, reduction, home, tuple(depths), tuple(counts))


def _stored(node: ast.stmt) -> set[str]:
    """What assignments and declarations in a statement change."""
    return set(stored_in([node], declared=True))


def _depends_on_data(target: ast.expr) -> bool:
    """Whether a target's subscripts read which element it is."""
    return any(each is not target for each in references(target))


def _in_strips(program: Program, nest: Nest, path: Path, most: int) -> Nest | None:
    """The loop at ``path`` as a loop over strips of at most ``most`` iterations, and one over the rest."""
    node = at(nest.body, path)
    assert isinstance(node, ast.For)
    loop, ranges = loop_of(node), ranges_at(nest.body, (*path, ("body", 0)))
    start, count = constant(loop.start), loop.extent
    outer = fresh(f"{loop.var}_outer", taken_names(program, [nest]))
    if start is None or count is None:
        return _in_moving_strips(nest, path, outer, trips(loop, ranges), most) if loop.var in ranges else None
    if most < 2 or count <= most:
        return None
    length = next((size for size in range(most, most // 2, -1) if count % size == 0), most)
    strips, span = count // length, length * loop.step
    place = simplify(expr("start + outer * span + v", start=start, outer=outer, span=span, v=loop.var))
    inside = [substitute(statement, {loop.var: place}) for statement in node.body]
    inner = for_loop(loop.var, span, inside, step=loop.step)
    made = simplify_body([for_loop(outer, strips, [inner])], ranges_at(nest.body, path))
    if strips * length < count:
        made.append(replace(loop, start=ast.Constant(start + strips * span)).node([clone(s) for s in node.body]))
    return nest.with_body(replace_at(nest.body, path, made))


def _in_moving_strips(nest: Nest, path: Path, outer: str, count: int, most: int) -> Nest | None:
    """The same of a loop whose bounds depend on loops around, with at most ``count`` iterations: the last strips may be
    short, or empty."""
    node = at(nest.body, path)
    assert isinstance(node, ast.For)
    loop = loop_of(node)
    if most < 2 or count <= most or loop.step < 0:
        return None
    span = most * loop.step
    start = expr("start + outer * span", start=loop.start, outer=outer, span=span)
    stop = expr("min(stop, start + (outer + 1) * span)", start=loop.start, stop=loop.stop, outer=outer, span=span)
    inner = replace(loop, start=start, stop=stop).node([clone(statement) for statement in node.body])
    made = simplify_body([for_loop(outer, -(-count // most), [inner])], ranges_at(nest.body, path))
    result = nest.with_body(replace_at(nest.body, path, made))
    strip = (*path, ("body", 0))
    inner_node = at(result.body, strip)
    assert isinstance(inner_node, ast.For)
    short = trips(loop_of(inner_node), ranges_at(result.body, (*strip, ("body", 0)))) <= most
    return result if short else None


def _with_part(program: Program, nest: Nest, chain: _Chain, path: Path) -> Nest | None:
    """The loop at ``path`` with a part of the sum in each iteration."""
    node, reduction = at(nest.body, path), chain.reduction
    assert isinstance(node, ast.For)
    moving = _moving(node, chain)
    if moving is None or prod(count for _, count in moving) > ELEMENTS:
        return None
    name = fresh(f"{reduction.name}_part", taken_names(program, [nest]))
    shape = tuple(count for _, count in moving)
    indices = [_place(loop) for loop, _ in moving]
    element: ast.expr = reference(name, indices) if shape else expr(name)
    zero: ast.expr = ast.Constant(0.0)
    opening: list[ast.stmt] = [declare(name, LocalType(chain.home.dtype, shape), None if shape else zero)]
    heads = [loop for loop, _ in moving]
    if shape:
        opening += nested(heads, [ast.Assign([as_target(element)], zero)])
    closing = nested(heads, [combine("add", reduction.target, element)])
    inside = [retargeted(statement, reduction, element) for statement in node.body]
    return nest.with_body(replace_at(nest.body, path, [with_inner(node, [*opening, *inside, *closing])]))


def _moving(node: ast.For, chain: _Chain) -> list[tuple[Loop, int]] | None:
    """The loops inside of ``node`` that the target moves with, a loop over lanes last, and their numbers of iterations;
    None where they differ between additions by more than their ends, or depend on more than what is around ``node``."""
    names = names_in(chain.reduction.target)
    every: dict[tuple[str, ...], list[list[Loop]]] = {}
    for around in _around_additions(node.body, chain.reduction, ()):
        own = [loop for loop in around if loop.var in names]
        every.setdefault(tuple(unparse(replace(loop, stop=_NONE).node([ast.Pass()])) for loop in own), []).append(own)
        if any(loop.kind == "parallel" for loop in around):
            return None
    if len(every) != 1:
        return None
    (found,) = every.values()
    inside = {variable_of(each) for each in statements_in(node) if isinstance(each, ast.For)} - {variable_of(node)}
    inside -= {loop.var for loop in found[0]}
    moving: list[tuple[Loop, int]] = []
    for variants in zip(*found, strict=True):  # the same loop, but for its end: fewer lanes in a last vector
        loop, counts = variants[0], [_iterations(each) for each in variants]
        known = [each for each in counts if each is not None]
        if len(known) < len(counts) or constant(loop.start) is None:
            return None
        count = max(known)
        if len({unparse(each.stop) for each in variants}) > 1 or names_in(loop.stop) & inside:
            if not _has_all(chain, loop.var, count):
                return None
            loop = replace(loop, stop=expr(count))
        moving.append((loop, count))
    return sorted(moving, key=lambda each: each[0].kind == "vector")


def _iterations(loop: Loop) -> int | None:
    """Those of a loop that a target moves with, at the most."""
    return vector_lanes(loop.node([ast.Pass()])) if loop.kind == "vector" else loop.most


def _has_all(chain: _Chain, var: str, count: int) -> bool:
    """Whether a dimension of the target has an element for each iteration of a loop."""
    target = chain.reduction.target
    indices = subscripts(target) if isinstance(target, ast.Subscript) else []
    return any(unparse(i) == var and extent >= count for i, extent in zip(indices, chain.home.shape, strict=True))


def _around_additions(
    body: Sequence[ast.stmt], reduction: Reduction, loops: tuple[Loop, ...]
) -> Iterator[tuple[Loop, ...]]:
    for statement in body:
        if isinstance(statement, ast.For):
            yield from _around_additions(statement.body, reduction, (*loops, loop_of(statement)))
        elif isinstance(statement, ast.If):
            yield from _around_additions(statement.body, reduction, loops)
            yield from _around_additions(statement.orelse, reduction, loops)
        elif isinstance(statement, ast.AugAssign) and unparse(statement.target) == reduction.text:
            yield loops


def _place(loop: Loop) -> ast.expr:
    """The number of a loop's iteration."""
    offset = simplify(expr("v - start", v=loop.var, start=loop.start))
    return offset if loop.step == 1 else expr("p // step", p=offset, step=loop.step)
