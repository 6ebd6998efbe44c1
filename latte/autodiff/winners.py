"""Reductions that choose one iteration (``max``, ``min``, guarded assignments): the forward program saves which.

The forward program gets index buffers, one a reduction loop::

    value[i] = max(value[i], x[i, j])   ->   better: bool = x[i, j] > value[i] or x[i, j] != x[i, j]
                                             mask_j[i] = j if better else mask_j[i]
                                             value[i] = x[i, j] if better else value[i]

For reversal the same statement is ``value[i] += x[i, j] if mask_j[i] == j else 0.0``: a sum with one term. The first
largest element wins. A guarded assignment, ``if test: value[i] = e``, is the same with a test of the user's: the last
iteration in which it holds wins (of ``>`` the first largest element, of ``>=`` the last).
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from latte.autodiff.guarded import guards_as_selects
from latte.autodiff.order import Site
from latte.autodiff.prepare import (
    Body,
    add_to,
    all_sites,
    assign,
    edited,
    line_of,
    load,
    with_origin,
)
from latte.autodiff.reductions import Reduction, by_target, reductions, seen_in_between, start_value
from latte.autodiff.terms import literal, name_of, same
from swirl.errors import DerivativeError
from swirl.ir.buffers import Buffer
from swirl.ir.nest import (
    LocalType,
    Loop,
    Path,
    Program,
    constant,
    declare,
    expr,
    fresh,
    local_type,
    make_nest,
    names_in,
    reference,
    subscripts,
)

NOBODY, BEATEN = -1, -2
"""In a mask: the target's first value is still there; another reduction of the same target won."""

LOWEST = 3e38
"""A literal beyond this size is no candidate: every number wins over it."""


def save_winners(program: Program, active: set[str]) -> tuple[Program, list[Body]]:
    """The forward program that saves winners, and its nests in the form for reversal.

    Raises:
        DerivativeError: a reduction whose target is never set.
    """
    program = guards_as_selects(program, active)
    nests = [list(nest.body) for nest in program.nests]
    inside = [list(nest.body) for nest in program.nests]
    buffers = dict(program.buffers)
    forward_edits: dict[Path, Body] = {}
    inside_edits: dict[Path, Body] = {}
    taken = set(buffers).union(*(names_in(s) for nest in nests for s in nest), set())
    every = [found for found in reductions(program.name, nests) if name_of(found.target) in active]
    every = [found for found in every if not seen_in_between(found, every, nests, active)]
    allotted: set[str] = set()
    for group in by_target(every):
        own = _own_masks(program, group[0]) if len(group) == 1 else None
        if own is not None:
            _use_own_masks(program, group[0], own, inside_edits)
        else:
            _save(program, group, buffers, taken, allotted, forward_edits, inside_edits)
    nests = edited(nests, forward_edits)
    inside = edited(inside, inside_edits)
    new = [make_nest(old.label, body, buffers) for old, body in zip(program.nests, nests, strict=True)]
    return replace(program, nests=tuple(new), buffers=buffers), inside


def _use_own_masks(
    program: Program, found: Reduction, own: list[tuple[ast.expr, Loop]], inside_edits: dict[Path, Body]
) -> None:
    tests: list[ast.expr] = [ast.Compare(mask, [ast.Eq()], [_offset(loop)]) for mask, loop in own]
    inside_edits[found.site.path] = [_winner_alone(found, tests)]
    for start in found.starts:
        inside_edits[start.path] = [_with_value(start.statement, expr("0.0"))]
    names = {name_of(mask) for mask, _ in own}
    for site in all_sites([list(nest.body) for nest in program.nests]):
        # For reversal a mask is what it is in the end.
        if isinstance(site.statement, ast.Assign) and name_of(site.statement.targets[0]) in names:
            inside_edits[site.path] = [ast.Pass()]


