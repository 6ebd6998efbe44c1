"""Reorder steps: a copy of a buffer in a layout of the reader's own, where another layer has laid the buffer out."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from swirl.ir.affine import simplify
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Nest, Program, expr, for_loop, fresh, make_nest, reference
from swirl.ir.statements import statements
from swirl.transforms.command import COMMANDS
from swirl.transforms.rewrites.checked import checked
from swirl.transforms.rewrites.filling import fills
from swirl.transforms.rewrites.sites import loop_names, taken_names


@dataclass(frozen=True)
class Reorder:
    """A buffer of a phase that is a copy, until :func:`with_copies` says so in nests.

    Args:
        buffer: its name in the nests.
        storage: what it is a copy of.
        filling: whether the nests read what was there before.
        writing: whether they write.
    """

    buffer: str
    storage: Buffer
    filling: bool
    writing: bool

    def told(self, program: Program) -> str:
        """What it costs: ``forward: conv1.value lies plainly: copied to lie in blocks of 16 in dimension 1, …``."""
        copy = program.buffers[self.buffer]
        phase, there = program.name.split(".")[-1], f"{self.storage.name} lies {_shown(self.storage)}"
        back = " and back" if self.filling and self.writing else ""
        size = (self.filling + self.writing) * (self.storage.nbytes + copy.nbytes) / 1e6
        return f"{phase}: {there}: copied to lie {_shown(copy)}{back}, {size:.1f} MB moved"


def reorder_step(program: Program, buffer: str) -> Reorder:
    """What is to be copied when ``program``, which has ``buffer`` as its owner lays it out, gets it otherwise."""
    return Reorder(buffer, program.buffers[buffer], *_needs(program, buffer))


def unblocked(program: Program, buffer: str, dim: object, factor: object) -> Program:
    """``program`` with a dimension whole that is in blocks of another size than ``factor``."""
    storage = program.buffers[buffer]
    blocks = storage.layout.blocks
    other = [b for b in blocks if isinstance(dim, int) and b[0] == dim + storage.batch_dims and b[1] != factor]
    left = replace(storage.layout, blocks=tuple(block for block in blocks if block not in other))
    return program.with_buffers(**{buffer: storage.with_layout(left)})


def with_copies(program: Program, reorder: Reorder, lanes: int) -> Program:
    """``program`` on a buffer of its own, with the nests that copy: in front of the others if they read what was there
    before, and behind them if they write.

    rewrite (inputs in blocks of 16, stored plainly):
                                            for n in parallel(N):
                                                for c_outer in parallel(C // 16): …
                                    →                   inputs[n, c, y, x] = inputs_stored[n, c, y, x]
        s(inputs[n, c, y, x])               s(inputs[n, c, y, x])

    Args:
        program: one phase of a layer, behind its recipe.
        reorder: what is to be copied.
        lanes: of the vector loops that copy.
    """
    stored = fresh(f"{reorder.buffer}_stored", taken_names(program))
    copy = replace(program.buffers[reorder.buffer], name=f"{program.name}.{reorder.buffer}")
    buffers = {**program.buffers, reorder.buffer: copy, stored: reorder.storage}
    nests: list[Nest] = []
    if reorder.filling:
        nests += _copying(program, reorder.buffer, stored, buffers, lanes)
    nests += program.nests
    if reorder.writing:
        nests += _copying(program, stored, reorder.buffer, buffers, lanes)
    return checked(program, replace(program, nests=tuple(nests), buffers=buffers))


def _needs(program: Program, buffer: str) -> tuple[bool, bool]:
    """Whether the program reads what was in the buffer before, and whether it writes it."""
    filled, writing = False, False
    first = True
    for nest in program.nests:
        touching = [
            (statement, access)
            for statement in statements(nest.body)
            for access in statement.accesses
            if access.name == buffer
        ]
        if touching and first:
            first = False
            everything = list(range(len(program.buffers[buffer].shape)))
            # Of one statement, reads come before the write.
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
    """The element at ``variables`` of an array of ``shape``, where it is seen with neighbouring dimensions joined."""
    position, result = 0, []
    for extent in seen:
        text, size, position = variables[position], shape[position], position + 1
        while size < extent:
            text, size = f"({text}) * {shape[position]} + {variables[position]}", size * shape[position]
            position += 1
        result.append(simplify(expr(text)))
    return result


def _shown(buffer: Buffer) -> str:
    layout = buffer.layout
    parts = [f"in blocks of {factor} in dimension {dim}" for dim, factor in layout.blocks]
    parts += [f"in the order {layout.order}"] if layout.order else []
    parts += ["with zeros around"] if layout.halo else []
    return " and ".join(parts) or "plainly"
