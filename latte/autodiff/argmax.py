"""Reductions that choose one iteration (``max``, ``min``, conditional assignments): the forward program saves which.

The forward program gets index buffers, one for each reduction loop::

    value[i] = max(value[i], x[i, j])   ->   better: bool = x[i, j] > value[i] or x[i, j] != x[i, j]
                                             mask_j[i] = j if better else mask_j[i]
                                             value[i] = x[i, j] if better else value[i]

For reversal the same statement is ``value[i] += x[i, j] if mask_j[i] == j else 0.0``: a sum with one term. The first
largest element wins. A conditional assignment, ``if test: value[i] = e``, is the same with the user's test: the last
iteration in which it holds wins (of ``>`` the first largest element, of ``>=`` the last).

If the target already holds something when the loop begins, such as a sum, the reduction starts from that::

                                             mask_j[i] = -1                      before the loop, and for reversal
                                             value[i] = value[i] if mask_j[i] == -1 else 0.0
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import pairwise

from latte.autodiff.adjoint_terms import literal, same
from latte.autodiff.branches import branches_as_selects
from latte.autodiff.prepare import (
    Body,
    add_to,
    assign,
    edited,
    with_origin,
)
from latte.autodiff.reductions import Reduction, Round, reductions, rounds, start_value
from latte.autodiff.uses import sites
from swirl.analysis.statements import Statement
from swirl.ir.buffers import Buffer
from swirl.ir.nest import (
    LocalType,
    Loop,
    Program,
    clones,
    constant,
    declare,
    expr,
    fresh,
    local_type,
    make_nest,
    names_in,
    nested,
    reference,
    subscripts,
)
from swirl.ir.paths import Path
from swirl.ir.printing import unparse
from swirl.ir.trees import as_value, changed, name_of, nodes, statements_in

NOBODY, BEATEN = -1, -2
"""Mask values: the target still has its first value; another reduction of the same target won."""

LOWEST = 3e38
"""A literal beyond this size is not a candidate: every number wins over it."""


def save_argmax(
    program: Program, active: set[str], taken: Collection[str]
) -> tuple[Program, list[Body], dict[int, ast.stmt]]:
    """The forward program that saves winners, its nests in the form for reversal, and its statements by number.

    Statements of both forms have the number (``number``) of the one that they come from. ``taken`` has
    names that no new array must get, beside those in the program.

    Raises:
        DerivativeError: a reduction whose target is never set.
    """
    program = branches_as_selects(program, active)
    nests = [clones(list(nest.body)) for nest in program.nests]
    originals = dict(enumerate(part for nest in nests for tree in nest for part in statements_in(tree)))
    for number, statement in originals.items():
        statement.number = number  # type: ignore[attr-defined]
    inside = [list(nest) for nest in nests]
    edits, masks = Edits(), _Masks(program, nests, taken)
    for group in rounds(reductions(program.name, nests, active), nests, active):
        alone = len(group.members) == 1 and group.starts
        own = _own_masks(program, group) if alone else None
        if own is not None:
            _use_own_masks(program, group, own, edits)
        else:
            _save(group, masks, edits)
    nests = edited(nests, edits.forward, edits.forward_before)
    inside = edited(inside, edits.inside, edits.inside_before)
    new = [make_nest(old.label, body, masks.buffers) for old, body in zip(program.nests, nests, strict=True)]
    return replace(program, nests=tuple(new), buffers=masks.buffers), inside, originals


@dataclass(frozen=True)
class Edits:
    """By path: what replaces a statement, or precedes it, in the forward program and in the form for reversal."""

    forward: dict[Path, Body] = field(default_factory=dict)
    forward_before: dict[Path, Body] = field(default_factory=dict)
    inside: dict[Path, Body] = field(default_factory=dict)
    inside_before: dict[Path, Body] = field(default_factory=dict)


def _use_own_masks(program: Program, group: Round, own: list[tuple[ast.expr, Loop]], edits: Edits) -> None:
    found = group.members[0]
    tests: list[ast.expr] = [ast.Compare(mask, [ast.Eq()], [_offset(loop)]) for mask, loop in own]
    edits.inside[found.site.path] = [_where_chosen(found, tests)]
    for start in group.starts:
        edits.inside[start.path] = [_with_value(start.node, expr("0.0"))]
    names = {name_of(mask) for mask, _ in own}
    for site in sites([list(nest.body) for nest in program.nests]):
        # For reversal a mask has its final value.
        if isinstance(site.node, ast.Assign) and name_of(site.node.targets[0]) in names:
            edits.inside[site.path] = [ast.Pass()]


class _Masks:
    """The index buffers that a program gets, and the names that are in use.

    Args:
        program: the forward program.
        nests: its statements.
        taken: names in use, beside those in the program.
    """

    def __init__(self, program: Program, nests: list[Body], taken: Collection[str]):
        self.program, self.buffers = program, dict(program.buffers)
        self._taken = {*program.buffers, *taken}.union(*(names_in(s) for nest in nests for s in nest), set())

    def local(self, base: str) -> str:
        """A new name."""
        name = fresh(base, self._taken)
        self._taken.add(name)
        return name

    def of(self, found: Reduction) -> list[str]:
        """Index buffers for the winner of a reduction, one for each loop; no other reduction uses them."""
        if isinstance(found.target, ast.Subscript):
            shape = self.buffers[name_of(found.target)].shape
        else:
            shape = tuple(loop.extent or 0 for loop in found.home) or (1,)
        masks = []
        for loop in found.loops:
            name = self.local(f"mask_{loop.var}")
            storage = f"{self.program.name.split('.')[0]}.{name}"
            self.buffers[name] = Buffer(storage, shape, "int32", "value")
            masks.append(name)
        return masks

    def dtype(self, found: Reduction) -> str:
        """The type of a reduction's target."""
        if name_of(found.target) in self.buffers:
            return self.buffers[name_of(found.target)].dtype
        return local_type(next(s.node for s in found.starts if isinstance(s.node, ast.AnnAssign))).dtype


