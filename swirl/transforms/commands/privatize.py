"""privatize: private copies of a buffer, so that iterations of a loop need not share it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from swirl.analysis.accesses import Access
from swirl.analysis.dependences import NotProved, carried
from swirl.analysis.statements import Statement, statements_of
from swirl.errors import CommandError
from swirl.ir.affine import bounds, simplify, simplify_body
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.nest import (
    LocalType,
    Loop,
    Program,
    clone,
    clones,
    constant,
    declare,
    expr,
    for_loop,
    fresh,
    loop_of,
    make_nest,
    names_in,
    reference,
    references,
    subscripts,
    substitute,
    variable_of,
    with_inner,
)
from swirl.ir.paths import enclosing, loops, replace_at
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer, declared_in, nodes
from swirl.ir.types import is_float
from swirl.transforms.arguments import BufferName, LoopName, NestName, Positive
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.loops.strips import plain_loop
from swirl.transforms.rewrites.sites import Site, find_loops, inner_name, loop_at, taken_names
from swirl.transforms.rewrites.storage.filling import fills
from swirl.transforms.rewrites.storage.local_arrays import MAX_ELEMENTS
from swirl.transforms.rewrites.sums.reductions import NEUTRAL, combine, neutral

NOTE = "asked for private copies"


@command()
def privatize(
    program: Program,
    buffer: BufferName,
    loop_var: LoopName | None = None,
    *,
    copies: Positive = 8,
    nest: NestName | None = None,
) -> Program:
    """Give a loop private copies of a buffer: one for each part of a reduction's iterations, or a local array for what
    each iteration writes before it reads.

    rewrite (copies = 4):
        for n in range(16):                 for n in range(0, 16, 4):
            for k in range(K):                  for dw_private_zero0 in range(K):
                dw[k] += x[n, k]    →               dw_private[n // 4, dw_private_zero0] = 0.0
                                                for n_inner in range(4):
                                                    for k in range(K):
                                                        dw_private[n // 4, k] += x[n + n_inner, k]
                                            for dw_private_dim0 in range(K):
                                                for n_copy in range(4):
                                                    dw[dw_private_dim0] += dw_private[n_copy, dw_private_dim0]

    The loop can run in parallel then. The parts depend only on the loop's extent and on ``copies``, and are added in
    order: results do not depend on the number of threads. The copies are a buffer of their own; dimensions in which the
    loop touches one element only are left out.

    Args:
        buffer: name of a field (``grad_weights``, …) that the loop only accumulates into; or of a temporary.
        loop_var: the loop; it keeps its name and counts parts. By default the outermost one, in each nest, of which two
            iterations update an element.
        copies: at most that many; ignored for temporaries.
        nest: only in this nest (index or label).

    Raises:
        CommandError: no such buffer or loop, bad number of copies, or the loop does not write the buffer.
        Refused: the bounds are not constant; the loop is in a parallel loop; or it reads the buffer or assigns to it,
            and iterations share elements.

    Source: Tu, Padua, *Automatic array privatization*, 1993; Lake, section 3.3.
    """
    result, count = program, 0
    sites = find_loops(program, loop_var, nest) if loop_var is not None else _sharing(program, buffer, nest)
    for site in sites:
        target = result.nests[site.nest]
        inside = [s for s in statements_of(target) if s.path[: len(site.path)] == site.path]
        touching = [(s, access) for s in inside for access in s.accesses if access.name == buffer]
        kinds = {access.kind for _, access in touching}
        if not kinds - {"read"}:
            continue
        count += 1
        before = result
        if len(kinds) == 1 and next(iter(kinds)) in NEUTRAL:
            result = _in_parts(before, site, buffer, touching, copies)
        elif "write" not in kinds and len(kinds - {"read"}) == 1:
            reader = next(s for s, access in touching if access.kind == "read")
            way_out = "distribute the loop first, or reindex so that each element belongs to one iteration"
            raise refuse(
                f"{buffer} is read in the loop that accumulates into it",
                target,
                reader.path,
                "reads the sum so far",
                way_out=way_out,
            )
        else:
            result = _local(before, site, buffer, touching)
        result = checked(before, result)
    if not count:
        loop = f"the loop {loop_var} does not write" if loop_var is not None else "no loop accumulates into"
        raise CommandError(f"{loop} {buffer}", way_out="there is nothing to be private")
    return result


def _sharing(program: Program, buffer: str, nest: int | str | None) -> list[Site]:
    """The outermost loops of which two iterations touch one element of the buffer, last first."""
    sites: list[Site] = []
    for index, target in enumerate(program.nests):
        if nest not in (None, index, target.label):
            continue
        known = statements_of(target)
        known = [replace(s, accesses=tuple(a for a in s.accesses if a.name == buffer)) for s in known]
        for path, _ in loops(target.body):
            inside = any(site.nest == index and path[: len(site.path)] == site.path for site in sites)
            try:
                if not inside and carried(target.body, path, reductions=True, known=known) is not None:
                    sites.append(Site(index, path))
            except NotProved:
                problem = "not proved within the time allowed"
                raise refuse(problem, target, path, NOTE, way_out="name the loop") from None
    return sites[::-1]


# --- reductions -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Copies:
    """Copies of a buffer, one for each part of a loop.

    Args:
        name: of the copies.
        buffer: that holds them: the number of the part, then the dimensions that the loop touches.
        kept: which dimensions of the original these are.
        kind: of reduction.
    """

    name: str
    buffer: Buffer
    kept: Sequence[int]
    kind: str

    @staticmethod
    def of(program: Program, buffer: str, kept: Sequence[int], parts: int, kind: str) -> _Copies:
        """Copies with the layout of the buffer, as far as its dimensions are kept."""
        storage = program.buffers[buffer]
        name = fresh(f"{buffer}_private", taken_names(program))
        own = {d: 1 + position for position, d in enumerate(kept)}
        layout = Layout(tuple((own[d], factor) for d, factor in storage.layout.blocks if d in own))
        layout = layout.ordered((0, *(own[d] for d in storage.layout.order or range(len(storage.shape)) if d in own)))
        shape = (parts, *(storage.shape[d] for d in kept))
        return _Copies(name, Buffer(f"{program.name}.{name}", shape, storage.dtype, "temporary", layout), kept, kind)

    def element(self, part: ast.expr, indices: Sequence[ast.expr], store: bool = False) -> ast.expr:
        """An element of one copy; ``indices`` are those of all dimensions of the original."""
        return reference(self.name, [clone(part), *(indices[d] for d in self.kept)], store)

    def neutral(self, part: ast.expr, variables: Sequence[str]) -> list[ast.stmt]:
        """Loops that make a copy neutral."""
        first = reference(self.name, [clone(part), *map(expr, variables)], True)
        return self._over(variables, ast.Assign([first], neutral(self.kind, self.buffer.dtype)))

    def combined(self, buffer: str, fixed: Sequence[ast.expr], copy: str, variables: Sequence[str]) -> list[ast.stmt]:
        """Loops that combine the copies in order; ``fixed`` are the subscripts in the other dimensions."""
        own = dict(zip(self.kept, variables, strict=True))
        where = [expr(own[d]) if d in own else index for d, index in enumerate(fixed)]
        value = reference(self.name, [expr(copy), *map(expr, variables)])
        one = combine(self.kind, reference(buffer, where), value)
        return self._over(variables, for_loop(copy, self.buffer.shape[0], [one]))

    def _over(self, variables: Sequence[str], statement: ast.stmt) -> list[ast.stmt]:
        for variable, extent in reversed(list(zip(variables, self.buffer.shape[1:], strict=True))):
            statement = for_loop(variable, extent, [statement])
        return [statement]


def _in_parts(
    program: Program, site: Site, buffer: str, touching: list[tuple[Statement, Access]], number: int
) -> Program:
    """The loop in at most ``number`` parts, each with a copy that starts neutral; the copies are combined after it."""
    target, node = program.nests[site.nest], loop_at(program, site)
    loop, start, extent = _constant_loop(program, site)
    size = -(-extent // min(number, extent))
    accesses = [access for _, access in touching]
    kept = sorted({*_moving(node, accesses), *_guarded(touching, program.buffers[buffer])})
    copies = _Copies.of(program, buffer, kept, -(-extent // size), accesses[0].kind)
    program = program.with_buffers(**{copies.name: copies.buffer})
    part = simplify(expr("(v - start) // size", v=loop.var, start=start, size=size))
    zeroed = [inner_name(program, site, f"{copies.name}_zero{d}") for d in range(len(kept))]
    body = clones(node.body)
    if size > 1:
        inner = inner_name(program, site, f"{loop.var}_inner")
        body = [substitute(s, {loop.var: expr("v + i", v=loop.var, i=inner)}) for s in body]
        count = expr(size) if extent % size == 0 else expr("min(s, e - v)", s=size, e=start + extent, v=loop.var)
        body = [for_loop(inner, count, body)]
    private = _Private(buffer, lambda indices, store: copies.element(part, indices, store))
    body = [private.visit(s) for s in body]
    outer = Loop(loop.var, "range", loop.start, loop.stop, size).node([*copies.neutral(part, zeroed), *body])
    totals = [inner_name(program, site, f"{copies.name}_dim{d}") for d in range(len(kept))]
    copy = inner_name(program, site, f"{loop.var}_copy")
    rank = len(program.buffers[buffer].shape)
    fixed = clones(list(accesses[0].indices[len(accesses[0].indices) - rank :]))
    new = simplify_body([outer, *copies.combined(buffer, fixed, copy, totals)])
    body = replace_at(target.body, site.path, new)
    return program.with_nest(site.nest, make_nest(target.label, body, program.buffers))


def _constant_loop(program: Program, site: Site) -> tuple[Loop, int, int]:
    """The loop, its start and its extent.

    Raises:
        Refused: they are not constant, or the loop is in a parallel loop.
    """
    target = program.nests[site.nest]
    loop = plain_loop(target, site.path, loop_at(program, site), NOTE)
    start, extent = constant(loop.start), loop.extent
    if start is None or not extent:
        raise refuse(
            f"the bounds of {loop.var} are not constant", target, site.path, NOTE, way_out="privatize at a loop outside"
        )
    around = [loop_of(n) for n in enclosing(target.body, site.path) if isinstance(n, ast.For)]
    shared = next((head.var for head in around if head.kind == "parallel"), None)
    if shared is not None:
        raise refuse(
            f"{loop.var} is inside the parallel loop {shared}, whose iterations would share the copies",
            target,
            site.path,
            NOTE,
            way_out="privatize before parallelize",
        )
    return loop, start, extent


def _moving(node: ast.For, touching: list[Access]) -> list[int]:
    """The dimensions in which the loop touches more than one element."""
    rank = len(touching[0].indices)
    inside = declared_in(node) | {variable_of(n) for n in nodes(node) if isinstance(n, ast.For)}
    result = []
    for dim in range(rank):
        texts = {unparse(access.indices[dim]) for access in touching}
        names = {name for access in touching for name in names_in(access.indices[dim])}
        data = any(True for access in touching for _ in references(access.indices[dim]))
        if len(texts) > 1 or names & inside or data:
            result.append(dim)
    return result


def _guarded(touching: list[tuple[Statement, Access]], storage: Buffer) -> list[int]:
    """The dimensions in which only a condition, or a loop without iterations, keeps a subscript inside: after the loop,
    its one element may not exist."""
    result = []
    for dim, extent in enumerate(storage.shape):
        ends = [bounds(access.indices[dim], statement.ranges) for statement, access in touching]
        if not all(end is not None and end[0] >= 0 and end[1] < extent for end in ends):
            result.append(dim)
    return result


# --- temporaries ----------------------------------------------------------------------------------------
def _local(program: Program, site: Site, buffer: str, touching: list[tuple[Statement, Access]]) -> Program:
    """A local array in the loop's body, instead of a temporary that each iteration fills before it reads it."""
    target, node = program.nests[site.nest], loop_at(program, site)
    loop, storage = loop_of(node), program.buffers[buffer]
    if loop.kind not in ("range", "parallel", "unrolled"):
        raise refuse(f"{loop.var} is a {loop.kind} loop", target, site.path, NOTE)
    _check_own(program, site, buffer)
    kept = _moving(node, [access for _, access in touching])
    shape = tuple(storage.shape[d] for d in kept)
    if prod(shape) > MAX_ELEMENTS:
        raise refuse(
            f"a local array of {prod(shape)} elements would not fit on the stack",
            target,
            site.path,
            NOTE,
            way_out="privatize at a loop inside",
        )
    if not fills(touching, kept, storage, len(site.path)):
        raise refuse(
            f"not proved that each iteration of {loop.var} writes {buffer} before it reads it",
            target,
            touching[0][0].path,
            f"touches {buffer} first",
            way_out="fill the temporary over its whole extent first",
        )
    name = fresh(f"{buffer}_private", taken_names(program))

    def private(indices: Sequence[ast.expr], store: bool) -> ast.expr:
        if kept:
            return reference(name, [indices[d] for d in kept], store)
        return ast.Name(name, ast.Store() if store else ast.Load())

    start = None if kept else expr(0.0 if is_float(storage.dtype) else 0)
    body = [_Private(buffer, private).visit(clone(s)) for s in node.body]
    new = with_inner(node, [declare(name, LocalType(storage.dtype, shape), start), *body])
    return program.with_nest(site.nest, target.with_body(replace_at(target.body, site.path, [new])))


def _check_own(program: Program, site: Site, buffer: str) -> None:
    """Refuse a buffer whose values somebody needs after the loop or outside of it."""
    if program.buffers[buffer].role != "temporary":
        raise refuse(
            f"{buffer} is assigned, and read by others: the last iteration's values must remain",
            program.nests[site.nest],
            site.path,
            NOTE,
            way_out="only a reduction or a temporary can be private",
        )
    for index, other in enumerate(program.nests):
        for statement in statements_of(other):
            outside = index != site.nest or statement.path[: len(site.path)] != site.path
            if outside and any(access.name == buffer for access in statement.accesses):
                raise refuse(
                    f"{buffer} is used outside of the loop too",
                    other,
                    statement.path,
                    f"uses {buffer}",
                    way_out="fuse so that one loop holds all uses",
                )


class _Private(Transformer):
    """Puts the private copy in place of the buffer."""

    def __init__(self, buffer: str, private: Callable[[Sequence[ast.expr], bool], ast.expr]):
        self.buffer, self.private = buffer, private

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        new = self.generic_visit(node)
        assert isinstance(new, ast.Subscript)
        if unparse(new.value) != self.buffer:
            return new
        return self.private(subscripts(new), isinstance(new.ctx, ast.Store))
