"""Partial results of a reduction: one for each lane or copy, combined in a fixed order, all spelled out as statements."""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass

from swirl.ir.deps import reduction_extremum
from swirl.ir.nest import (
    LocalType,
    Nest,
    Path,
    Program,
    at,
    declare,
    expr,
    for_loop,
    fresh,
    local_type,
    loop_of,
    names_in,
    reference,
    replace_at,
    subscripts,
    walk,
)
from swirl.transforms.base import Site, take_mark, taken_names, with_mark

_NEUTRAL = {"add": "0.0", "mul": "1.0", "max": "-INFINITY", "min": "INFINITY"}


@dataclass(frozen=True)
class Reduction:
    """An accumulation into a target that does not move with a loop: ``kind`` is ``add``, ``mul``, ``max`` or ``min``."""

    target: ast.expr
    kind: str

    @property
    def text(self) -> str:
        return ast.unparse(self.target)

    @property
    def name(self) -> str:
        return _name_of(self.target)


def _name_of(target: ast.expr) -> str:
    node = target.value if isinstance(target, ast.Subscript) else target
    assert isinstance(node, ast.Name)
    return node.id


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
    """The reductions in the loop at ``path`` whose target is one element for all its iterations."""
    node = at(body, path)
    assert isinstance(node, ast.For)
    inside = {loop_of(n).var for n in ast.walk(node) if isinstance(n, ast.For)}
    own = loop_of(node).var
    declared = {s.target.id for s in ast.walk(node) if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)}
    found: dict[str, Reduction] = {}
    for statement in ast.walk(node):
        reduction = accumulation(statement) if isinstance(statement, ast.stmt) else None
        if reduction is None or reduction.name in declared:
            continue
        moves = names_in(reduction.target)
        if own not in moves and not (moves & declared) and not _moving_inside(node, moves & inside):
            found[reduction.text] = reduction
    return list(found.values())


def _moving_inside(node: ast.For, names: set[str]) -> bool:
    """Whether one of ``names`` is a loop inside that is neither unrolled nor a vector loop."""
    return any(
        loop_of(inner).var in names and loop_of(inner).kind not in ("unrolled", "vector")
        for inner in ast.walk(node)
        if isinstance(inner, ast.For) and inner is not node
    )


def with_partials(program: Program, site: Site, count: int) -> tuple[Program, Site]:
    """Give every reduction over the loop at ``site`` one partial result for each of its ``count`` lanes or copies.

    Targets in buffers must have been replaced by locals (``scalar_replace``). The partials live around the outermost loop
    in which the target is only accumulated into. Returns the program and where the loop is now.
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
        name = fresh(f"{reduction.name}_{'lanes' if loop.kind == 'vector' else 'parts'}", taken_names(program, [nest]))
        nest, shift = _expand(nest, path, region, reduction, name, loop.var, count, loop.kind)
        depth = len(region) - 1
        path = (*path[:depth], (path[depth][0], path[depth][1] + shift), *path[depth + 1 :])
    program = program.with_nest(site.nest, nest)
    return program, take_mark(program, "partials")


def _region(body: list[ast.stmt], path: Path, reduction: Reduction) -> Path:
    """The outermost loop around ``path``, inside the target's scope, where the target is only accumulated into."""
    best = path
    for depth in range(len(path), 0, -1):
        node = at(body, path[:depth])
        if not isinstance(node, ast.For):
            continue
        if loop_of(node).kind in ("parallel",) or _declares(node, reduction.name):
            break
        if not _only_accumulated(node, reduction):
            break
        if names_in(reduction.target) & {loop_of(node).var}:
            break
        best = path[:depth]
    return best


def _declares(node: ast.For, name: str) -> bool:
    return any(isinstance(s, ast.AnnAssign) and ast.unparse(s.target) == name for s in ast.walk(node))


def _only_accumulated(node: ast.For, reduction: Reduction) -> bool:
    uses = sum(1 for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == reduction.name)
    updates = 0
    for statement in ast.walk(node):
        if isinstance(statement, ast.stmt):
            found = accumulation(statement)
            if found is not None and found.text == reduction.text and found.kind == reduction.kind:
                updates += 2 if isinstance(statement, ast.Assign) else 1
    return uses == updates


