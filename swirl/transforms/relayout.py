"""Reorder steps: a copy of a buffer in the reader's layout, where another layer has laid the buffer out."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from swirl.analysis.statements import statements_of
from swirl.ir.affine import simplify
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.nest import Nest, Program, expr, for_loop, fresh, make_nest, reference
from swirl.transforms.command import COMMANDS
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.sites import loop_names, taken_names
from swirl.transforms.rewrites.storage.filling import fills


@dataclass(frozen=True)
class Copy:
    """A region's own storage that one phase uses instead of another layer's; :func:`with_copies` makes the nests that
    copy.

    Args:
        local: its name in the nests.
        storage: of the copy.
        source: the storage that it copies; the plan knows its layout.
        filling: whether the nests read what was there before.
        writing: whether they write.
    """

    local: str
    storage: str
    source: Buffer
    filling: bool
    writing: bool

    def cost_text(self, phase: str, source: Layout, copy: Layout) -> str:
        """What it costs: ``forward: conv1.value is plain: copied to a layout that is blocked by 16 in dimension 1, …``.

        Args:
            phase: that copies.
            source: how the source is laid out.
            copy: how the copy is.
        """
        there = f"{self.source.name} is {_shown(source)}"
        back = ", and back" if self.filling and self.writing else ""
        size = sum(self.source.with_layout(layout).nbytes for layout in (source, copy))
        megabytes = (self.filling + self.writing) * size / 1e6
        return f"{phase}: {there}: copied to a layout that is {_shown(copy)}{back}, {megabytes:.1f} MB moved"


def copied(program: Program, local: str, storage: str) -> Copy:
    """What must be copied if ``program`` gets its own storage for a buffer."""
    return Copy(local, storage, program.buffers[local], *_needs(program, local))


def unblocked(program: Program, buffer: str, dim: object, factor: object) -> Program:
    """``program`` without the blocks of a dimension that have another size than ``factor``."""
    storage = program.buffers[buffer]
    blocks = storage.layout.blocks
    other = [b for b in blocks if isinstance(dim, int) and b[0] == dim + storage.batch_dims and b[1] != factor]
    left = replace(storage.layout, blocks=tuple(block for block in blocks if block not in other))
    return program.with_buffers(**{buffer: storage.with_layout(left)})


def with_copies(program: Program, copy: Copy, source: Layout, lanes: int) -> Program:
    """``program`` with the nests that copy: before the others if they read what was there before, and after them if
    they write.

    rewrite (inputs are blocked by 16, and stored plain):
                                            for n in parallel(N):
                                                for c_outer in parallel(C // 16): …
                                    →                   inputs[n, c, y, x] = inputs_stored[n, c, y, x]
        s(inputs[n, c, y, x])               s(inputs[n, c, y, x])

    Args:
        program: one phase of a region, after its recipe.
        copy: what must be copied.
        source: how the source is laid out.
        lanes: of the vector loops that copy.
    """
    original = fresh(f"{copy.local}_stored", taken_names(program))
    buffers = {**program.buffers, original: copy.source.with_layout(source)}
    nests: list[Nest] = []
    if copy.filling:
        nests += _copying(program, copy.local, original, buffers, lanes)
    nests += program.nests
    if copy.writing:
        nests += _copying(program, original, copy.local, buffers, lanes)
    return checked(program, replace(program, nests=tuple(nests), buffers=buffers))


def _needs(program: Program, buffer: str) -> tuple[bool, bool]:
    """Whether the program reads what was in the buffer before, and whether it writes it."""
    filled, writing = False, False
    first = True
    for nest in program.nests:
        touching = [
            (statement, access)
            for statement in statements_of(nest)
            for access in statement.accesses
            if access.name == buffer
        ]
        if touching and first:
            first = False
            everything = list(range(len(program.buffers[buffer].shape)))
            # Reads of a statement come before its write.
            filled = fills(touching, everything, program.buffers[buffer], 0)
        writing = writing or any(access.kind != "read" for _, access in touching)
    return not filled, writing


def _copying(program: Program, into: str, source: str, buffers: dict[str, Buffer], lanes: int) -> tuple[Nest, ...]:
    """The nest that copies one buffer to another one: threads share the outer loops, lanes store neighbours."""
    target = buffers[into]
    shape = max(target.shape, buffers[source].shape, key=len)  # the recipe may have flattened its copy
    taken = taken_names(program) | {into, source}
    variables = [fresh(f"{into}_dim{dimension}", taken) for dimension in range(len(shape))]
    left, right = (_subscripts(variables, shape, buffers[name].shape) for name in (into, source))
    body: list[ast.stmt] = [ast.Assign([reference(into, left, True)], reference(source, right))]
    for variable, extent in reversed(list(zip(variables, shape, strict=True))):
        body = [for_loop(variable, extent, body)]
    used = {into: target, source: buffers[source]}
    label = f"{program.name.replace('.', '_')}_{into}_from_{source}"
    made = Program(program.name, (make_nest(label, body, used),), used)
    blocks = dict(target.layout.blocks)
    for dimension, factor in (dict(buffers[source].layout.blocks) | blocks).items():
        made = COMMANDS["tile_loop"](made, variables[dimension], factor)
    inner = [f"{variables[dimension]}_inner" for dimension in blocks]
    cut = {variable: [f"{variable}_outer", f"{variable}_inner"] for variable in variables}
    known = loop_names(made)
    outer = [variables[dimension] for dimension in target.layout.order or range(len(target.shape))]
    joined = [variable for variable in variables if variable not in outer]
    order = [loop for variable in (*outer, *joined) for loop in (variable, *cut[variable]) if loop in known]
    order = [*(loop for loop in order if loop not in inner), *inner]
    if order != known:
        made = COMMANDS["reorder"](made, order)
    made = COMMANDS["vectorize"](made, order[-1], lanes, strided="gather")
    if order[:-1]:
        made = COMMANDS["parallelize"](made, order[:-1][:2])
    return made.nests


def _subscripts(variables: list[str], shape: tuple[int, ...], seen: tuple[int, ...]) -> list[ast.expr]:
    """The element at ``variables`` of an array of ``shape``, if it is seen with neighbouring dimensions joined."""
    position, result = 0, []
    for extent in seen:
        text, size, position = variables[position], shape[position], position + 1
        while size < extent:
            text, size = f"({text}) * {shape[position]} + {variables[position]}", size * shape[position]
            position += 1
        result.append(simplify(expr(text)))
    return result


def _shown(layout: Layout) -> str:
    parts = [f"blocked by {factor} in dimension {dim}" for dim, factor in layout.blocks]
    parts += [f"permuted to {layout.order}"] if layout.order else []
    parts += ["padded with zeros"] if layout.halo else []
    return " and ".join(parts) or "plain"
