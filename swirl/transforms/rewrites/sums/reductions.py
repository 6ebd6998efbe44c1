"""Partial results of a reduction: one for each lane or copy, combined in a fixed order, all spelled out as
statements."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from swirl.analysis.accesses import reduction_extremum
from swirl.ir.names import scope_at
from swirl.ir.nest import (
    LocalType,
    Nest,
    Program,
    clone,
    constant,
    declare,
    expr,
    for_loop,
    fresh,
    kind_of,
    loop_of,
    names_in,
    reference,
    subscripts,
    variable_of,
)
from swirl.ir.paths import Path, at, replace_at
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer, as_target, as_value, declared_in, name_of, nodes, statements_in, targets_in
from swirl.ir.types import is_float
from swirl.ir.validate import vector_lanes
from swirl.transforms.rewrites.blocks import block_at
from swirl.transforms.rewrites.sites import Site, take_mark, taken_names, with_mark

NEUTRAL = {"add": "0.0", "mul": "1.0", "max": "-INFINITY", "min": "INFINITY"}
NEUTRAL_INTEGERS = {"add": "0", "mul": "1", "max": str(-(2**31)), "min": str(2**31 - 1)}
# What an update leaves its target by as it is, bit for bit: x + -0.0 is x for both zeros, x + 0.0 is not.
UNCHANGED: dict[type[ast.operator], str] = {ast.Add: "-0.0", ast.Sub: "0.0", ast.Mult: "1.0", ast.Div: "1.0"}
UNCHANGED_INTEGER: dict[type[ast.operator], str] = {ast.Add: "0", ast.Sub: "0", ast.Mult: "1"}


def neutral(kind: str, dtype: str) -> ast.expr:
    """The neutral element that a reduction starts from."""
    return expr(NEUTRAL[kind] if is_float(dtype) else NEUTRAL_INTEGERS[kind])


@dataclass(frozen=True)
class Reduction:
    """An accumulation into a target that does not move with a loop: ``kind`` is ``add``, ``mul``, ``max`` or
    ``min``."""

    target: ast.expr
    kind: str

    @property
    def text(self) -> str:
        return unparse(self.target)

    @property
    def name(self) -> str:
        return name_of(self.target)


def accumulation(node: ast.stmt) -> Reduction | None:
    """The reduction that one statement performs (``x += e``, ``x *= e``, ``x = max(x, e)``), else None."""
    if isinstance(node, ast.AugAssign):
        kind = {ast.Add: "add", ast.Sub: "add", ast.Mult: "mul"}.get(type(node.op))
        return Reduction(node.target, kind) if kind else None
    if isinstance(node, ast.Assign):
        extremum = reduction_extremum(node)
        return Reduction(node.targets[0], extremum[0]) if extremum else None
    return None


def reductions_over(body: list[ast.stmt], path: Path) -> list[Reduction]:
    """The reductions in the loop at ``path`` whose target is one element for all its iterations.

    The loop only accumulates into them, in one way: a target that it also reads, or assigns, does not count.
    """
    node = at(body, path)
    assert isinstance(node, ast.For)
    own = variable_of(node)
    declared = declared_in(node)
    found: dict[str, Reduction] = {}
    for statement in statements_in(node):
        reduction = accumulation(statement)
        if reduction is None or reduction.name in declared or reduction.text in found:
            continue
        moves = names_in(reduction.target)
        if own in moves or moves & declared or _moving_inside(node, moves):
            continue
        if only_accumulated(node, reduction):
            found[reduction.text] = reduction
    return list(found.values())


def _moving_inside(node: ast.For, names: set[str]) -> bool:
    """Whether one of ``names`` is a loop inside that is neither unrolled nor a vector loop."""
    return any(
        variable_of(inner) in names and kind_of(inner) not in ("unrolled", "vector")
        for inner in statements_in(node)
        if isinstance(inner, ast.For) and inner is not node
    )


def with_partials(program: Program, site: Site, count: int) -> tuple[Program, Site]:
    """Give every reduction over the loop at ``site`` one partial result for each of its ``count`` lanes or
    copies.

    Targets in buffers must have been replaced by locals (``scalar_replace``). The partials live around the
    outermost loop in which the target is only accumulated into; where that has as many partials of the target
    already, which other loops in it add to, they are the same. Returns the program and where the loop is now.
    """
    program = with_mark(program, site, "partials")
    nest = program.nests[site.nest]
    loop_node = at(nest.body, site.path)
    assert isinstance(loop_node, ast.For)
    loop = loop_of(loop_node)
    path = site.path
    for reduction in reductions_over(nest.body, path):
        if reduction.name in program.buffers:
            continue
        region = _region(nest.body, path, reduction)
        own = own_loops(at(nest.body, region), reduction)
        if own is None or (loop.kind == "vector" and any(head.kind == "vector" for head in own)):
            continue
        name = fresh(f"{reduction.name}_{'lanes' if loop.kind == 'vector' else 'parts'}", taken_names(program, [nest]))
        partials = _Partials(reduction, name, loop.var, count, loop.kind == "vector", own)
        made = _existing_partials(nest, region, partials)
        if made is not None:
            nest = nest.with_body(_added_to(nest.body, path, replace(partials, name=made)))
            continue
        nest, shift = _expand(nest, path, region, partials)
        depth = len(region) - 1
        path = (*path[:depth], (path[depth][0], path[depth][1] + shift), *path[depth + 1 :])
    program = program.with_nest(site.nest, nest)
    return program, take_mark(program, "partials")


def _region(body: list[ast.stmt], path: Path, reduction: Reduction) -> Path:
    """The outermost loop around ``path``, inside the target's scope, where the target is only accumulated
    into."""
    best = path
    for depth in range(len(path), 0, -1):
        node = at(body, path[:depth])
        if not isinstance(node, ast.For):
            continue
        if kind_of(node) == "parallel" or _declares(node, reduction.name):
            break
        if names_in(reduction.target) & {variable_of(node)} or not only_accumulated(node, reduction):
            break
        best = path[:depth]
    return best


def _declares(node: ast.For, name: str) -> bool:
    return any(isinstance(s, ast.AnnAssign) and unparse(s.target) == name for s in statements_in(node))


def only_accumulated(node: ast.stmt, reduction: Reduction, every: bool = False) -> bool:
    """Whether a statement does nothing with the target but accumulate into it; with ``every``, into any element of the
    array that it is one of."""
    uses = sum(1 for n in nodes(node) if isinstance(n, ast.Name) and n.id == reduction.name)
    uses -= (
        0
        if every
        else sum(
            1 for n in nodes(node) if isinstance(n, ast.Subscript) and _are_different_elements(n, reduction.target)
        )
    )
    updates = 0
    for statement in statements_in(node):
        found = accumulation(statement)
        if found is None or found.name != reduction.name or found.kind != reduction.kind:
            continue
        if every or found.text == reduction.text:
            updates += 2 if isinstance(statement, ast.Assign) else 1
    return uses == updates


def _are_different_elements(one: ast.Subscript, other: ast.expr) -> bool:
    """Whether two references are other elements of one array, whatever the values of variables: ``m[n, 0]`` and
    ``m[n, 1]``."""
    if not isinstance(other, ast.Subscript) or unparse(one.value) != unparse(other.value):
        return False
    pairs = zip(subscripts(one), subscripts(other), strict=True)
    return any(None not in (a, b) and a != b for a, b in ((constant(i), constant(j)) for i, j in pairs))


@dataclass(frozen=True)
class OwnLoop:
    """An unrolled or vector loop that the target of a reduction moves with."""

    var: str
    stop: ast.expr
    kind: str


def own_loops(region: ast.stmt, reduction: Reduction) -> list[OwnLoop] | None:
    """The loops of the region that the target's subscripts name; None where such a subscript is more than a variable,
    or changes otherwise. Literals, and what the loops around the region say, stay the same in it."""
    own = []
    changing = {name_of(target) for target in targets_in([region], declared=True)}
    inside = {variable_of(n) for n in statements_in(region) if isinstance(n, ast.For)}
    for index in subscripts(reduction.target) if isinstance(reduction.target, ast.Subscript) else []:
        if names_in(index) & changing:
            return None
        if not names_in(index) & inside:
            continue
        heads = [n for n in statements_in(region) if isinstance(n, ast.For) and variable_of(n) == unparse(index)]
        extents = {vector_lanes(n) if kind_of(n) == "vector" else loop_of(n).extent for n in heads}
        if len(extents) != 1 or any(constant(loop_of(n).start) != 0 for n in heads):
            return None
        extent = extents.pop()
        if extent is None:
            return None
        stops = {unparse(loop_of(n).stop) for n in heads}
        outside = len(stops) == 1 and not names_in(loop_of(heads[0]).stop) & inside
        stop = loop_of(heads[0]).stop if outside else expr(extent)
        own.append(OwnLoop(unparse(index), stop, loop_of(heads[0]).kind))
    return own


@dataclass(frozen=True)
class _Partials:
    """The partial results of one reduction: their array, and the loop with one of them for each iteration."""

    reduction: Reduction
    name: str
    var: str
    count: int
    lanes: bool
    own: list[OwnLoop]

    def element(self, where: ast.expr, store: bool = False) -> ast.Subscript:
        """One partial result: a lane is the last subscript, a copy the first."""
        target = self.reduction.target
        indices = subscripts(target) if isinstance(target, ast.Subscript) else []
        indices = [clone(index) for index in indices if self.has(index)]
        return reference(self.name, [*indices, where] if self.lanes else [where, *indices], store)

    def has(self, index: ast.expr) -> bool:
        """Whether partials have the dimension of a subscript of the target: not where loops around the region name the
        element."""
        return constant(index) is not None or any(unparse(index) == head.var for head in self.own)

    @property
    def here(self) -> ast.expr:
        return ast.Name(self.var, ast.Load())

    def over(self, statement: ast.stmt, count: int | None) -> ast.stmt:
        """The statement under loops over ``count`` partials and over the target's own loops; lanes
        innermost."""
        heads = list(self.own)
        if count is not None:
            head = OwnLoop(self.var, expr(count), "vector" if self.lanes else "unrolled")
            heads = [*heads, head] if self.lanes else [head, *heads]
        return over(statement, heads)


def over(statement: ast.stmt, heads: list[OwnLoop]) -> ast.stmt:
    """The statement under loops, outermost first."""
    for head in reversed(heads):
        statement = for_loop(head.var, head.stop, [statement], kind=head.kind)
    return statement


class _Retarget(Transformer):
    """Accumulates into another element instead of the target."""

    def __init__(self, text: str, element: ast.expr):
        self.text, self.element = text, element

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        if unparse(node.target) == self.text:
            return ast.AugAssign(as_target(self.element), node.op, node.value)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        found = accumulation(node)
        if found is None or found.text != self.text:
            return node
        assert isinstance(node.value, ast.Call)
        args = [clone(self.element) if unparse(a) == self.text else a for a in node.value.args]
        return ast.Assign([as_target(self.element)], ast.Call(node.value.func, args, []))


def retargeted(node: ast.stmt, reduction: Reduction, element: ast.expr) -> ast.stmt:
    """The statement, accumulating into ``element`` instead of the reduction's target."""
    new = _Retarget(reduction.text, element).visit(clone(node))
    assert isinstance(new, ast.stmt)
    return new