def _save(group: Round, masks: _Masks, edits: Edits) -> None:
    """The reductions of one round save the winner; when one wins, it resets the masks of the others."""
    every = [masks.of(found) for found in group.members]
    for found, own in zip(group.members, every, strict=True):
        others = [name for other in every if other is not own for name in other]
        edits.forward[found.site.path] = _saving(found, own, others, masks)
        indices = _mask_indices(found)
        tests = [
            expr("m == j", m=reference(name, indices), j=_offset(loop))
            for name, loop in zip(own, found.loops, strict=True)
        ]
        edits.inside[found.site.path] = [_where_chosen(found, tests)]
    for start in group.starts:
        _start(start, group, every, edits)
    if not group.starts:
        _start_from_here(group, every, edits)


def _saving(found: Reduction, own: list[str], others: list[str], masks: _Masks) -> Body:
    """The reduction for the forward program: its ``own`` masks, and ``others`` of the same target, tell who won."""
    body: Body = []
    indices, target, candidate = _mask_indices(found), found.target, found.candidate
    if found.test is None and not _is_cheap(candidate):
        local = masks.local("candidate")
        body.append(declare(local, LocalType(masks.dtype(found)), candidate))
        candidate = ast.Name(local, ast.Load())
    if isinstance(found.test, ast.Name):
        better = found.test.id
    else:
        better = masks.local("better")
        test = found.test or expr(f"x {found.sign} v or x != x", x=candidate, v=target)
        body.append(declare(better, LocalType("bool"), test))
    for name, loop in zip(own, found.loops, strict=True):
        mask = reference(name, indices)
        body.append(assign(mask, expr(f"j if {better} else old", j=_offset(loop), old=mask)))
    for name in others:
        mask = reference(name, indices)
        body.append(assign(mask, expr(f"{BEATEN} if {better} else old", old=mask)))
    body.append(assign(target, expr(f"x if {better} else v", x=candidate, v=target)))
    body[0].number = getattr(found.site.node, "number", None)  # type: ignore[attr-defined]
    return body


def _is_cheap(candidate: ast.expr) -> bool:
    """Whether a candidate may be written twice: a name, or an element."""
    calls = any(isinstance(node, ast.Call) for node in nodes(candidate))
    return isinstance(candidate, (ast.Name, ast.Subscript)) and not calls


def _mask_indices(found: Reduction) -> list[ast.expr]:
    """The subscripts of the masks of one target: its own, or the loops around a local's declaration."""
    if isinstance(found.target, ast.Subscript):
        return subscripts(found.target)
    return [_offset(loop) for loop in found.home] or [expr(0)]


