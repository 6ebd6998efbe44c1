"""Reductions by ``max`` and ``min``: the forward program saves which iteration won first.

The forward program gets index buffers, one a reduction loop::

    value[i] = max(value[i], x[i, j])   ->   better: bool = x[i, j] > value[i] or x[i, j] != x[i, j]
                                             mask_j[i] = j if better else mask_j[i]
                                             value[i] = x[i, j] if better else value[i]

For reversal the same statement is ``value[i] += x[i, j] if mask_j[i] == j else 0.0``: a sum with one term.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from latte.autodiff.order import Site
from latte.autodiff.prepare import Body, add_to, all_sites, assign, edited, load, with_origin
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

LOWEST = 3e38
"""A literal beyond this size is no candidate: every number wins over it."""


@dataclass(frozen=True)
class Reduction:
    """``target = max(target, candidate)`` at ``site``, over ``loops``; ``starts`` set the target first."""

    site: Site
    target: ast.expr
    candidate: ast.expr
    sign: str
    loops: tuple[Loop, ...]
    home: tuple[Loop, ...]
    starts: tuple[Site, ...]


def save_winners(program: Program, active: set[str]) -> tuple[Program, list[Body]]:
    """The forward program that saves winners, and its nests in the form for reversal.

    Raises:
        DerivativeError: a reduction whose target is never set.
    """
    nests = [list(nest.body) for nest in program.nests]
    inside = [list(nest.body) for nest in program.nests]
    buffers = dict(program.buffers)
    forward_edits: dict[Path, Body] = {}
    inside_edits: dict[Path, Body] = {}
    taken = set(buffers).union(*(names_in(s) for nest in nests for s in nest), set())
    for found in reductions(program.name, nests):
        if name_of(found.target) not in active:
            continue
        _save(program, found, buffers, taken, forward_edits, inside_edits)
    nests = edited(nests, forward_edits)
    inside = edited(inside, inside_edits)
    new = [make_nest(old.label, body, buffers) for old, body in zip(program.nests, nests, strict=True)]
    return replace(program, nests=tuple(new), buffers=buffers), inside


def reductions(place: str, nests: list[Body]) -> list[Reduction]:
    """Every ``t = max(t, x)`` under a loop that does not move ``t``."""
    every = all_sites(nests)
    found = []
    for site in every:
        statement = site.statement
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        call, target = statement.value, statement.targets[0]
        if not isinstance(call.func, ast.Name) or call.func.id not in ("max", "min") or len(call.args) != 2:
            continue
        others = [arg for arg in call.args if not same(arg, target)]
        if len(others) != 1:
            continue
        scope = _scope(site, target, every)
        starts = [
            s for s in every if s is not site and s.path[: len(scope)] == scope and _sets(s.statement, target)
        ]
        home = _home(site, target, starts)
        loops = tuple(loop for _, loop in site.loops if loop not in home)
        if not loops:
            continue
        if not starts:
            raise DerivativeError(
                f"`{ast.unparse(statement)}` starts from nothing",
                place=place,
                way_out="set the target before the loops",
            )
        sign = ">" if call.func.id == "max" else "<"
        found.append(Reduction(site, load(target), others[0], sign, loops, home, tuple(starts)))
    return found


def _scope(site: Site, target: ast.expr, every: list[Site]) -> Path:
    """The path of the block in which a local target is declared; a buffer is seen everywhere."""
    if isinstance(target, ast.Subscript):
        return ()
    blocks = [
        s.path[:-1]
        for s in every
        if isinstance(s.statement, ast.AnnAssign) and same(s.statement.target, target)
    ]
    return max((block for block in blocks if site.path[: len(block)] == block), key=len, default=())


def _sets(statement: ast.stmt, target: ast.expr) -> bool:
    if isinstance(statement, ast.Assign):
        other = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        other = statement.target
    else:
        return False
    if isinstance(target, ast.Subscript) and isinstance(other, ast.Subscript):
        return same(other.value, target.value) and _start_value(statement) is not None
    return isinstance(target, ast.Name) and same(other, target) and _start_value(statement) is not None


def _start_value(statement: ast.stmt) -> ast.expr | None:
    value = statement.value  # type: ignore[attr-defined]
    assert isinstance(statement, (ast.Assign, ast.AnnAssign))
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    if isinstance(value, ast.Call) and any(same(arg, target) for arg in value.args):
        return None
    return value


def _home(site: Site, target: ast.expr, starts: list[Site]) -> tuple[Loop, ...]:
    """The loops that move the target: by its subscripts, or those around a local's declaration."""
    if isinstance(target, ast.Subscript):
        moving = names_in(target.slice)
        return tuple(loop for _, loop in site.loops if loop.var in moving)
    declaration = next((s for s in starts if isinstance(s.statement, ast.AnnAssign)), None)
    return tuple(loop for _, loop in (declaration.loops if declaration else ()))