def _expand(nest: Nest, path: Path, region: Path, partials: _Partials) -> tuple[Nest, int]:
    """The nest with partials, and by how many statements the region moved down in its block."""
    body = _added_to(nest.body, path, partials)
    before, after = _around(body, region, partials)
    return nest.with_body(replace_at(body, region, [*before, at(body, region), *after])), len(before)


def _added_to(body: list[ast.stmt], path: Path, partials: _Partials) -> list[ast.stmt]:
    """The loop at ``path`` accumulates into the partials."""
    return replace_at(body, path, [retargeted(at(body, path), partials.reduction, partials.element(partials.here))])


def _around(body: list[ast.stmt], region: Path, partials: _Partials) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """What begins the partials before the region, and combines them after it."""
    reduction = partials.reduction
    type_ = declared_type(body, region, reduction.name)
    target = reduction.target
    indices = subscripts(target) if isinstance(target, ast.Subscript) else []
    own = tuple(extent for extent, index in zip(type_.shape, indices, strict=True) if partials.has(index))
    shape = (*own, partials.count) if partials.lanes else (partials.count, *own)
    start = ast.Assign([partials.element(partials.here, True)], neutral(reduction.kind, type_.dtype))
    before = [
        declare(partials.name, LocalType(type_.dtype, shape)),
        partials.over(start, partials.count),
    ]
    after: list[ast.stmt] = []
    if partials.lanes:
        half = partials.count // 2
        while half:
            shifted = partials.element(expr("v + half", v=partials.var, half=half))
            after.append(partials.over(combine(reduction.kind, partials.element(partials.here, True), shifted), half))
            half //= 2
        total = combine(reduction.kind, reduction.target, partials.element(ast.Constant(0)))
        after.append(partials.over(total, None))
    else:
        total = combine(reduction.kind, reduction.target, partials.element(partials.here))
        after.append(partials.over(total, partials.count))
    return before, after


