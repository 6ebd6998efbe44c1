"""Buffers that only one loop needs become locals of that loop; which buffers may be removed."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from swirl.analysis.coverage import unwritten_read
from swirl.analysis.dependences import NotProved
from swirl.analysis.footprints import Span, box
from swirl.analysis.statements import Statement, statements_of
from swirl.errors import Refused
from swirl.ir.affine import Affine, affine
from swirl.ir.buffers import DTYPES, Buffer
from swirl.ir.nest import LocalType, Nest, Program, clone, declare, expr, fresh, names_in, reference, subscripts
from swirl.ir.paths import Path, at, replace_at
from swirl.ir.trees import Transformer, changed
from swirl.ir.types import explicit
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.checks.ways_out import Trial, step
from swirl.transforms.rewrites.sites import loop_names, taken_names
from swirl.transforms.rewrites.storage.without_hints import without_hints

MOST_BYTES = 256 * 1024
"""The largest local array that a contraction makes: it is on the stack of each thread."""

_START: dict[str, int | str] = {"int32": 0, "bool": "False"}

OWN = "temporary"
"""The role of a buffer that no other program and no user reads."""


def contracted(program: Program, buffer: str) -> Program:
    """The program with the elements of a buffer in locals of the innermost loop around everything that touches it.

    Raises:
        Refused: as ``contract`` is.
    """
    program, record = vanishing(program, buffer)
    holders = [index for index, nest in enumerate(program.nests) if buffer in nest.arguments]
    if not holders:
        return without_buffer(program, buffer)
    nest = program.nests[holders[0]]
    if len(holders) > 1:
        other = program.nests[holders[1]]
        use = next(s for s in statements_of(other) if any(a.name == buffer for a in s.accesses))
        doing = "reads" if all(a.kind == "read" for a in use.accesses if a.name == buffer) else "sets"
        raise refuse(
            f"{buffer} is touched by another nest too: {use.text.splitlines()[0]} in {other.label} {doing} it",
            nest,
            (("body", 0),),
            f"asked to contract {buffer}",
            way_out=lambda: _joined(program, buffer, holders),
        )
    known = [s for s in statements_of(nest) if any(a.name == buffer for a in s.accesses)]
    block = _block(nest, known)
    _check(nest, buffer, known, block)
    try:
        shape = _Shape.of(record, buffer, known, block)
    except NotProved:
        raise refuse(
            f"how much of {buffer} is alive at a time is not known within the time allowed",
            nest,
            block.path or (("body", 0),),
            f"asked to contract {buffer}",
        ) from None
    size = prod(shape.extents) * np.dtype(DTYPES[record.dtype]).itemsize
    if size > MOST_BYTES:
        raise refuse(
            f"{size} bytes of {buffer} are alive at a time",
            nest,
            block.path or (("body", 0),),
            f"asked to contract {buffer}",
            way_out="tile and fuse one more loop, so that fewer are",
        )
    local = fresh(f"{buffer}_t", taken_names(program, [nest]))
    body = _declared(shape, local, record.dtype, block.body(nest), buffer)
    result = program.with_nest(holders[0], nest.with_body(block.replaced(nest, body)))
    return checked(program, without_buffer(result, buffer))


def _joined(program: Program, buffer: str, holders: list[int]) -> str | None:
    """The command that joins the loops of the nests that touch the buffer, so that they share it."""
    trial = Trial(program)
    first, second = (loop_names(program.with_nests([program.nests[index]]))[:1] for index in holders[:2])
    if not first or not second:
        return None
    for shift in (None, 1, 2):
        pair = (first[0],) if first == second else (first[0], second[0])
        steps = step("fuse", *pair, shift=shift, nest=holders[0]), step("contract", buffer)
        if trial.works(*steps):
            return ", then ".join(one.text for one in steps)
    return None


READERS = {
    "value": "the layers after this one, and the user, read it",
    "grad": "the layers before this one, and the user, read it",
    "param": "the user and the solver set it",
    "param_grad": "the solver reads it",
    "state": "the next step reads it",
    "constant": "other phases read it",
    "scalar": "it is set for each run",
}
"""Role of a buffer → who reads or sets it besides the program."""


def vanishing(program: Program, buffer: str) -> tuple[Program, Buffer]:
    """The program without hints about a buffer that will be removed, and the buffer, if only the program needs it.

    Raises:
        Refused: another program or the user may read it.
    """
    record = program.buffers[buffer]
    if record.role != OWN:
        own, reader = ", ".join(own_buffers(program)), READERS.get(record.role, "another phase reads it")
        raise Refused(
            f"{buffer} ({record.name}) is not this program's alone: {reader}",
            way_out=f"the buffers that may be removed are {own}" if own else "no buffer here is this program's alone",
        )
    return program.with_nests([without_hints(nest, buffer) for nest in program.nests]), record


def own_buffers(program: Program) -> list[str]:
    """The buffers that no other program and no user reads."""
    return [name for name, record in program.buffers.items() if record.role == OWN]


def without_buffer(program: Program, buffer: str) -> Program:
    """The program without the record of a buffer that no nest touches."""
    return replace(program, buffers={name: b for name, b in program.buffers.items() if name != buffer})


# --- where ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Block:
    """A list of statements: the nest's own (path ``()``), a loop's, or a branch's."""

    path: Path
    field: str

    def body(self, nest: Nest) -> list[ast.stmt]:
        if not self.path:
            return nest.body
        found: list[ast.stmt] = getattr(at(nest.body, self.path), self.field)
        return found

    def replaced(self, nest: Nest, body: list[ast.stmt]) -> list[ast.stmt]:
        if not self.path:
            return body
        return replace_at(nest.body, self.path, [changed(at(nest.body, self.path), **{self.field: body})])