def _where_chosen(found: Reduction, tests: list[ast.expr]) -> ast.stmt:
    """``target += candidate if it won else 0.0``."""
    won = tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)
    value = ast.IfExp(won, found.candidate, expr("0.0"))
    return with_origin(add_to(found.target, value), found.site.node)


def _with_value(statement: ast.stmt, value: ast.expr) -> ast.stmt:
    return with_origin(changed(statement, value=value), statement)


def _own_masks(program: Program, group: Round) -> list[tuple[ast.expr, Loop]] | None:
    """Index fields that the body itself sets to the winner, one for each loop: ``if x > t: mask[…] = j``.

    Only if every candidate beats the first value of the target: then the first index that is set belongs to a winner.
    """
    found = group.members[0]
    if found.test is not None:
        return None
    if not all(_is_lowest(value) for start in group.starts if (value := start_value(start.node))):
        return None
    path = found.site.path
    block: Body = program.nests[path[0][1]].body
    for (_, index), (part, _) in pairwise(path[1:]):
        block = getattr(block[index], part)
    test = expr(f"x {found.sign} t", x=found.candidate, t=found.target)
    masks: dict[str, ast.expr] = {}
    for statement in block[: path[-1][1]]:
        if not isinstance(statement, ast.If) or not same(statement.test, test) or statement.orelse:
            continue
        for setting in statement.body:
            if isinstance(setting, ast.Assign) and isinstance(setting.targets[0], ast.Subscript):
                mask = setting.targets[0]
                if isinstance(found.target, ast.Subscript) and same(mask.slice, found.target.slice):
                    masks[unparse(setting.value)] = as_value(mask)
    wanted = [(masks.get(unparse(_offset(loop))), loop) for loop in found.loops]
    complete = [(mask, loop) for mask, loop in wanted if mask is not None]
    return complete if len(complete) == len(wanted) else None


def _start(start: Statement, group: Round, masks: list[list[str]], edits: Edits) -> None:
    """Masks get their first value where the target does: no winner yet."""
    statement = start.node
    value = start_value(statement)
    assert value is not None
    first = group.members[0]
    indices = _mask_indices(first)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
        indices = subscripts(statement.targets[0])
    # Every candidate of a maximum beats the lowest number.
    hopeless = len(group.members) == 1 and first.test is None and _is_lowest(value)
    none = expr(0 if hopeless else NOBODY)
    names = [name for own in masks for name in own]
    edits.forward[start.path] = [statement, *(assign(reference(name, indices), none) for name in names)]
    mine = expr("0.0") if hopeless else ast.IfExp(_no_winner(masks, indices), value, expr("0.0"))
    edits.inside[start.path] = [_with_value(statement, mine)]


def _start_from_here(group: Round, masks: list[list[str]], edits: Edits) -> None:
    """Before the region there is no winner; the target's value there counts where there is none afterwards either."""
    first = group.members[0]
    indices = _mask_indices(first)
    none: Body = [assign(reference(name, indices), expr(NOBODY)) for own in masks for name in own]
    kept = assign(first.target, ast.IfExp(_no_winner(masks, indices), first.target, expr("0.0")))
    kept = with_origin(kept, first.site.node)
    # Another target's reduction may have the same region.
    loops = [loop.plain for loop in first.moved_inside]
    edits.forward_before.setdefault(first.region, []).extend(nested(loops, none))
    edits.inside_before.setdefault(first.region, []).extend(nested(loops, [kept]))


def _no_winner(masks: list[list[str]], indices: list[ast.expr]) -> ast.expr:
    """No reduction of the round has won the element."""
    tests = [expr(f"m == {NOBODY}", m=reference(own[0], indices)) for own in masks]
    return tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)


def _is_lowest(value: ast.expr) -> bool:
    if isinstance(value, ast.UnaryOp):
        value = value.operand
    if isinstance(value, ast.Name):
        return value.id in ("INFINITY", "inf")
    number = literal(value)
    return (number is not None and number >= LOWEST) or (
        isinstance(value, ast.Constant) and value.value == float("inf")
    )


def _offset(loop: Loop) -> ast.expr:
    """The distance of the loop variable from the loop's start: 0 or more, so it is never one of the marks above."""
    variable = ast.Name(loop.var, ast.Load())
    if loop.step < 0:
        return expr("s - v", v=variable, s=loop.start)
    return variable if constant(loop.start) == 0 else expr("v - s", v=variable, s=loop.start)
