"""From reversed nests to a program: where adjoint buffers start, names, labels."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from latte.autodiff.prepare import Body, assign
from latte.autodiff.uses import sites, uses_of
from swirl.analysis.coverage import touches_all_once
from swirl.ir.buffers import Buffer
from swirl.ir.nest import (
    Program,
    clone,
    clones,
    constant,
    counting,
    expr,
    make_nest,
    names_in,
    nested,
    reference,
    references,
    subscripts,
)
from swirl.ir.paths import Path
from swirl.ir.trees import changed, name_of, nodes

ACCUMULATE = Buffer("net.accumulate", (1,), "int32", "scalar")


@dataclass(frozen=True)
class Variables:
    """What a layer's forward program is differentiated by.

    Args:
        inputs: the buffers that it reads from other layers.
        params: its parameters.
        output: the buffer whose gradient is given.
        add_to: those of both whose gradient has been started by another layer.
    """

    inputs: Sequence[str]
    params: Sequence[str]
    output: str
    add_to: Collection[str]


@dataclass(frozen=True)
class Gradients:
    """What the gradients of a phase belong to.

    Args:
        forward: the forward program.
        adjoints: buffers of gradients, each with its forward buffer.
        wanted: the forward buffers whose gradients the phase computes.
        by: the variables of the whole derivative.
    """

    forward: Program
    adjoints: Mapping[str, str]
    wanted: Collection[str]
    by: Variables

    def buffer(self, adjoint: str, of: str) -> Buffer:
        """The buffer of a gradient."""
        buffer, ensemble = self.forward.buffers[of], self.forward.name.split(".")[0]
        if adjoint == "grad" or of in self.by.inputs:
            stem = ensemble if adjoint == "grad" else buffer.name.removesuffix(".value")
            return replace(buffer, name=f"{stem}.grad", role="grad", per_item=True)
        if of in self.by.params:
            owner, _, field = buffer.name.rpartition(".")
            return replace(buffer, name=f"{owner or ensemble}.grad_{field}", role="param_grad", per_item=True)
        return Buffer(f"{ensemble}.{adjoint}", buffer.shape, buffer.dtype, "temporary", items=buffer.items)


def finish(name: str, nests: list[Body], gradients: Gradients) -> Program | None:
    """The program ``name`` of the reversed ``nests``, with a first value for every gradient, as its kind demands.

    Gradients in ``add_to`` add to what is there, those of parameters only where ``accumulate[0]`` is not zero; all
    others start at zero, or are assigned by the one statement that meets each element first. Gradients of ``wanted``
    inputs that the output does not depend on are zero, so that other readers may add to them.
    """
    forward = gradients.forward
    buffers: dict[str, Buffer] = {}
    starts: list[tuple[int, Body]] = []
    for adjoint, of in gradients.adjoints.items():
        buffers[adjoint] = gradients.buffer(adjoint, of)
        where = _first_nest(nests, adjoint)
        if where is None or adjoint == "grad" or of in gradients.by.add_to:
            continue
        if of == gradients.by.output:
            buffers["grad"] = gradients.buffer("grad", of)
        nests, start = _started(nests, where, adjoint, gradients)
        if start is not None:
            starts.append((where, [start]))
    for where, body in sorted(starts, key=lambda pair: -pair[0]):
        nests = [*nests[:where], body, *nests[where:]]
    for of in gradients.wanted:
        adjoint, reads = f"grad_{of}", of in gradients.by.inputs and of in forward.buffers
        if reads and of not in gradients.by.add_to and _first_nest(nests, adjoint) is None:
            buffers[adjoint] = gradients.buffer(adjoint, of)
            nests = [[_fill(adjoint, forward.buffers[of], nests, expr("0.0"))], *nests]
    everything = {**buffers, **forward.buffers, **buffers, "accumulate": ACCUMULATE}
    label = name.replace(".", "_")
    made = [make_nest(f"{label}_{index}", clones(body), everything) for index, body in enumerate(nests)]
    if not made:
        return None
    used = {argument for nest in made for argument in nest.arguments}
    kept = {key: buffer for key, buffer in everything.items() if key in used}
    return Program(name, tuple(made), kept, dict(forward.aliases))


def _started(nests: list[Body], where: int, adjoint: str, gradients: Gradients) -> tuple[list[Body], ast.stmt | None]:
    """The nests with the first values of a gradient; or the statement that sets them, to be put before the nest
    ``where``."""
    of = gradients.adjoints[adjoint]
    buffer = gradients.forward.buffers[of]
    if of in gradients.by.params:
        return nests, _fill(adjoint, buffer, nests, expr("0.0"), keep=True)
    if of == gradients.by.output:
        first = _from_output(nests[where], adjoint, buffer)
        if first is not None:
            return [*nests[:where], first, *nests[where + 1 :]], None
        return nests, _fill(adjoint, buffer, nests, expr("0.0"), copied="grad")
    assigned = _assigned(nests, adjoint, buffer)
    return (nests, _fill(adjoint, buffer, nests, expr("0.0"))) if assigned is None else (assigned, None)


def _from_output(nest: Body, adjoint: str, buffer: Buffer) -> Body | None:
    """``nest`` reading ``grad`` itself, if it sets each element once and reads it only before that."""
    users = uses_of(adjoint, sites([nest]))
    setting = [user for user in users if not user.reads]
    if len(setting) != 1 or isinstance(setting[0].site.node, ast.AugAssign):
        return None
    site = setting[0].site
    for user in users:
        same_block = user.site.path[:-1] == site.path[:-1] and user.site.path <= site.path
        if not same_block or user.text != setting[0].text:
            return None
    return _read_grad(nest, adjoint) if touches_all_once(site, setting[0].access, buffer.shape) else None


def _read_grad(nest: Body, adjoint: str) -> Body:
    """``nest`` with ``adjoint[…]`` read as ``grad[…]``."""
    new = [clone(statement) for statement in nest]
    for statement in new:
        for found in references(statement):
            if isinstance(found.ctx, ast.Load) and name_of(found) == adjoint:
                found.value = ast.Name("grad", ast.Load())
    return new


def _first_nest(nests: list[Body], name: str) -> int | None:
    for index, body in enumerate(nests):
        if any(isinstance(node, ast.Name) and node.id == name for s in body for node in nodes(s)):
            return index
    return None


def _fill(
    adjoint: str,
    buffer: Buffer,
    nests: list[Body],
    value: ast.expr,
    *,
    keep: bool = False,
    copied: str | None = None,
) -> ast.stmt:
    """Loops that set all of ``adjoint``: to ``value``, to another buffer, or to what is to be kept."""
    variables = _variables(adjoint, buffer, nests)
    indices: list[ast.expr] = [ast.Name(v, ast.Load()) if v else ast.Constant(0) for v in variables]
    target = reference(adjoint, indices)
    if keep:
        value = expr("g if accumulate[0] != 0 else 0.0", g=target)
    if copied:
        value = reference(copied, indices)
    loops = (loop for loop in counting(variables, buffer.shape) if loop.var)
    (statement,) = nested(loops, [assign(target, value)])
    return statement


def _variables(adjoint: str, buffer: Buffer, nests: list[Body]) -> list[str]:
    """Names for the loops over a buffer: those of its users, where they are plain and different.

    No loop (an empty name) over a dimension of extent 1 that all users index with 0.
    """
    names: list[str] = []
    users = uses_of(adjoint, sites(nests))
    taken = set().union(*(names_in(statement) for nest in nests for statement in nest))
    for axis in range(len(buffer.shape)):
        found = ""
        if buffer.shape[axis] == 1 and all(constant(user.indices[axis]) == 0 for user in users):
            names.append("")
            continue
        for user in users:
            index = user.indices[axis]
            if isinstance(index, ast.Name) and index.id not in names and index.id in user.site.variables():
                found = index.id
                break
        while not found:
            candidate = f"i{axis}"
            while candidate in taken or candidate in names:
                candidate += "_"
            found = candidate
        names.append(found)
    return names


def _assigned(nests: list[Body], adjoint: str, buffer: Buffer) -> list[Body] | None:
    """``nests`` with the first ``+=`` to ``adjoint`` made ``=`` where it meets every element once, first."""
    users = uses_of(adjoint, sites(nests))
    first = users[0]
    statement = first.site.node
    if first.reads or not touches_all_once(first.site, first.access, buffer.shape):
        return None
    if isinstance(statement, ast.Assign):
        return nests
    if not isinstance(statement, ast.AugAssign):
        return None
    others = [user for user in users if user.site is not first.site]
    if any(other.meets_later(first) for other in others):
        return None
    value = statement.value if isinstance(statement.op, ast.Add) else ast.UnaryOp(ast.USub(), statement.value)
    target = reference(adjoint, subscripts(statement.target))  # type: ignore[arg-type]
    return [_swap(nest, (("body", index),), first.site.path, assign(target, value)) for index, nest in enumerate(nests)]


def _swap(body: Body, prefix: Path, path: Path, new: ast.stmt, field: str = "body") -> Body:
    result = []
    for index, statement in enumerate(body):
        here = (*prefix, (field, index))
        if here == path:
            result.append(new)
            continue
        if path[: len(here)] == here and isinstance(statement, (ast.For, ast.If)):
            body, orelse = _swap(statement.body, here, path, new), _swap(statement.orelse, here, path, new, "orelse")
            statement = changed(statement, body=body, orelse=orelse)
        result.append(statement)
    return result
