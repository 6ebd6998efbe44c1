"""store_local: a local is kept in a buffer, with an element for each iteration of the loops around it."""

from __future__ import annotations

import ast
from math import prod

from swirl.analysis.integers import LARGEST
from swirl.errors import CommandError
from swirl.ir.affine import simplify_body
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Loop, Program, fresh, local_type, loop_of, make_nest, variable_of
from swirl.ir.paths import Path, at, loops
from swirl.ir.printing import unparse
from swirl.transforms.arguments import LocalNames, NestName
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.sites import taken_names
from swirl.transforms.rewrites.storage.local_arrays import ExpandedLocal, declarations, no_local

_NOTE = "asked for one element an iteration"


@command()
def store_local(program: Program, scalar_vars: LocalNames, *, nest: NestName | None = None) -> Program:
    """Keep a local in a buffer, with one element for each iteration of the loops around it, so that distribute makes
    nests of what is before, between and after its uses.

    rewrite (scalar_vars = "t"):
        for n in range(N):                  for n in range(N):
            t: float32 = x[n]       →           t[n] = x[n]
            y[n] = t                            y[n] = t[n]

    It is the inverse of ``contract``. ``scalar_expand`` does the same for one loop, in an array on the stack.

    Args:
        scalar_vars: one local, or several.
        nest: only in this nest (index or label).

    Raises:
        CommandError: no such local.
        Refused: no loop is around the declaration, or one that has no constant extent, or is a parallel, vector or
            unrolled loop; or the buffer would be larger than 32 bits can count.

    Source: Allen, Kennedy, *Optimizing Compilers for Modern Architectures*, section 5.3 (scalar expansion).
    """
    names = [scalar_vars] if isinstance(scalar_vars, str) else list(dict.fromkeys(scalar_vars))
    if not names:
        raise CommandError("store_local takes the names of locals, not an empty list")
    result = program
    for name in names:
        found = False
        for index, target in enumerate(program.nests):
            if nest is None or nest in (index, target.label):
                while (path := next(declarations(result.nests[index], name), None)) is not None:
                    result, found = _stored(result, index, path), True
        if not found:
            raise no_local(program, name)
    return checked(program, result)


def _stored(program: Program, index: int, declared: Path) -> Program:
    """The program with the local that is declared at a path in a buffer."""
    nest = program.nests[index]
    node = at(nest.body, declared)
    assert isinstance(node, ast.AnnAssign)
    name, type_ = unparse(node.target), local_type(node)
    around: list[Loop] = []
    for path, head in loops(nest.body):
        if declared[: len(path)] == path:
            around.append(loop_of(head))
            if around[-1].kind != "range":
                what = f"{around[-1].var} is a {around[-1].kind} loop"
                raise refuse(what, nest, path, _NOTE, way_out="give this command before the one that made it so")
            if around[-1].extent is None:
                raise refuse(f"the bounds of {around[-1].var} are not constant", nest, path, _NOTE)
    if not around:
        raise refuse(f"no loop is around the declaration of {name}", nest, declared, "the declaration")
    shape = (*(loop.extent or 0 for loop in around), *type_.shape)
    if prod(shape) > LARGEST:
        raise refuse(f"a buffer of {prod(shape):,} elements is too large", nest, declared, "the declaration")
    elsewhere = any(name in other.names for other in program.nests if other is not nest)
    again = len([*declarations(nest, name)]) > 1 or any(variable_of(head) == name for _, head in loops(nest.body))
    new = fresh(name, taken_names(program)) if elsewhere or again else name
    body = nest.body
    for position, loop in enumerate(reversed(around)):
        body = ExpandedLocal.over(loop, new if position else name, new).in_place(body, declared)
    program = program.with_buffers(**{new: Buffer(f"{program.name}.{new}", shape, type_.dtype, "temporary")})
    return program.with_nest(index, make_nest(nest.label, simplify_body(body), program.buffers))
