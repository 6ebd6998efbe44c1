"""pack: a rearranged copy of a buffer, or of the part of it that a loop reads."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from swirl.analysis.dependences import NotProved
from swirl.analysis.footprints import Span, box
from swirl.analysis.statements import statements_of
from swirl.errors import CommandError
from swirl.ir.affine import Affine, affine, bounds, ranges_at, simplify
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.hints import is_name
from swirl.ir.nest import (
    LocalType,
    Nest,
    Program,
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
    subscripts,
    variable_of,
    with_inner,
)
from swirl.ir.paths import enclosing, replace_at
from swirl.ir.trees import nodes
from swirl.ir.types import is_float
from swirl.transforms.arguments import DimensionOrder, LoopName, NestName, ReadBufferName
from swirl.transforms.command import Assumption, command
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.loops.halo import without_dead_guards
from swirl.transforms.rewrites.sites import Site, find_loops, inner_name, loop_at, taken_names
from swirl.transforms.rewrites.storage.dimensions import memory_order
from swirl.transforms.rewrites.storage.local_arrays import MAX_ELEMENTS

NOTE = "asked to read a copy"


@command(assumes=Assumption("what is multiplied with zeros around the copy is finite", "zeros"))
def pack(
    program: Program,
    buffer: ReadBufferName,
    *,
    name: str | None = None,
    at: LoopName | None = None,
    order: DimensionOrder | None = None,
    zeros: bool = False,
    nest: NestName | None = None,
) -> Program:
    """Copy a buffer that is only read, and read the copy, which can have a layout of its own; or, at a loop, the part
    of it that an iteration reads, into a local array.

    rewrite:
                                            for w_packed_dim0 in range(K):
        for k in range(K):                      for w_packed_dim1 in range(C):
            for c in range(C):      →               w_packed[w_packed_dim0, w_packed_dim1] =
                s(w[k, c])                              w[w_packed_dim0, w_packed_dim1]
                                            for k in range(K):
                                                for c in range(C):
                                                    s(w_packed[k, c])

    rewrite (at = 'y'):
        for y in range(0, 56, 4):           for y in range(0, 56, 4):
            for i in range(4):                  x_packed: float32[6] = empty(6)
                for ky in range(3): →           for x_packed_dim0 in range(6):
                    s(x[y + i + ky])                x_packed[x_packed_dim0] = x[y + x_packed_dim0]
                                                for i in range(4):
                                                    for ky in range(3):
                                                        s(x_packed[i + ky])

    The copy is a nest of its own, before the first that reads it; ``tile`` lays the copy out, and strip-mines
    its loops. At a loop, it is the smallest box around what the iteration reads, without the dimensions in which that
    is one element; where the box reaches beyond the buffer (at borders), that part stays empty, and nothing reads it.

    Args:
        buffer: name of the buffer.
        name: of the copy; by default ``<buffer>_packed``.
        at: the loop in whose iterations copies are made.
        order: of the copy's dimensions in memory, as for ``transpose``; the batch is -1, and outermost if left out.
        zeros: at a loop, put zeros where the box reaches beyond the buffer, or where conditions prevent reads of it;
            the conditions that this makes needless are dropped, as by ``set_padding``, and the zeros' factors are
            assumed finite.
        nest: only in this nest (index or label): others may write the buffer.

    Raises:
        CommandError: no such buffer or loop, nothing reads the buffer there, or the name is taken.
        Refused: the phase, or the loop, writes the buffer; or the part does not fit on the stack.

    Source: Goto, van de Geijn, *Anatomy of high-performance matrix multiplication*, 2008, section 3.
    """
    readers = [index for index, candidate in enumerate(program.nests) if buffer in candidate.arguments]
    if not readers:
        raise CommandError(
            f"{program.name} does not read {buffer!r}", way_out=f"the buffers are {', '.join(program.buffers)}"
        )
    if nest is not None and at is None:
        readers = [index for index in readers if nest in (index, program.nests[index].label)]
        if not readers:
            raise CommandError(f"no nest {nest} of {program.name} reads {buffer!r}")
    taken = taken_names(program)
    name = name or fresh(f"{buffer}_packed", taken)
    if not is_name(name) or name in taken:
        raise CommandError(f"{name!r} cannot name the copy: it is not a name, or is used already")
    dims = memory_order(program, buffer, order, with_batch=True)
    if at is not None:
        return _pack_at(program, buffer, name, at, dims, zeros, nest)
    if zeros:
        raise CommandError("zeros are for a copy at a loop", way_out="give at=… too; or set_padding the copy")
    for index in readers:
        _check_only_read(program.nests[index], buffer, ())
    source = program.buffers[buffer]
    layout = Layout(halo=source.layout.halo).ordered(dims)  # the phase may read the halo
    copy = Buffer(f"{program.name}.{name}", source.shape, source.dtype, "temporary", layout)
    program = program.with_buffers(**{name: copy})
    nests = list(program.nests)
    for index in readers:
        read = nests[index]
        nests[index] = make_nest(read.label, _renamed(read.body, buffer, name, list), program.buffers)
    nests.insert(readers[0], _copy_nest(program, buffer, name))
    return checked(program, program.with_nests(nests))


def _check_only_read(nest: Nest, buffer: str, path: tuple[tuple[str, int], ...]) -> None:
    for statement in statements_of(nest):
        if statement.path[: len(path)] == path and any(
            access.name == buffer and access.kind != "read" for access in statement.accesses
        ):
            raise refuse(f"{buffer} is written here, the copy would not be", nest, statement.path, "writes it")


def _renamed(
    body: Sequence[ast.stmt], old: str, new: str, place: Callable[[list[ast.expr]], list[ast.expr]]
) -> list[ast.stmt]:
    """Copies of statements that read another array, with other subscripts."""
    result = clones(list(body))
    for statement in result:
        for node in nodes(statement):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == old:
                other = reference(new, place(subscripts(node)))
                node.value, node.slice = other.value, other.slice
    return result


def _copy_nest(program: Program, source: str, copy: str) -> Nest:
    shape = program.buffers[copy].shape
    taken = taken_names(program)
    variables = [fresh(f"{copy}_dim{dimension}", taken) for dimension in range(len(shape))]
    indices: list[ast.expr] = [ast.Name(variable, ast.Load()) for variable in variables]
    body: list[ast.stmt] = [ast.Assign([reference(copy, indices, True)], reference(source, clones(indices)))]
    for variable, extent in reversed(list(zip(variables, shape, strict=True))):
        body = [for_loop(variable, extent, body)]
    return make_nest(f"{program.name.replace('.', '_')}_{copy}", body, program.buffers)


# --- at a loop ------------------------------------------------------------------------------------------
def _pack_at(
    program: Program, buffer: str, name: str, loop_var: str, dims: tuple[int, ...], zeros: bool, nest: int | str | None
) -> Program:
    result = program
    for site in find_loops(program, loop_var, nest):
        after = _copied(result, site, buffer, name, dims, zeros)
        result = result if after is None else checked(result, after)
    if result is program:
        raise CommandError(f"nothing in the loop {loop_var} reads {buffer}", way_out="there is nothing to copy")
    return result


def _copied(program: Program, site: Site, buffer: str, name: str, dims: tuple[int, ...], zeros: bool) -> Program | None:
    """The program with a copy made in each iteration of the loop; None where the loop does not read the buffer."""
    if zeros:
        halo = ((MAX_ELEMENTS, MAX_ELEMENTS),) * len(dims)  # more than any copy has
        plain = without_dead_guards(program, program.nests[site.nest], buffer, halo, site.path)
        program = program.with_nest(site.nest, plain)
    box = _box_of(program, site, buffer, dims)
    if box is None:
        return None
    target, node, dtype = program.nests[site.nest], loop_at(program, site), program.buffers[buffer].dtype
    variables = [inner_name(program, site, f"{name}_dim{d}") for d in box.kept]
    head: list[ast.stmt] = [declare(name, LocalType(dtype, box.shape))]
    if zeros and box.clipped:
        head += _zeroed(name, dtype, box.shape, [inner_name(program, site, f"{name}_zero{d}") for d in box.kept])
    body = [*head, box.copy(buffer, name, variables), *_renamed(node.body, buffer, name, box.inside)]
    new = replace_at(target.body, site.path, [with_inner(node, body)])
    return program.with_nest(site.nest, target.with_body(new))


@dataclass(frozen=True)
class _Box:
    """The part of a buffer that an iteration of a loop reads.

    Args:
        spans: where it begins and its extent, for each dimension of the buffer.
        limits: what of it is inside of the buffer: the bounds of a loop over it, for each dimension.
        kept: the dimensions of the copy, in their order in memory.
    """

    spans: Sequence[Span]
    limits: Sequence[tuple[ast.expr, ast.expr]]
    kept: Sequence[int]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.spans[d].extent for d in self.kept)

    @property
    def clipped(self) -> bool:
        return any([constant(end) for end in self.limits[d]] != [0, self.spans[d].extent] for d in self.kept)

    def inside(self, indices: list[ast.expr]) -> list[ast.expr]:
        """The subscripts in the copy of an element of the buffer."""
        return [_minus(indices[d], self.spans[d].start) for d in self.kept]

    def copy(self, buffer: str, name: str, variables: Sequence[str]) -> ast.stmt:
        """The loops that fill the copy."""
        counted = dict(zip(self.kept, variables, strict=True))
        source = [_plus(span.start, counted.get(d)) for d, span in enumerate(self.spans)]
        filled: ast.stmt = ast.Assign([reference(name, [expr(v) for v in variables], True)], reference(buffer, source))
        for d, variable in reversed(list(counted.items())):
            start, stop = self.limits[d]
            filled = for_loop(variable, stop, [filled], start=start)
        return filled


def _box_of(program: Program, site: Site, buffer: str, dims: tuple[int, ...]) -> _Box | None:
    """What an iteration reads; None where it reads nothing of the buffer."""
    target, storage = program.nests[site.nest], program.buffers[buffer]
    loop = loop_of(loop_at(program, site))
    if loop.kind == "vector":
        raise refuse(f"{loop.var} is a vector loop", target, site.path, NOTE, way_out="pack at a loop outside")
    inside = [s for s in statements_of(target) if s.path[: len(site.path)] == site.path]
    reads = [(s, access) for s in inside for access in s.accesses if access.name == buffer]
    if not reads:
        return None
    _check_only_read(target, buffer, site.path)
    around = [variable_of(n) for n in enclosing(target.body, site.path) if isinstance(n, ast.For)]
    try:
        spans = box(reads, storage, [*around, loop.var])
    except NotProved:
        raise refuse("the part that is read was not found within the time allowed", target, site.path, NOTE) from None
    if spans is None:
        return None
    elements = prod(span.extent for span in spans)
    if elements > MAX_ELEMENTS:
        raise refuse(
            f"a copy of {elements} elements would not fit on the stack",
            target,
            site.path,
            NOTE,
            way_out="pack at a loop inside, or tile_loop the loops in it first",
        )
    ranges = ranges_at(target.body, (*site.path, ("body", 0)))
    readable = storage.layout.readable(storage.shape)
    limits = [_limits(span, low, high, ranges) for span, (low, high) in zip(spans, readable, strict=True)]
    # A dimension that loops inside run over stays, for the recipe's sake, also where they run once; and one whose only
    # element may be beyond the buffer: its loop has no iterations then.
    outer = {*around, loop.var, "min", "max"}
    varies = [any(names_in(access.indices[d]) - outer for _, access in reads) for d in range(len(spans))]
    kept = [d for d in dims if varies[d] or spans[d].extent > 1 or None in map(constant, limits[d])]
    return _Box(spans, limits, kept or [dims[-1]])


def _zeroed(name: str, dtype: str, shape: tuple[int, ...], variables: list[str]) -> list[ast.stmt]:
    zero = expr(0.0 if is_float(dtype) else 0)
    statement: ast.stmt = ast.Assign([reference(name, [expr(v) for v in variables], True)], zero)
    for variable, extent in reversed(list(zip(variables, shape, strict=True))):
        statement = for_loop(variable, extent, [statement])
    return [statement]


def _minus(index: ast.expr, start: Affine) -> ast.expr:
    form = affine(index)
    return expr("i - s", i=index, s=start.to_expr()) if form is None else form.add(start, -1).to_expr()


def _plus(start: Affine, variable: str | None) -> ast.expr:
    return start.to_expr() if variable is None else simplify(expr("s + v", s=start.to_expr(), v=variable))


def _limits(span: Span, low: int, high: int, ranges: dict[str, tuple[int, int]]) -> tuple[ast.expr, ast.expr]:
    """The bounds of the loop over a span, as far as it is between two subscripts."""
    start, stop = expr(0), expr(span.extent)
    limits = bounds(span.start, ranges)
    if limits is None or limits[0] < low:
        start = simplify(expr("max(0, low - (s))", low=low, s=span.start.to_expr()), ranges)
    if limits is None or limits[1] + span.extent > high:
        stop = simplify(expr("min(n, high - (s))", n=span.extent, high=high, s=span.start.to_expr()), ranges)
    return start, stop
