"""The default schedule's layouts: blocks of the arrays that a layer reads, and blocks for lanes."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from math import prod

from swirl.analysis.accesses import Access
from swirl.analysis.loop_facts import Contraction, contractions, longest_row
from swirl.analysis.statements import Statement, statements_of
from swirl.ir.affine import affine
from swirl.ir.buffers import Buffer
from swirl.ir.paths import Path
from swirl.ir.phases import INFERENCE
from swirl.schedule.rules.trials import Trials

LONG_ROW, LONG_CLIPPED_ROW = 2, 4
"""Vectors of a row from which on lanes along it do as well as along a block: less than a third of its
lanes are empty then; of one whose ends borders clip, whose first and last vectors have masks."""


def follow_blocks(trials: Trials) -> None:
    """Arrays of this layer get the blocks of the arrays that they are used with, in the dimensions that run alike:
    once, for all phases.

    rewrite (``a`` has its channels in blocks of 16):
        for c in range(64):                       for c_outer in range(0, 64, 16):
            for x in range(49):             →         for c_inner in range(16):
                y[c, x] = 2.0 * a[c, x]                   for x in range(49):
                                                              y[c_outer + c_inner, x] = 2.0 * a[c_outer + c_inner, x]

    Hardware: lanes along a block are neighbours in all arrays; in another layout each lane is a load of its own.
    """
    if trials.phase != next((phase for phase in trials.s.programs if phase != INFERENCE), None):
        return
    buffers = {name: b for program in trials.s.programs.values() for name, b in program.buffers.items()}
    along = _along_loops(trials)
    found = [  # all of them first: blocks make two loops of one
        (name, other, own, factor)
        for name, buffer in buffers.items()
        for dim, factor in buffer.layout.blocks
        for other, own in [*sorted(_alike(along, (name, dim))), (f"grad_{name}", dim)]
        if other in buffers
    ]
    for name, other, own, factor in found:
        _block(trials, f"the blocks of {name}", other, own, factor)


def block_results(trials: Trials) -> None:
    """Where rows are short, a dimension of a contraction's results that only this layer's arrays have is blocked,
    where it is not a row itself: lanes along it need no rows of the source. In forward; other phases follow.

    rewrite:
        for k in range(32):                             for k_outer in range(0, 32, 16):
            for c in range(3):                              for k_inner in range(16):
                for x in range(7):                  →           for c in range(3):
                    y[k, x] += w[k, c] * a[c, x]                    for x in range(7):
                                                                        y[k_outer + k_inner, x] += …

    Hardware: a row that is shorter than two vectors leaves up to half of the lanes empty; a block of channels fills
    them and takes one element of the source for all.
    """
    if trials.phase != "forward":
        return
    width = trials.target.simd_width
    for nest in trials.program.nests:
        for found in contractions(nest, trials.program.buffers, single=True):
            clipped = found.statement.guards or any(loop.extent is None for loop in found.statement.loops)
            long = LONG_CLIPPED_ROW if clipped else LONG_ROW
            if longest_row(found, trials.program.buffers) < long * width:
                for var in found.results:
                    _block_along(trials, found, var)


def _block_along(trials: Trials, found: Contraction, var: str) -> None:
    """Block what a loop over a contraction's results runs over, if that are dimensions of this layer's arrays alone."""
    seeds = {
        (access.name, dim)
        for access in (found.target, *found.operands)
        for dim in range(len(access.own) if access.name in trials.program.buffers else 0)
        if (over := _loop_over(found.statement, access, dim)) is not None and over.var == var
    }
    alike = _all_alike(_along_loops(trials), seeds)
    buffers = {name: _buffer(trials, name) for name, _ in alike}
    wide = all(buffers[name].shape[dim] * 2 > trials.target.simd_width for name, dim in alike)
    if len(alike) < 2 or not wide or not all(map(trials.s.owns, buffers)):
        return
    for name, dim in sorted(alike):
        row = prod(buffers[name].shape[dim + 1 :]) == 1
        if not row:
            _block(trials, "lanes along what the source does not have", name, dim, trials.target.simd_width)


def _block(trials: Trials, why: str, name: str, dim: int, factor: int) -> None:
    """Block a buffer's dimension; a value and its gradient are laid out alike, as readers expect."""
    buffer = _buffer(trials, name)
    if not buffer.layout.blocks and dim >= buffer.batch_dims:
        for one in ("value", "grad") if name in ("value", "grad") else (name,):
            trials.tile(why, one, dim - buffer.batch_dims, factor)


Dimension = tuple[str, int]
"""Of a buffer: its name, and the number."""


def _all_alike(along: Sequence[set[Dimension]], seeds: set[Dimension]) -> set[Dimension]:
    """Dimensions of buffers, and all that run alike, whatever is in between."""
    found, new = set(seeds), set(seeds)
    while new:
        new = set().union(*(_alike(along, one) for one in new)) - found
        found |= new
    return found


def _alike(along: Sequence[set[Dimension]], one: Dimension) -> set[Dimension]:
    """Dimensions of other buffers that a loop runs over as over one of a buffer."""
    return {other for over in along if one in over for other in over if other[0] != one[0]}


def _along_loops(trials: Trials) -> list[set[Dimension]]:
    """For each loop of any phase the dimensions that it runs over in one statement, or in several that have a local in
    common."""
    found: list[set[Dimension]] = []
    for program in trials.s.programs.values():
        for nest in program.nests:
            for group in _by_locals(statements_of(nest), program.buffers):
                over: dict[_Over, set[Dimension]] = {}
                for statement, access in ((s, a) for s in group for a in s.accesses if a.name in program.buffers):
                    for dim in range(len(access.own)):
                        if (loop := _loop_over(statement, access, dim)) is not None:
                            over.setdefault(loop, set()).add((access.name, dim))
                found += over.values()
    return found


def _by_locals(known: Sequence[Statement], buffers: Container[str]) -> list[list[Statement]]:
    """The statements, together with those that have a local in common."""
    groups: list[tuple[set[str], list[Statement]]] = []
    for statement in known:
        names = {access.name for access in statement.accesses if access.name not in buffers}
        joined = [group for group in groups if group[0] & names]
        groups = [group for group in groups if not group[0] & names]
        names = names.union(*(own for own, _ in joined))
        groups.append((names, [*(s for _, statements in joined for s in statements), statement]))
    return [statements for _, statements in groups]


def _buffer(trials: Trials, name: str) -> Buffer:
    """The buffer of that name, in whatever phase."""
    return next(program.buffers[name] for program in trials.s.programs.values() if name in program.buffers)


@dataclass(frozen=True)
class _Over:
    """A loop that runs over a dimension."""

    var: str
    path: Path


def _loop_over(statement: Statement, access: Access, dim: int) -> _Over | None:
    """The loop that runs over a dimension of an access, if there is one."""
    form = affine(access.own[dim])
    if form is None or form.constant:
        return None
    single = {loop.var for loop in statement.loops if loop.extent == 1}
    moving = [var for var, coefficient in form.terms.items() if var not in single and coefficient == 1]
    depths = {loop.var: depth for loop, depth in zip(statement.loops, statement.loop_depths, strict=True)}
    if len(moving) == len(form.terms.keys() - single) == 1 and moving[0] in depths:
        return _Over(moving[0], statement.path[: depths[moving[0]] + 1])
    return None