def _expand(nest: Nest, path: Path, region: Path, reduction: Reduction, name: str, var: str, count: int,
            kind: str) -> tuple[Nest, int]:  # fmt: skip
    """The nest with partials, and by how many statements the region moved down in its block."""
    dtype, shape = _declared_type(nest.body, reduction.name)
    last = kind == "vector"
    own = subscripts(reduction.target) if isinstance(reduction.target, ast.Subscript) else []
    inner_vars = [ast.unparse(index) for index in own]
    type_ = LocalType(dtype, (*shape, count) if last else (count, *shape))
    position: ast.expr = ast.Name(var, ast.Load())

    def partial(where: ast.expr, store: bool = False) -> ast.Subscript:
        return reference(name, [*copy.deepcopy(own), where] if last else [where, *copy.deepcopy(own)], store)

    class Retarget(ast.NodeTransformer):
        def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
            if ast.unparse(node.target) == reduction.text:
                return ast.AugAssign(partial(position, True), node.op, node.value)
            return node

        def visit_Assign(self, node: ast.Assign) -> ast.stmt:
            found = accumulation(node)
            if found is not None and found.text == reduction.text:
                value = copy.deepcopy(node.value)
                assert isinstance(value, ast.Call)
                value.args = [partial(position) if ast.unparse(a) == reduction.text else a for a in value.args]
                return ast.Assign([partial(position, True)], value)
            return node

    loop_node = copy.deepcopy(at(nest.body, path))
    body = replace_at(nest.body, path, [Retarget().visit(loop_node)])
    region_node = at(body, region)
    assert isinstance(region_node, ast.For)
    around = _loops_over(nest.body, path, region, inner_vars)

    def over(statements: list[ast.stmt], lanes: int | None) -> list[ast.stmt]:
        """The statements under loops over the target's own dimensions, and over the lanes or copies."""
        if lanes is not None and not last:
            statements = [for_loop(var, lanes, statements, kind="unrolled")]
        if lanes is not None and last:
            vector_dims = [head for head in around if head[2] == "vector"]
            assert not vector_dims
            statements = [for_loop(var, lanes, statements, kind="vector")]
        elif lanes is not None:
            statements = _inside_vector(statements, var, lanes, around)
            return statements
        for inner, extent, loop_kind in reversed(around):
            statements = [for_loop(inner, extent, statements, kind=loop_kind)]
        return statements

    neutral = expr(_NEUTRAL[reduction.kind])
    before: list[ast.stmt] = [declare(name, type_)]
    before += over([ast.Assign([partial(position, True)], neutral)], count)
    after: list[ast.stmt] = []
    if last:
        half = count // 2
        while half:
            shifted = expr("v + half", v=var, half=half)
            after += over([_combine(reduction.kind, partial(position, True), partial(shifted))], half)
            half //= 2
        after += over([_combine(reduction.kind, reduction.target, partial(ast.Constant(0)))], None)
    else:
        after += over([_combine(reduction.kind, reduction.target, partial(position))], count)
    body = replace_at(body, region, [*before, region_node, *after])
    return nest.with_body(body), len(before)


def _inside_vector(statements: list[ast.stmt], var: str, lanes: int, around: list[tuple[str, int, str]]) -> list[ast.stmt]:
    """Copies outside, vector lanes innermost."""
    unrolled = statements[0]
    assert isinstance(unrolled, ast.For)
    body = unrolled.body
    for inner, extent, kind in reversed(around):
        body = [for_loop(inner, extent, body, kind=kind)]
    return [for_loop(var, lanes, body, kind="unrolled")]


def _combine(kind: str, target: ast.expr, value: ast.expr) -> ast.stmt:
    store = copy.deepcopy(target)
    if isinstance(store, (ast.Name, ast.Subscript)):
        store.ctx = ast.Store()
    if kind in ("add", "mul"):
        return ast.AugAssign(store, ast.Add() if kind == "add" else ast.Mult(), value)  # type: ignore[arg-type]
    load = copy.deepcopy(target)
    if isinstance(load, (ast.Name, ast.Subscript)):
        load.ctx = ast.Load()
    return ast.Assign([store], ast.Call(ast.Name(kind, ast.Load()), [load, value], []))


def _declared_type(body: list[ast.stmt], name: str) -> tuple[str, tuple[int, ...]]:
    for _, statement in walk(body):
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == name:
            type_ = local_type(statement)
            return type_.dtype, type_.shape
    raise KeyError(name)


def _loops_over(body: list[ast.stmt], path: Path, region: Path, names: list[str]) -> list[tuple[str, int, str]]:
    """Variable, extent and kind of the loops between region and ``path``, or below, that the target's subscripts name."""
    heads = {}
    region_node = at(body, region)
    for node in ast.walk(region_node):
        if isinstance(node, ast.For):
            loop = loop_of(node)
            heads[loop.var] = (loop.var, _full_extent(node), loop.kind)
    return [heads[name] for name in names if name in heads]


def _full_extent(node: ast.For) -> int:
    from swirl.ir.validate import vector_lanes

    loop = loop_of(node)
    extent = vector_lanes(node) if loop.kind == "vector" else loop.extent
    assert extent is not None
    return extent
