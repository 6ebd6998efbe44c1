"""scalar_expand: a local gets one element for each iteration of a loop."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from math import prod

from swirl.analysis.dependences import Conflict, find
from swirl.analysis.statements import statements_of
from swirl.errors import CommandError, Refused
from swirl.ir.affine import simplify_body
from swirl.ir.nest import (
    LocalType,
    Loop,
    Nest,
    Program,
    clones,
    declare,
    fresh,
    kind_of,
    local_type,
    loop_of,
    names_in,
    variable_of,
)
from swirl.ir.paths import Path, at, loops, replace_at, walk
from swirl.ir.printing import unparse
from swirl.transforms.arguments import LocalNames, LoopName, NestName
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.checks.ways_out import step, tried
from swirl.transforms.rewrites.sites import find_loops, taken_names
from swirl.transforms.rewrites.storage.local_arrays import MAX_ELEMENTS, ExpandedLocal, declarations, no_local

_NOTE = "asked for one element an iteration"


@command()
def scalar_expand(
    program: Program, scalar_vars: LocalNames, loop_var: LoopName | None = None, *, nest: NestName | None = None
) -> Program:
    """Give a local one element for each iteration of a loop, so that distribute and interchange may cut between
    its uses.

    rewrite (scalar_vars = "t"):
        for i in range(8):                  t: float32[8] = empty(8)
            t: float32 = x[i]       →       for i in range(8):
            y[i] = t                            t[i] = x[i]
                                                y[i] = t[i]

    A local array gets one more dimension, the first.

    Args:
        scalar_vars: one local, or several.
        loop_var: the loop; by default the innermost one around the declaration. A local that is declared outside of
            the loop must be assigned by each iteration before it is read, and used nowhere else.
        nest: only in this nest (index or label).

    Raises:
        CommandError: no such local.
        Refused: the loop's extent is not constant or too large for the stack, it is a parallel or vector loop, there
            is no such loop around the uses, or an iteration reads what an earlier one assigned.

    Source: Allen, Kennedy, *Optimizing Compilers for Modern Architectures*, section 5.3 (scalar expansion).
    """
    names = [scalar_vars] if isinstance(scalar_vars, str) else list(dict.fromkeys(scalar_vars))
    if not names:
        raise CommandError("scalar_expand takes the names of locals, not an empty list")
    result = program
    meant = None if loop_var is None else {site.nest for site in find_loops(program, loop_var, nest)}
    for name in names:
        found = False
        for index, target in enumerate(result.nests):
            if (nest is None or nest in (index, target.label)) and (meant is None or index in meant):
                found |= next(declarations(target, name), None) is not None
                result = result.with_nest(
                    index, _all_expanded(result, target, name, _selected(result, index, loop_var, nest))
                )
        if not found:
            raise no_local(program, name)
    return checked(program, result)


Selected = Callable[[Nest], set[Path]] | None
"""Finds the loops of a nest that are meant; None: the innermost one around each declaration."""


def _selected(program: Program, index: int, loop_var: str | None, only: int | str | None) -> Selected:
    """The loops of a nest that ``loop_var`` means in the nest ``only``, or in all, also after locals of it have been
    expanded."""
    if loop_var is None:
        return None

    def paths(nest: Nest) -> set[Path]:
        return {site.path for site in find_loops(program.with_nest(index, nest), loop_var, only) if site.nest == index}

    return paths


def _all_expanded(program: Program, nest: Nest, name: str, wanted: Selected) -> Nest:
    """The nest with every local of that name expanded."""
    body = clones(nest.body)
    nest = nest.with_body(body)
    waiting = [at(body, path) for path in declarations(nest, name)]
    for number, declaration in enumerate(waiting):
        declaration.mark = number  # type: ignore[attr-defined]
    for number in range(len(waiting)):
        path = next(path for path in declarations(nest) if getattr(at(nest.body, path), "mark", None) == number)
        nest = _expanded(program, nest, path, wanted)
    return nest


def _expanded(program: Program, nest: Nest, declared: Path, wanted: Selected) -> Nest:
    """The nest with the local that is declared at a path expanded over one loop."""
    node = at(nest.body, declared)
    assert isinstance(node, ast.AnnAssign)
    name, type_ = unparse(node.target), local_type(node)
    meant = None if wanted is None else wanted(nest)
    around = [
        path for path, _ in loops(nest.body) if declared[: len(path)] == path and (meant is None or path in meant)
    ]
    path = around[-1] if around else _loop_of_uses(nest, declared, name, meant)
    try:
        loop = _loop(nest, path, type_)
    except Refused as refusal:
        head = at(nest.body, path)
        assert isinstance(head, ast.For)
        var = variable_of(head)
        tail = "peel" if loop_of(head).extent is None else None
        inner = step("tile_loop", var, 16, tail=tail), step("scalar_expand", name, f"{var}_inner")
        raise refusal.offering(tried(program, inner)) if kind_of(head) == "range" else refusal from None
    if not around:
        _check_private(program, nest, declared, path, name)
    # The array is visible around the loop: another local of that name may be, too.
    elsewhere = sum(1 for _ in declarations(nest, name)) > 1
    array = ExpandedLocal.over(loop, name, fresh(name, taken_names(program, [nest])) if elsewhere else name)
    if around:
        body = array.in_place(nest.body, declared)
    else:
        body = replace_at(nest.body, path, array.instead(at(nest.body, path)))
    head = declare(array.name, LocalType(type_.dtype, (loop.extent or 0, *type_.shape)))
    body = replace_at(body, path, [head, at(body, path)])
    if not around:  # its first value is never read
        body = replace_at(body, declared, [])
    return nest.with_body(simplify_body(body))


def _loop_of_uses(nest: Nest, declared: Path, name: str, meant: set[Path] | None) -> Path:
    """The loop that holds the uses of a local that is declared outside of it."""
    if meant is None:
        raise refuse(
            f"no loop is around the declaration of {name}",
            nest,
            declared,
            "the declaration",
            way_out="loop_var=… names a loop around all its uses",
        )
    field, index = declared[-1]
    for path, head in loops(nest.body):
        following = len(path) >= len(declared) and path[: len(declared) - 1] == declared[:-1]
        if (
            path in meant
            and following
            and path[len(declared) - 1][0] == field
            and path[len(declared) - 1][1] > index
            and name in names_in(head)
        ):
            return path
    names = {variable_of(head) for path, head in loops(nest.body) if path in meant}
    raise refuse(
        f"no loop {' or '.join(sorted(names)) or 'of that name'} is around the declaration or the uses of {name}",
        nest,
        declared,
        "the declaration",
    )


def _loop(nest: Nest, path: Path, type_: LocalType) -> Loop:
    """The loop's head, if a local can have an element for each of its iterations."""
    node = at(nest.body, path)
    assert isinstance(node, ast.For)
    loop = loop_of(node)
    if loop.kind not in ("range", "unrolled"):
        raise refuse(
            f"{loop.var} is a {loop.kind} loop: what it declares is private to an iteration already",
            nest,
            path,
            _NOTE,
            way_out="give this command before the one that made it so",
        )
    if loop.extent is None:
        raise refuse(f"the bounds of {loop.var} are not constant", nest, path, _NOTE)
    elements = loop.extent * prod(type_.shape)
    if elements > MAX_ELEMENTS:
        raise refuse(f"an array of {elements} elements would not fit on the stack", nest, path, _NOTE)
    return loop


