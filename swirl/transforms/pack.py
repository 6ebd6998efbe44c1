"""pack: a rearranged copy of a buffer, for a phase that reads it in another order than the one it is stored in."""

from __future__ import annotations

import ast

from swirl.errors import CommandError
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Nest, Program, clones, for_loop, fresh, make_nest, nodes, reference
from swirl.ir.statements import statements
from swirl.transforms.base import checked, command, refuse, taken_names


@command()
def pack(program: Program, buffer: str, *, name: str | None = None) -> Program:
    """Copy a buffer that the phase only reads, and read the copy, which can have a layout of its own.

    rewrite:
                                            for w_packed_dim0 in range(K):
        for k in range(K):                      for w_packed_dim1 in range(C):
            for c in range(C):      →               w_packed[w_packed_dim0, w_packed_dim1] =
                s(w[k, c])                              w[w_packed_dim0, w_packed_dim1]
                                            for k in range(K):
                                                for c in range(C):
                                                    s(w_packed[k, c])

    The copy is a nest of its own, in front of the first that reads the buffer; ``tile`` lays the copy out, and
    strip-mines its loops.

    Args:
        buffer: name of the buffer.
        name: of the copy; by default ``<buffer>_packed``.

    Raises:
        CommandError: no such buffer, or the name is taken.  Refused: the phase writes the buffer.

    Source: Goto, van de Geijn, *Anatomy of high-performance matrix multiplication*, 2008, section 3.
    """
    readers = [index for index, nest in enumerate(program.nests) if buffer in nest.arguments]
    if not readers:
        raise CommandError(f"{program.name} does not read {buffer!r}",
                           way_out=f"the buffers are {', '.join(program.buffers)}")  # fmt: skip
    taken = taken_names(program)
    name = name or fresh(f"{buffer}_packed", taken)
    if not name.isidentifier() or name in taken:
        raise CommandError(f"{name!r} cannot name the copy: it means something already")
    for index in readers:
        _check_only_read(program.nests[index], buffer)
    source = program.buffers[buffer]
    copy = Buffer(f"{program.name}.{name}", source.shape, source.dtype, "temporary")
    program = program.with_buffers(**{name: copy})
    nests = list(program.nests)
    for index in readers:
        nests[index] = _renamed(program, nests[index], buffer, name)
    nests.insert(readers[0], _copy_nest(program, buffer, name))
    return checked(program, program.with_nests(nests))


def _check_only_read(nest: Nest, buffer: str) -> None:
    for statement in statements(nest.body):
        if any(access.name == buffer and access.kind != "read" for access in statement.accesses):
            raise refuse(f"{buffer} is written here, the copy would not be", nest, statement.path, "writes it")


def _renamed(program: Program, nest: Nest, old: str, new: str) -> Nest:
    body = clones(nest.body)
    for statement in body:
        for node in nodes(statement):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == old:
                node.value = ast.Name(new, ast.Load())
    return make_nest(nest.label, body, program.buffers)


def _copy_nest(program: Program, source: str, copy: str) -> Nest:
    shape = program.buffers[copy].shape
    taken = taken_names(program)
    variables = [fresh(f"{copy}_dim{dimension}", taken) for dimension in range(len(shape))]
    indices: list[ast.expr] = [ast.Name(variable, ast.Load()) for variable in variables]
    body: list[ast.stmt] = [ast.Assign([reference(copy, indices, True)], reference(source, clones(indices)))]
    for variable, extent in reversed(list(zip(variables, shape, strict=True))):
        body = [for_loop(variable, extent, body)]
    return make_nest(f"{program.name.replace('.', '_')}_{copy}", body, program.buffers)
