"""Sums some of whose terms borders leave out: they are kept in registers."""

from __future__ import annotations

from itertools import groupby

from swirl.analysis.loop_facts import contractions
from swirl.analysis.statements import statements_of
from swirl.ir.nest import names_in
from swirl.schedule.rules.blocking import in_blocks
from swirl.schedule.rules.copies import WRITTEN_OUT
from swirl.schedule.rules.trials import Trials


def sum_inside(trials: Trials) -> None:
    """Of short loops, those that add to the same element go inside of those that move from element to element.

    rewrite:
        for j in range(3):                                for x in range(7):
            for x in range(7):                                for j in range(3):
                if 0 <= x + j - 1 < 7:               →            if 0 <= x + j - 1 < 7:
                    y[x] += w[j] * a[x + j - 1]                       y[x] += w[j] * a[x + j - 1]

    Hardware: the element stays in a register for all of its terms; each is one load and one store otherwise.
    """
    (nest,), buffers = trials.nests, trials.program.buffers
    chosen = [found.statement for found in contractions(nest, buffers) if in_blocks(found)]
    adding = [s for s in statements_of(nest) if s.guards and s not in chosen]
    for statement in adding:
        moving = {n for a in statement.accesses if a.kind == "add" for index in a.own for n in names_in(index)}
        for short, run in groupby(statement.loops, lambda loop: 2 <= (loop.extent or 0) <= WRITTEN_OUT):
            names = [loop.var for loop in run]
            order = sorted(names, key=lambda name: name not in moving)
            if short and moving and order != names:
                trials.apply("terms of the same sums are inside", "reorder", order)


def keep_sums(trials: Trials) -> None:
    """Sums under conditions on the loops are kept in locals.

    rewrite:
        for j in range(3):                                y_t: float32 = y[x]
            if 0 <= x + j - 1 < 56:                       for j in range(3):
                y[x] += w[j] * a[x + j - 1]        →          if 0 <= x + j - 1 < 56:
                                                                  y_t += w[j] * a[x + j - 1]
                                                          y[x] = y_t

    Hardware: lanes that a border leaves out need not store; a masked store costs several plain ones on some processors.
    """
    adding = [s for s in statements_of(trials.nests[0]) if s.guards]
    names = dict.fromkeys(a.name for s in adding for a in s.accesses if a.kind == "add")
    for name in names:
        if name in trials.program.buffers:
            trials.apply("sums stay in registers, whatever the borders leave out", "scalar_replace", name)