def _save(
    program: Program,
    found: Reduction,
    buffers: dict[str, Buffer],
    taken: set[str],
    forward_edits: dict[Path, Body],
    inside_edits: dict[Path, Body],
) -> None:
    statement = found.site.statement
    own = _own_masks(program, found)
    if own is not None:
        tests: list[ast.expr] = [ast.Compare(mask, [ast.Eq()], [_offset(loop)]) for mask, loop in own]
        inside_edits[found.site.path] = [_winner_alone(found, tests)]
        for start in found.starts:
            inside_edits[start.path] = [_with_value(start.statement, expr("0.0"))]
        names = {name_of(mask) for mask, _ in own}
        for site in all_sites([list(nest.body) for nest in program.nests]):
            # For reversal a mask is what it is in the end.
            if isinstance(site.statement, ast.Assign) and name_of(site.statement.targets[0]) in names:
                inside_edits[site.path] = [ast.Pass()]
        return
    if isinstance(found.target, ast.Subscript):
        shape = buffers[name_of(found.target)].shape
        place = subscripts(found.target)
    else:
        shape = tuple(_extent(loop, program, statement) for loop in found.home) or (1,)
        place = [_offset(loop) for loop in found.home] or [expr(0)]
    masks = []
    for loop in found.loops:
        name = f"mask_{loop.var}"
        if not _is_free_mask(program, buffers, name, shape):
            name = fresh(name, taken)
        taken.add(name)
        if name not in buffers:
            buffers[name] = Buffer(f"{program.name.split('.')[0]}.{name}", shape, "int32", "value")
        masks.append(name)
    target = found.target
    dtype = buffers[name_of(target)].dtype if name_of(target) in buffers else _declared_dtype(found)
    body: Body = []
    candidate = found.candidate
    if not isinstance(candidate, (ast.Name, ast.Subscript)) or any(
        isinstance(n, ast.Call) for n in ast.walk(candidate)
    ):
        local = fresh("candidate", taken)
        taken.add(local)
        body.append(declare(local, LocalType(dtype), candidate))
        candidate = ast.Name(local, ast.Load())
    better = fresh("better", taken)
    taken.add(better)
    test = expr(f"x {found.sign} v or x != x", x=candidate, v=target)
    body.append(declare(better, LocalType("bool"), test))
    for name, loop in zip(masks, found.loops, strict=True):
        mask = reference(name, place)
        body.append(assign(mask, expr(f"j if {better} else old", j=_offset(loop), old=mask)))
    body.append(assign(target, expr(f"x if {better} else v", x=candidate, v=target)))
    forward_edits[found.site.path] = body
    tests = [
        expr("m == j", m=reference(name, place), j=_offset(loop))
        for name, loop in zip(masks, found.loops, strict=True)
    ]
    inside_edits[found.site.path] = [_winner_alone(found, tests)]
    for start in found.starts:
        _start(start, masks, place, target, forward_edits, inside_edits)


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
    if not all(_is_lowest(value) for start in found.starts if (value := _start_value(start.statement))):
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
    masks: list[str],
    place: list[ast.expr],
    target: ast.expr,
    forward_edits: dict[Path, Body],
    inside_edits: dict[Path, Body],
) -> None:
    """Masks get their first value where the target does: nobody won yet."""
    statement = start.statement
    value = _start_value(statement)
    assert value is not None
    hopeless = _is_lowest(value)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
        place = subscripts(statement.targets[0])
    none = expr(0 if hopeless else -1)
    forward_edits[start.path] = [statement, *(assign(reference(name, place), none) for name in masks)]
    mine = expr("0.0") if hopeless else expr("v if m == -1 else 0.0", v=value, m=reference(masks[0], place))
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
    used = any(name in nest.arguments for nest in program.nests) or (
        buffer is not None and name not in program.buffers
    )
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
        )
    return loop.extent