def _save(
    program: Program,
    group: list[Reduction],
    buffers: dict[str, Buffer],
    taken: set[str],
    allotted: set[str],
    forward_edits: dict[Path, Body],
    inside_edits: dict[Path, Body],
) -> None:
    """The reductions of one target save who won; one that wins takes the place from the others."""
    masks = [_new_masks(program, found, buffers, taken, allotted) for found in group]
    for found, own in zip(group, masks, strict=True):
        place = _place(found)
        target = found.target
        dtype = buffers[name_of(target)].dtype if name_of(target) in buffers else _declared_dtype(found)
        body: Body = []
        candidate = found.candidate
        if found.test is None and (
            not isinstance(candidate, (ast.Name, ast.Subscript))
            or any(isinstance(n, ast.Call) for n in ast.walk(candidate))
        ):
            local = fresh("candidate", taken)
            taken.add(local)
            body.append(declare(local, LocalType(dtype), candidate))
            candidate = ast.Name(local, ast.Load())
        if isinstance(found.test, ast.Name):
            better = found.test.id
        else:
            better = fresh("better", taken)
            taken.add(better)
            test = found.test or expr(f"x {found.sign} v or x != x", x=candidate, v=target)
            body.append(declare(better, LocalType("bool"), test))
        for name, loop in zip(own, found.loops, strict=True):
            mask = reference(name, place)
            body.append(assign(mask, expr(f"j if {better} else old", j=_offset(loop), old=mask)))
        for name in (name for other in masks if other is not own for name in other):
            mask = reference(name, place)
            body.append(assign(mask, expr(f"{BEATEN} if {better} else old", old=mask)))
        body.append(assign(target, expr(f"x if {better} else v", x=candidate, v=target)))
        forward_edits[found.site.path] = body
        tests = [
            expr("m == j", m=reference(name, place), j=_offset(loop))
            for name, loop in zip(own, found.loops, strict=True)
        ]
        inside_edits[found.site.path] = [_winner_alone(found, tests)]
    for start in {start.path: start for found in group for start in found.starts}.values():
        _start(start, group, masks, forward_edits, inside_edits)


def _place(found: Reduction) -> list[ast.expr]:
    """The subscripts of the masks of one target: its own, or the loops around a local's declaration."""
    if isinstance(found.target, ast.Subscript):
        return subscripts(found.target)
    return [_offset(loop) for loop in found.home] or [expr(0)]


def _new_masks(
    program: Program, found: Reduction, buffers: dict[str, Buffer], taken: set[str], allotted: set[str]
) -> list[str]:
    """Index buffers for the winner of a reduction, one a loop; ``allotted`` are those of other reductions."""
    if isinstance(found.target, ast.Subscript):
        shape = buffers[name_of(found.target)].shape
    else:
        shape = tuple(_extent(loop, program, found.site.statement) for loop in found.home) or (1,)
    masks = []
    for loop in found.loops:
        name = f"mask_{loop.var}"
        if name in allotted or not _is_free_mask(program, buffers, name, shape):
            name = fresh(name, taken)
        taken.add(name)
        allotted.add(name)
        if name not in buffers:
            buffers[name] = Buffer(f"{program.name.split('.')[0]}.{name}", shape, "int32", "value")
        masks.append(name)
    return masks


def _winner_alone(found: Reduction, tests: list[ast.expr]) -> ast.stmt:
    """``target += candidate if it won else 0.0``."""
    won = tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)
    value = ast.IfExp(won, found.candidate, expr("0.0"))
    return with_origin(add_to(found.target, value), found.site.statement)


def _with_value(statement: ast.stmt, value: ast.expr) -> ast.stmt:
    new = copy.copy(statement)
    new.value = value  # type: ignore[attr-defined]
    return with_origin(new, statement)