def _check_private(program: Program, nest: Nest, declared: Path, path: Path, name: str) -> None:
    """Raises Refused where a local that is declared outside of the loop at ``path`` carries a value into one of its
    iterations, or out of them."""
    node = at(nest.body, path)
    assert isinstance(node, ast.For)
    first = next(statement for statement in node.body if name in names_in(statement))
    assigned = isinstance(first, ast.Assign) and unparse(first.targets[0]) == name
    if not assigned or not isinstance(first, ast.Assign) or name in names_in(first.value):
        partial = (step("unroll", variable_of(node), 4),), (step("vectorize", variable_of(node)),)
        raise refuse(
            f"{name} is read before it is assigned: its value is carried between iterations",
            nest,
            path,
            _NOTE,
            witness=_carried_value(nest, path, name),
            way_out=tried(program, *partial),
        )
    for other, statement in walk(nest.body):
        leaf = not isinstance(statement, (ast.For, ast.If))
        tree = statement if leaf else statement.iter if isinstance(statement, ast.For) else statement.test  # type: ignore[attr-defined]
        if other != declared and other[: len(path)] != path and name in names_in(tree):
            raise refuse(f"{name} is used outside of the loop too", nest, other, f"uses {name}")


def _carried_value(nest: Nest, path: Path, name: str) -> Conflict | None:
    """Two iterations of the loop, the earlier one writing the local and the later one using it."""
    inside = [s for s in statements_of(nest) if s.path[: len(path)] == path]
    uses = [replace(s, accesses=tuple(a for a in s.accesses if a.name == name)) for s in inside]
    node = at(nest.body, path)
    assert isinstance(node, ast.For)
    var = variable_of(node)
    for writer in uses:
        outer = [loop.var for loop in writer.loops if loop.var != var and var in writer.variables()]
        outer = outer[: writer.variables().index(var)]
        same = [f"{v}_a = {v}_b" for v in outer]
        for reader in uses:
            if any(a.kind != "read" for a in writer.accesses) and any(a.kind != "write" for a in reader.accesses):
                conflict = find(writer, reader, [*same, f"{var}_a < {var}_b"], reductions=True)
                if conflict is not None:
                    return conflict
    return None
