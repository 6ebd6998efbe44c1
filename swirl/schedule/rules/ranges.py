"""Ranges of loops: cut where a part of a range does something else than the others."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import pairwise
from math import lcm

from swirl.analysis.loop_facts import divided
from swirl.analysis.statements import Statement, statements_of
from swirl.analysis.trips import trips
from swirl.ir.nest import Loop
from swirl.ir.trees import names_in, nodes
from swirl.schedule.rules.trials import Trials


def cut_quotients(own: Trials) -> None:
    """A loop whose quotients or remainders are in subscripts is cut into blocks for which these are whole steps.

    rewrite:
        for x in range(64):                      for x_outer in range(0, 64, 2):
            y[x] = a[x // 2]               →         for x_inner in range(2):
                                                         y[x_outer + x_inner] = a[(x_outer + x_inner) // 2]

    Hardware: along the outer loop neighbours in memory are as many elements apart as the blocks have, which a few loads
    of vectors get; quotients by themselves are gathered, lane by lane.
    """
    every = [index for s in statements_of(own.nests[0]) for access in s.accesses for index in access.own]
    sizes: dict[str, int] = {}
    for var, size in (pair for index in every for pair in divided(index)):
        sizes[var] = lcm(size, sizes.get(var, 1))
    for var, size in sizes.items():
        own.apply(f"subscripts have quotients or remainders of {var} by {size}", "tile_loop", var, size)


def cut_clamped_ends(own: Trials) -> None:
    """The ends of a loop that alone have clamped subscripts, or fewer iterations inside, become loops of their own.

    rewrite:
        for x in range(64):                          for x in range(0, 1):
            y[x] = a[max(x - 1, 0)]            →         y[x] = a[0]
                                                     for x in range(1, 64):
                                                         y[x] = a[x - 1]

    Hardware: lanes of the others are neighbours in memory, which one load gets, and run through the same instructions.
    """
    known = statements_of(own.nests[0])
    rows = [a.own[-1] for s in known for a in s.accesses if a.own]
    clamped = {name for index in rows for name in _clamped(index)}
    clamped |= {name for s in known for loop in s.loops for name in _moving_ends(s, loop, rows)}
    pending = sorted(clamped)
    while pending:
        var, *pending = pending
        cuts, names = own.borders(var), own.loop_names
        if not cuts and any(own.borders(var, number) for number in range(1, names.count(var))):
            own.give_own_names({var})  # the first one, which zeroes, is not clamped
            pending = [*(name for name in own.loop_names if name not in names), *pending]
            continue
        longest = max(end - start for start, end in pairwise([0, *cuts, own.extent(var)])) if cuts else 0
        why = "the ends alone are clamped"
        if longest > 1 and own.apply(why, "split", var, cuts):
            own.give_own_names()


def _clamped(index: ast.expr) -> set[str]:
    """The names in a minimum or a maximum in a subscript or bound."""
    found = [node for node in nodes(index) if isinstance(node, ast.Call)]
    return {name for node in found for name in names_in(node)}


def _moving_ends(statement: Statement, loop: Loop, rows: Sequence[ast.expr]) -> set[str]:
    """The loops that clamp the bounds of one along rows, and move rows without it, too: not those over blocks, of which
    the last one is ragged, nor shorter ones, as those over taps."""
    names = [names_in(index) for index in rows]
    along = any(loop.var in own for own in names)
    clamping = {name for end in (loop.start, loop.stop) for name in _clamped(end)} if along else set()
    long = {each.var for each in statement.loops if (each.extent or 0) >= trips(loop, statement.ranges)}
    return {var for var in clamping & long if any(var in own and loop.var not in own for own in names)}
