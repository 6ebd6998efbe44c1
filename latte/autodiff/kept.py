"""Forward programs that keep a value for backward: a local, or a buffer's value before it is written over."""

from __future__ import annotations

import ast
from collections.abc import Collection

from latte.autodiff.order import accesses, covers_once, meets_later
from latte.autodiff.prepare import all_sites, assign, edit_block, edited, load, plain_updates, rebuild
from latte.autodiff.terms import name_of
from latte.autodiff.tidy import written_names
from swirl.errors import DerivativeError
from swirl.ir.buffers import Buffer
from swirl.ir.nest import (
    Path,
    Program,
    clone,
    constant,
    expr,
    fresh,
    make_nest,
    names_in,
    reference,
    substitute,
)


def keep_local(program: Program, local: str) -> Program:
    """``kept_<local>[…] = local`` after the local's last change, one element an iteration.

    Raises:
        DerivativeError: a loop around it has no constant length.
    """
    nests = [list(nest.body) for nest in program.nests]
    home = next(
        site
        for site in all_sites(nests)
        if isinstance(site.statement, ast.AnnAssign)
        and isinstance(site.statement.target, ast.Name)
        and site.statement.target.id == local
    )
    shape, indices = [], []
    for _, loop in home.loops:
        if loop.extent is None or loop.step != 1:
            raise DerivativeError(
                f"{local} cannot be kept: the loop over {loop.var} has no constant length",
                place=program.name,
                way_out=f"recompute=['{local}']",
            )
        shape.append(loop.extent)
        variable = ast.Name(loop.var, ast.Load())
        indices.append(variable if constant(loop.start) == 0 else expr("v - s", v=variable, s=loop.start))
    name = fresh(f"kept_{local}", _taken(program))
    assert isinstance(home.statement, ast.AnnAssign)
    dtype = ast.unparse(home.statement.annotation)
    buffer = Buffer(f"{program.name.split('.')[0]}.{name}", tuple(shape) or (1,), dtype, "value")
    store = assign(reference(name, indices or [expr(0)]), ast.Name(local, ast.Load()))

    def edit(body: list[ast.stmt]) -> list[ast.stmt]:
        last = max(index for index, statement in enumerate(body) if local in written_names([statement]))
        return [*body[: last + 1], store, *body[last + 1 :]]

    index = home.path[0][1]
    nests[index] = edit_block(nests[index], home.path[1:-1], home.path[-1][0], edit)
    buffers = {**program.buffers, name: buffer}
    made = [make_nest(old.label, body, buffers) for old, body in zip(program.nests, nests, strict=True)]
    return Program(program.name, tuple(made), buffers, program.aliases, program.commands)


def keep_version(program: Program, name: str, nest: int) -> tuple[Program, str] | None:
    """The program with the value of buffer ``name`` before the nest number ``nest`` in a buffer of its own.

    Earlier nests then write that buffer, and what the nest reads before it sets an element comes from there.
    Possible where the nest's first statement that writes the buffer sets every element once; None elsewhere.
    """
    if name not in program.buffers:
        return None
    nests = [list(n.body) for n in program.nests]
    nests[nest] = rebuild(rebuild(nests[nest], plain_updates), lambda s: [_as_assignment(s, name)])
    found = [a for site in all_sites(nests) for a in accesses(site) if a.name == name and a.indices]
    here = [a for a in found if a.site.path[0][1] == nest]
    writes = [a for a in here if a.kind != "read"]
    if not writes or not any(a.kind != "read" and a.site.path[0][1] < nest for a in found):
        return None
    first = min(writes, key=lambda a: a.site.path)
    if first.kind != "set" or not covers_once(first.site, first.indices, program.buffers[name].shape):
        return None
    old = fresh(f"{name}_before", _taken(program))
    before: dict[Path, tuple[ast.stmt, set[str]]] = {}
    for access in here:
        if access is first:
            continue
        earlier = access.site is first.site or meets_later(access, first)
        if earlier and (access.kind != "read" or meets_later(first, access)):
            return None
        if earlier:  # other reads in the statement may come after the element is set
            _, texts = before.setdefault(access.site.path, (access.site.statement, set()))
            texts.add(ast.unparse(reference(name, list(access.indices))))
    if any(isinstance(statement, ast.If) for statement, _ in before.values()):
        return None
    edits = {path: [_Reads(texts, old).visit(clone(statement))] for path, (statement, texts) in before.items()}
    nests[nest] = edited(nests, edits)[nest]
    buffer = program.buffers[name]
    kept = Buffer(f"{buffer.name.rsplit('.', 1)[0]}.{old}", buffer.shape, buffer.dtype, "value")
    buffers = {**program.buffers, old: kept}
    made = []
    for index, body in enumerate(nests):
        if index < nest:
            body = [substitute(statement, {name: expr(old)}) for statement in body]
        made.append(make_nest(program.nests[index].label, body, buffers))
    return Program(program.name, tuple(made), buffers, program.aliases, program.commands), old


def _as_assignment(statement: ast.stmt, name: str) -> ast.stmt:
    """``name[…] += e`` → ``name[…] = name[…] + e``."""
    if not isinstance(statement, ast.AugAssign) or name_of(statement.target) != name:
        return statement
    target = load(statement.target)
    return assign(target, ast.BinOp(target, ast.Add(), statement.value))


class _Reads(ast.NodeTransformer):
    """References of these texts are to ``old`` where they are read."""

    def __init__(self, texts: Collection[str], old: str):
        self.texts, self.old = texts, old

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        known = isinstance(node.ctx, ast.Load) and ast.unparse(node) in self.texts
        self.generic_visit(node)
        if known:
            node.value = ast.Name(self.old, ast.Load())
        return node


def _taken(program: Program) -> set[str]:
    return set(program.buffers).union(*(names_in(s) for n in program.nests for s in n.body), set())
