"""prefetch: data that a loop will need some iterations later are fetched into a cache."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from swirl.analysis.strides import LINE, memory_stride
from swirl.ir.affine import Ranges, affine, bounds, ranges_at, simplify
from swirl.ir.buffers import DTYPES, Buffer, Layout
from swirl.ir.hints import Prefetch
from swirl.ir.nest import (
    Loop,
    Program,
    expr,
    for_loop,
    fresh,
    loop_of,
    names_in,
    references,
    subscripts,
    substitute,
    variable_of,
    with_inner,
)
from swirl.ir.paths import Path, edit_at, enclosing, walk
from swirl.ir.printing import unparse
from swirl.ir.trees import declared_in
from swirl.transforms.arguments import BufferName, CacheLevel, LoopName, NestName, Positive
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.checks.ways_out import Trial, either, others, step
from swirl.transforms.rewrites.sites import Site, find_loops, loop_at, rewrite_each

NOTE = "asked to prefetch"


@command()
def prefetch(
    program: Program,
    buffer: BufferName,
    loop_var: LoopName,
    distance: Positive = 1,
    level: CacheLevel = 1,
    *,
    nest: NestName | None = None,
) -> Program:
    """Fetch into a cache what a loop will touch some iterations later; one prefetch for each cache line.

    rewrite (distance = 4):
        for w in range(0, 64, 16):              for w in range(0, 64, 16):
            for v in vector(16):        →           prefetch(x, (w + 64,), 1)
                y[w + v] = x[w + v]                 for v in vector(16):
                                                        y[w + v] = x[w + v]

    Lines that loops inside run over are fetched in a separate loop, one line in each step. Prefetches beyond the end of
    the array do no harm. Give the command after those that arrange and mark the loops.

    Args:
        buffer: name of a field (``inputs``, ``weights``, …).
        loop_var: the loop; it must move by a cache line or more an iteration.
        distance: iterations ahead.
        level: the cache: 1, 2, 3, or 0 for data that is used once (``prefetchnta``).
        nest: only in this nest (index or label).

    Raises:
        CommandError: no such buffer or loop, bad distance or level.
        Refused: the loop does not move the buffer's elements, or by less than a line, or their subscripts are data.

    Source: Mowry, Lam, Gupta, ASPLOS 1992.
    """
    touching = any(_moves_with(loop_at(program, site), buffer) for site in find_loops(program, loop_var, nest))

    def rewrite(before: Program, site: Site) -> Program:
        if touching and not _moves_with(loop_at(before, site), buffer):
            return before  # another loop of that name is meant
        return _prefetching(before, site, buffer, distance, level)

    return rewrite_each(program, loop_var, nest, rewrite)


def _moves_with(node: ast.For, buffer: str) -> bool:
    """Whether a loop moves an element of the buffer."""
    var = variable_of(node)
    return any(var in names_in(index) for _, ref in _touching(node, buffer) for index in subscripts(ref))


def _prefetching(program: Program, site: Site, buffer: str, distance: int, level: int) -> Program:
    nest, node = program.nests[site.nest], loop_at(program, site)
    loop = loop_of(node)
    if loop.kind not in ("range", "parallel"):
        raise refuse(f"{loop.var} is a {loop.kind} loop", nest, site.path, NOTE, way_out="prefetch in a loop around it")
    found, why = _ahead(program, site, buffer, distance, level)
    if not found:
        options = (distance, level)
        raise refuse(why, nest, site.path, NOTE, way_out=lambda: _ways_out(program, site, buffer, options))

    def edit(statement: ast.stmt) -> list[ast.stmt]:
        assert isinstance(statement, ast.For)
        own = {unparse(s) for s in statement.body}
        return [with_inner(statement, [*(s for text, s in found.items() if text not in own), *statement.body])]

    return program.with_nest(site.nest, nest.with_body(edit_at(nest.body, site.path, edit)))


def _ahead(program: Program, site: Site, buffer: str, distance: int, level: int) -> tuple[dict[str, ast.stmt], str]:
    """The prefetches, one for each line of the cache that the loop moves to, by their texts; and why there is none."""
    nest, node = program.nests[site.nest], loop_at(program, site)
    loop, storage = loop_of(node), program.buffers[buffer]
    size = DTYPES[storage.dtype]().itemsize
    found: dict[str, ast.stmt] = {}
    seen: list[tuple[str, ast.expr]] = []
    declared = declared_in(nest.function)
    around = {variable_of(n) for n in enclosing(nest.body, site.path) if isinstance(n, ast.For)} | {loop.var}
    touching = list(_touching(node, buffer))
    why = f"{unparse(touching[0][1])} does not move with {loop.var}" if touching else ""
    for path, reference in touching:
        ranges = ranges_at(nest.body, (*site.path, *path))
        between = [loop_of(n) for n in _around(node, path)]
        indices = subscripts(reference)
        names = {name for index in indices for name in names_in(index)}
        if loop.var not in names:
            continue
        visible = around | {head.var for head in between} | {"min", "max"}
        if names - visible or any(True for index in indices for _ in references(index)):
            raise refuse(
                f"the place of {unparse(reference)} depends on data",
                nest,
                site.path,
                NOTE,
                way_out="prefetch the array that holds the places",
            )
        stride = memory_stride(storage, indices, loop.var, ranges)
        if stride is not None and 0 < abs(stride * loop.step) * size < LINE:
            why = f"{unparse(reference)} moves by {abs(stride * loop.step) * size} bytes an iteration of {loop.var}"
            continue
        if _is_in_seen_line(storage, indices, seen, ranges, LINE // size):
            continue
        later = {loop.var: expr("v + d", v=loop.var, d=distance * loop.step)}
        one = Prefetch(buffer, tuple(indices), level)
        new = ast.fix_missing_locations(_lines(program, around | declared, one, between, ranges, later))
        found.setdefault(unparse(new), new)
    return found, why or f"{buffer} is not touched in {loop.var}"


def _ways_out(program: Program, site: Site, buffer: str, options: tuple[int, int]) -> str | None:
    """Other loops, or tiles of this one, that move by a line or more."""
    trial = Trial(program)
    var = loop_of(loop_at(program, site)).var
    found = others(
        trial, site, lambda name, **only: (step("prefetch", buffer, name, *options, **only),), by_occurrence=False
    )
    ways = [" or ".join(steps[0].text for steps in found)]
    line = LINE // DTYPES[program.buffers[buffer].dtype]().itemsize
    tile, ahead = step("tile_loop", var, line), step("prefetch", buffer, f"{var}_outer", *options)
    if trial.works(tile, ahead):
        ways.append(f"{tile.text}, then {ahead.text}")
    return either(ways)


def _touching(node: ast.For, buffer: str) -> Iterator[tuple[Path, ast.Subscript]]:
    """References to the buffer under a loop, each with the path of its statement."""
    for path, statement in walk(node.body):
        head: ast.AST = statement
        if isinstance(statement, (ast.For, ast.If)):
            head = statement.iter if isinstance(statement, ast.For) else statement.test
        for reference in references(head):
            if unparse(reference.value) == buffer:
                yield path, reference


def _around(node: ast.For, path: Path) -> list[ast.For]:
    """The loops inside ``node`` around a statement in it."""
    return [inner for inner in enclosing(node.body, path) if isinstance(inner, ast.For)]


def _is_in_seen_line(
    buffer: Buffer, indices: list[ast.expr], seen: list[tuple[str, ast.expr]], ranges: Ranges, line: int
) -> bool:
    """Whether the element is within a line of one seen before; if not, notes it."""
    if buffer.layout != Layout() or any(affine(i) is None for i in indices):
        return False
    place, stride = expr(0), 1
    for index, extent in zip(reversed(indices), reversed(buffer.shape), strict=True):
        place, stride = expr("p + i * s", p=place, i=index, s=stride), stride * extent
    for _, other in seen:
        elements_between = affine(expr("a - b", a=place, b=other), ranges)
        if elements_between is not None and not elements_between.terms and abs(elements_between.constant) < line:
            return True
    seen.append((buffer.name, place))
    return False


def _lines(
    program: Program, visible: set[str], one: Prefetch, between: list[Loop], ranges: Ranges, ahead: dict[str, ast.expr]
) -> ast.stmt:
    """The prefetch, under those of the loops ``between`` that move the element: one line in each step.

    ``visible`` are the names around, ``ahead`` is the loop's variable at that time.
    """
    buffer, indices = program.buffers[one.buffer], list(one.indices)
    per_line = LINE // DTYPES[buffer.dtype]().itemsize
    taken = set(program.buffers) | visible
    heads: list[tuple[str, Loop, int]] = []
    fixed: dict[str, ast.expr] = {}
    needed = {name for index in indices for name in names_in(index)}
    for head in reversed(between):
        if head.var not in needed:
            continue
        stride = memory_stride(buffer, indices, head.var, dict(ranges))
        step = head.step * max(1, per_line // abs(stride * head.step)) if stride else head.step
        extent = bounds(expr("b - a", a=head.start, b=head.stop), ranges)
        if extent is not None and 0 < extent[1] <= step:
            fixed[head.var] = head.start
        else:
            var = fresh(f"{head.var}_line", taken)
            taken.add(var)
            heads.append((var, head, step))
            fixed[head.var] = ast.Name(var, ast.Load())
        needed |= names_in(head.start) | names_in(head.stop)

    def then(tree: ast.expr) -> ast.expr:
        for _ in between:  # a start may name the loops around it
            tree = substitute(tree, fixed)
        return simplify(substitute(tree, ahead))

    statement: ast.stmt = replace(one, indices=tuple(map(then, indices))).node()
    for var, head, step in heads:
        statement = for_loop(var, then(head.stop), [statement], start=then(head.start), step=step)
    return statement