def _own_masks(program: Program, found: Reduction) -> list[tuple[ast.expr, Loop]] | None:
    """Index fields that the body itself sets to the winner, one a loop: ``if x > t: mask[…] = j``.

    Only where every candidate beats the first value of the target: then the first index set is a winner's.
    """
    if found.test is not None:
        return None
    if not all(_is_lowest(value) for start in found.starts if (value := start_value(start.statement))):
        return None
    path = found.site.path
    block: Body = program.nests[path[0][1]].body
    for (_, index), (field, _) in pairwise(path[1:]):
        block = getattr(block[index], field)
    test = expr(f"x {found.sign} t", x=found.candidate, t=found.target)
    masks = {}
    for statement in block[: path[-1][1]]:
        if not isinstance(statement, ast.If) or not same(statement.test, test) or statement.orelse:
            continue
        for setting in statement.body:
            if isinstance(setting, ast.Assign) and isinstance(setting.targets[0], ast.Subscript):
                mask = load(setting.targets[0])
                if isinstance(found.target, ast.Subscript) and same(mask.slice, found.target.slice):  # type: ignore[attr-defined]
                    masks[ast.unparse(setting.value)] = mask
    wanted = [(masks.get(ast.unparse(_offset(loop))), loop) for loop in found.loops]
    complete = [(mask, loop) for mask, loop in wanted if mask is not None]
    return complete if len(complete) == len(wanted) else None


def _declared_dtype(found: Reduction) -> str:
    statement = next(s.statement for s in found.starts if isinstance(s.statement, ast.AnnAssign))
    return local_type(statement).dtype


def _start(
    start: Site,
    group: list[Reduction],
    masks: list[list[str]],
    forward_edits: dict[Path, Body],
    inside_edits: dict[Path, Body],
) -> None:
    """Masks get their first value where the target does: nobody won yet."""
    statement = start.statement
    value = start_value(statement)
    assert value is not None
    place = _place(group[0])
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
        place = subscripts(statement.targets[0])
    # Every candidate of a maximum beats the lowest number.
    hopeless = len(group) == 1 and group[0].test is None and _is_lowest(value)
    none = expr(0 if hopeless else NOBODY)
    names = [name for own in masks for name in own]
    forward_edits[start.path] = [statement, *(assign(reference(name, place), none) for name in names)]
    nobody = [expr(f"m == {NOBODY}", m=reference(own[0], place)) for own in masks]
    test = nobody[0] if len(nobody) == 1 else ast.BoolOp(ast.And(), nobody)
    mine = expr("0.0") if hopeless else ast.IfExp(test, value, expr("0.0"))
    inside_edits[start.path] = [_with_value(statement, mine)]


def _is_lowest(value: ast.expr) -> bool:
    if isinstance(value, ast.UnaryOp):
        value = value.operand
    if isinstance(value, ast.Name):
        return value.id in ("INFINITY", "inf")
    number = literal(value)
    return (number is not None and number >= LOWEST) or (
        isinstance(value, ast.Constant) and value.value == float("inf")
    )


def _is_free_mask(program: Program, buffers: Mapping[str, Buffer], name: str, shape: tuple[int, ...]) -> bool:
    """Whether a field of that name is there for the purpose: right shape and type, not used otherwise."""
    buffer = buffers.get(name)
    used = any(name in nest.arguments for nest in program.nests) or (buffer is not None and name not in program.buffers)
    return buffer is not None and buffer.shape == shape and buffer.dtype == "int32" and not used


def _offset(loop: Loop) -> ast.expr:
    """The loop variable less the loop's start."""
    variable = ast.Name(loop.var, ast.Load())
    return variable if constant(loop.start) == 0 else expr("v - s", v=variable, s=loop.start)


def _extent(loop: Loop, program: Program, statement: ast.stmt) -> int:
    if loop.extent is None or loop.step != 1:
        raise DerivativeError(
            f"`{ast.unparse(statement)}`: the loop over {loop.var} has no constant length to save the "
            "winners of a local in",
            place=program.name,
            way_out="use a field",
            line=line_of(statement),
        )
    return loop.extent