def _existing_partials(nest: Nest, region: Path, partials: _Partials) -> str | None:
    """The name of partials as the given ones, whatever their loop is called: begun before the region by the same
    statements, combined after it by the same, and used by nothing but loops of the region that accumulate into them;
    None if there are none."""
    place, block = region[-1][1], block_at(nest, region)
    for first, declared in enumerate(block[: max(0, place - 1)]):
        if not isinstance(declared, ast.AnnAssign):
            continue
        name = name_of(declared.target)
        found = replace(partials, name=name, var=_counter(block[first + 1], partials) or partials.var)
        before, after = _around(nest.body, region, found)
        begun = first + len(before)
        if not _alike(block[first:begun], before):
            continue
        last = next((n for n in range(place + 1, len(block)) if _alike(block[n : n + len(after)], after)), None)
        if last is None:
            continue
        meanwhile = _names(block[begun:place]) | _names(block[place + 1 : last])
        later = _names(block[last + len(after) :])
        sums = Reduction(found.element(found.here), partials.reduction.kind)
        unused = name not in meanwhile | later and partials.reduction.name not in meanwhile
        if unused and only_accumulated(block[place], sums, every=True):
            return name
    return None


def _names(statements: Iterable[ast.stmt]) -> set[str]:
    return {name for statement in statements for name in names_in(statement)}


def _counter(start: ast.stmt, partials: _Partials) -> str | None:
    """The variable of the loop over partials, in the statement that begins these."""
    heads = [node for node in statements_in(start) if isinstance(node, ast.For)]
    return variable_of(heads[-1 if partials.lanes else 0]) if heads else None


def _alike(some: Sequence[ast.stmt], others: Sequence[ast.stmt]) -> bool:
    return [unparse(one) for one in some] == [unparse(one) for one in others]


def combine(kind: str, target: ast.expr, value: ast.expr) -> ast.stmt:
    """``target += value``, or the like for the other kinds."""
    if kind in ("add", "mul"):
        return ast.AugAssign(as_target(target), ast.Add() if kind == "add" else ast.Mult(), value)
    return ast.Assign([as_target(target)], ast.Call(ast.Name(kind, ast.Load()), [as_value(target), value], []))


def declared_type(body: list[ast.stmt], path: Path, name: str) -> LocalType:
    """The type of the local ``name`` that is visible at ``path`` (others may have the same name
    elsewhere)."""
    local = scope_at(body, path, {})[name]
    return LocalType(local.dtype, local.shape)