def _block(nest: Nest, known: Sequence[Statement]) -> _Block:
    """The innermost block around the statements."""
    paths = [statement.path for statement in known]
    length = min(len(path) for path in paths) - 1
    while length and any(
        path[:length] != paths[0][:length] or path[length][0] != paths[0][length][0] for path in paths
    ):
        length -= 1
    return _Block(paths[0][:length], paths[0][length][0])


def _check(nest: Nest, buffer: str, known: Sequence[Statement], block: _Block) -> None:
    where, note = block.path or (("body", 0),), f"asked to contract {buffer}"
    depth = _loops_around(nest, block)
    for statement in known:
        inner = [loop.var for loop in statement.loops[depth:] if loop.kind == "parallel"]
        if inner:
            raise refuse(
                f"the threads of {inner[0]} would share {buffer}",
                nest,
                where,
                note,
                way_out="give this command before parallelize",
            )
    try:
        witness = unwritten_read(list(known), buffer, depth)
    except NotProved:
        raise refuse(
            f"not proved that each read of {buffer} sees a write of the same iteration", nest, where, note
        ) from None
    if witness is not None:
        raise refuse(
            f"a read of {buffer} sees what another iteration, or nothing, has written",
            nest,
            where,
            note,
            witness=witness,
        )


def _loops_around(nest: Nest, block: _Block) -> int:
    path = block.path
    return sum(isinstance(at(nest.body, path[: depth + 1]), ast.For) for depth in range(len(path)))


# --- what -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Shape:
    """The part of a subscript that is the same wherever the buffer is touched, and the extent of the rest.

    Args:
        fixed: for each dimension of the buffer, the part that does not move inside the block, the lowest position
            of the rest included.
        kept: the dimensions in which something moves, and ``extents`` of these.
    """

    fixed: tuple[Affine, ...]
    kept: tuple[int, ...]
    extents: tuple[int, ...]

    @staticmethod
    def of(record: Buffer, buffer: str, known: Sequence[Statement], block: _Block) -> _Shape:
        depth = min(len(statement.loops) for statement in known)
        while depth and known[0].loop_depths[depth - 1] >= len(block.path):
            depth -= 1
        outer = [loop.var for loop in known[0].loops[:depth]]
        uses = [(s, a) for s in known for a in s.accesses if a.name == buffer]
        spans = box(uses, record, outer) or [Span(Affine(), 1)] * len(record.shape)  # if nothing ever runs
        kept = tuple(dim for dim, span in enumerate(spans) if span.extent > 1)
        return _Shape(tuple(span.start for span in spans), kept, tuple(spans[dim].extent for dim in kept))

    def element(self, local: str, node: ast.Subscript) -> ast.expr:
        """Replaces a reference by the local, or its element."""
        if not self.kept:
            return ast.Name(local, node.ctx)
        indices = subscripts(node)
        new_indices = []
        for dim in self.kept:
            form, start = affine(indices[dim]), self.fixed[dim]
            if form is not None:
                new_indices.append(form.add(start, -1).to_expr())
            else:  # out of an index buffer
                zero = not start.terms and not start.constant
                new_indices.append(indices[dim] if zero else expr("i - s", i=indices[dim], s=start.to_expr()))
        return reference(local, new_indices, isinstance(node.ctx, ast.Store))


class _Locals(Transformer):
    def __init__(self, buffer: str, local: str, shape: _Shape):
        self.buffer, self.local, self.shape = buffer, local, shape

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == self.buffer:
            return self.shape.element(self.local, node)
        return self.generic_visit(node)


def _declared(shape: _Shape, local: str, dtype: str, block: list[ast.stmt], buffer: str) -> list[ast.stmt]:
    """The block with the local instead of the buffer, declared where it is first touched."""
    rewrite = _Locals(buffer, local, shape)
    first = next(i for i, s in enumerate(block) if buffer in names_in(s))
    new = [rewrite.visit(clone(s)) if buffer in names_in(s) else s for s in block]
    start = new[first]
    if shape.kept:
        head: list[ast.stmt] = [declare(local, LocalType(dtype, shape.extents))]
    elif isinstance(start, ast.Assign) and isinstance(start.targets[0], ast.Name) and start.targets[0].id == local:
        return [*new[:first], declare(local, LocalType(dtype), start.value), *new[first + 1 :]]
    else:  # set in a loop or a branch: what it starts with is never read
        head = [declare(local, LocalType(dtype), expr(_START.get(dtype, 0.0)))]
    return [*new[:first], *head, *new[first:]]


def stored_between(program: Program, keep: Sequence[str] = ()) -> list[str]:
    """Why buffers that nothing else reads have not been contracted, one sentence each."""
    result = []
    for name in own_buffers(program):
        if name not in keep and any(name in nest.arguments for nest in program.nests):
            try:
                contracted(explicit(program), name)
            except Refused as refusal:
                result.append(f"{name} stays in memory: {refusal.message}")
    return result
