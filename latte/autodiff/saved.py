"""Forward programs that keep a value for backward: a local, or a buffer's value before it is overwritten."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Sequence

from latte.autodiff.prepare import assign, edited, plain_updates, rebuild
from latte.autodiff.uses import Use, sites, uses_of
from swirl.analysis.coverage import touches_all_once
from swirl.analysis.statements import Statement
from swirl.errors import DerivativeError
from swirl.ir.buffers import Buffer
from swirl.ir.names import changed_in
from swirl.ir.nest import Loop, Program, clone, constant, expr, fresh, make_nest, reference, substitute
from swirl.ir.paths import Path, edit_block
from swirl.ir.polynomial import polynomial
from swirl.ir.printing import unparse
from swirl.ir.trees import as_value, name_of
from swirl.transforms.rewrites.sites import taken_names


def save_local(program: Program, local: str, taken: Collection[str] = ()) -> Program:
    """``kept_<local>[…] = local`` after the local's last change, one element for each iteration.

    ``taken`` has names that the array must not get, beside those in the program.

    Raises:
        DerivativeError: a loop around it has no constant length.
    """
    nests = [list(nest.body) for nest in program.nests]
    home = next(
        site
        for site in sites(nests)
        if isinstance(site.node, ast.AnnAssign)
        and isinstance(site.node.target, ast.Name)
        and site.node.target.id == local
    )
    shape, indices = [], []
    for loop in _as_an_array(home.loops, [site for site in sites(nests) if site.path[0] == home.path[0]]):
        if loop.extent is None or loop.step != 1:
            raise DerivativeError(
                f"{local} cannot be kept: the loop over {loop.var} has no constant length",
                location=program.name,
                way_out=f"recompute=['{local}']",
            )
        shape.append(loop.extent)
        variable = ast.Name(loop.var, ast.Load())
        indices.append(variable if constant(loop.start) == 0 else expr("v - s", v=variable, s=loop.start))
    name = fresh(f"kept_{local}", taken_names(program).union(taken))
    assert isinstance(home.node, ast.AnnAssign)
    dtype = unparse(home.node.annotation)
    buffer = Buffer(f"{program.name.split('.')[0]}.{name}", tuple(shape) or (1,), dtype, "value")
    store = assign(reference(name, indices or [expr(0)]), ast.Name(local, ast.Load()))

    def edit(body: list[ast.stmt]) -> list[ast.stmt]:
        last = max(index for index, statement in enumerate(body) if local in changed_in(statement))
        return [*body[: last + 1], store, *body[last + 1 :]]

    index = home.path[0][1]
    nests[index] = edit_block(nests[index], home.path[1:], edit)
    buffers = {**program.buffers, name: buffer}
    made = [make_nest(old.label, body, buffers) for old, body in zip(program.nests, nests, strict=True)]
    return Program(program.name, tuple(made), buffers, program.aliases, program.commands)


def multiple_of(program: Program, local: str, keepable: Collection[str]) -> str:
    """The local to keep for ``local``: a multiple of it, as a mean is of a sum, where nothing else reads it. Backward
    then has the multiple in the bits that forward had.

    Args:
        keepable: locals that may be kept.
    """
    every = sites([list(nest.body) for nest in program.nests])
    home = next(site for site in every if local in site.changed)
    readers = [site for site in every if local in site.touched - site.changed]
    if len(readers) != 1 or readers[0].path[:-1] != home.path[:-1]:
        return local
    first, reader = home.node, readers[0].node
    if not isinstance(first, ast.AnnAssign) or not isinstance(reader, ast.AnnAssign) or reader.value is None:
        return local
    name = name_of(reader.target)
    if name not in keepable or sum(name in site.changed for site in every) > 1:
        return local
    same = unparse(reader.annotation) == unparse(first.annotation)
    return name if same and polynomial(reader.value).terms.keys() == {(local,)} else local


def _as_an_array(loops: Sequence[Loop], known: Iterable[Statement]) -> list[Loop]:
    """Loops in the order of an array's subscripts, of one that is written before others: what is kept for each
    iteration lies in memory as the array does then, whatever the order of the loops.

    Args:
        loops: one in the other.
        known: the statements of their nest.
    """
    by_name = {loop.var: loop for loop in loops}
    found = (
        (access.kind == "read", [index.id for index in access.own if isinstance(index, ast.Name)])
        for statement in known
        for access in statement.accesses
    )
    fitting = [(read, order) for read, order in found if sorted(order) == sorted(by_name)]
    order = min(fitting, key=lambda each: each[0])[1] if fitting else by_name
    return [by_name[name] for name in order]


def save_version(program: Program, name: str, nest: int, taken: Collection[str] = ()) -> tuple[Program, str] | None:
    """The program with the value of buffer ``name`` before the nest number ``nest`` in a buffer of its own.

    Earlier nests then write that buffer, and what the nest reads before it sets an element comes from there.
    Possible where the nest's first statement that writes the buffer sets every element once; None elsewhere.
    ``taken`` has names that the new buffer must not get, beside those in the program.
    """
    if name not in program.buffers:
        return None
    nests = [list(n.body) for n in program.nests]
    nests[nest] = rebuild(rebuild(nests[nest], plain_updates), lambda s: [_as_assignment(s, name)])
    found = uses_of(name, sites(nests))
    here = [use for use in found if use.site.path[0][1] == nest]
    writes = [use for use in here if not use.reads]
    if not writes or not any(not use.reads and use.site.path[0][1] < nest for use in found):
        return None
    first = min(writes, key=lambda use: use.site.path)
    if not touches_all_once(first.site, first.access, program.buffers[name].shape):
        return None
    old = fresh(f"{name}_before", taken_names(program).union(taken))
    before = _earlier_reads(first, here)
    if before is None or any(isinstance(statement, ast.If) for statement, _ in before.values()):
        return None
    edits = {path: [_Reads(texts, old).visit(clone(statement))] for path, (statement, texts) in before.items()}
    nests[nest] = edited(nests, edits)[nest]
    buffer = program.buffers[name]
    storage = f"{buffer.name.rsplit('.', 1)[0]}.{old}"
    kept = Buffer(storage, buffer.shape, buffer.dtype, "value", per_item=buffer.per_item, items=buffer.items)
    buffers = {**program.buffers, old: kept}
    made = []
    for index, body in enumerate(nests):
        if index < nest:
            body = [substitute(statement, {name: expr(old)}) for statement in body]
        made.append(make_nest(program.nests[index].label, body, buffers))
    return Program(program.name, tuple(made), buffers, program.aliases, program.commands), old


def _earlier_reads(first: Use, here: list[Use]) -> dict[Path, tuple[ast.stmt, set[str]]] | None:
    """By path, the statements of a nest that read elements before ``first`` sets them, and the references that do; None
    where one reads, or writes, both before and after.

    Args:
        first: sets every element once.
        here: all uses of the buffer in the nest.
    """
    before: dict[Path, tuple[ast.stmt, set[str]]] = {}
    for use in here:
        if use is first:
            continue
        earlier = use.site is first.site or use.meets_later(first)
        if earlier and (not use.reads or first.meets_later(use)):
            return None
        if earlier:  # other reads in the statement may come after the element is set
            _, texts = before.setdefault(use.site.path, (use.site.node, set()))
            texts.add(use.text)
    return before


def _as_assignment(statement: ast.stmt, name: str) -> ast.stmt:
    """``name[…] += e`` → ``name[…] = name[…] + e``."""
    if not isinstance(statement, ast.AugAssign) or name_of(statement.target) != name:
        return statement
    target = as_value(statement.target)
    return assign(target, ast.BinOp(target, ast.Add(), statement.value))


class _Reads(ast.NodeTransformer):
    """References of these texts are to ``old`` where they are read."""

    def __init__(self, texts: Collection[str], old: str):
        self.texts, self.old = texts, old

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        known = isinstance(node.ctx, ast.Load) and unparse(node) in self.texts
        self.generic_visit(node)
        if known:
            node.value = ast.Name(self.old, ast.Load())
        return node
