"""Sums whose data are rows along a loop over terms, with a loop over results inside: the results go outside."""

from __future__ import annotations

from swirl.analysis.accesses import Access
from swirl.analysis.loop_facts import moves, stride
from swirl.analysis.statements import Statement, statements_of
from swirl.analysis.trips import trips
from swirl.schedule.rules.hardware import CHUNKS
from swirl.schedule.rules.trials import Trials

WHY = "its data are rows along {}"


def results_outside(own: Trials) -> bool:
    """A sum of a nest gets loops of its own, with those over results outside; whether it has.

    rewrite:
        for x in range(X):                         for x in range(X):
            r = 1.0 / sqrt(q[x])                       r_stored[x] = 1.0 / sqrt(q[x])
            for c in range(C):               →     for c in range(C):
                g[c] += a[c, x] * r                    for x in range(X):
                                                           g[c] += a[c, x] * r_stored[x]

    Hardware: a vector of neighbours is one load, one of elements that are rows apart as many as it has lanes; and each
    row is on a page of its own.
    """
    found = _found(own)
    if found is None:
        return False
    statement, row, results = found
    trial, why = own.scratch(), WHY.format(row)
    between = [
        a.name for a in statement.accesses if a.kind == "read" and not a.own and a.name not in own.program.buffers
    ]
    if between and not trial.apply(why, "store_local", list(dict.fromkeys(between))):
        return False
    alone = trial.cut_off(why, statement.variables())
    others = [var for var in statement.variables() if var not in results and var != row]
    if alone is None or not alone.apply(why, "reorder", [*results, *others, row]):
        return False
    own.accept(alone)
    return True


def _found(own: Trials) -> tuple[Statement, str, list[str]] | None:
    """The last statement of a nest, if it is such a sum: with the loop along which its data are rows, and those over
    results."""
    nest, buffers = own.nests[0], own.program.buffers
    statement = statements_of(nest)[-1]
    adding = [a for a in statement.accesses if a.kind == "add" and a.name in buffers]
    if len(adding) != 1 or not statement.loops:
        return None
    results = [var for var in statement.variables() if moves(adding[0], var)]
    terms = [var for var in statement.variables() if var not in results]
    read = [a for a in statement.accesses if a.kind == "read" and a.name in buffers]
    inner = statement.variables()[-1]
    if inner not in results or not terms or not any(_far(a, inner, statement, own) for a in read):
        return None
    count = {loop.var: trips(loop, statement.ranges) for loop in statement.loops}
    rows = [var for var in terms if all(stride(a, var, statement, buffers) in (0, 1) for a in read)]
    longest = max(rows, key=count.__getitem__, default=None)
    if longest is None or count[longest] < 2 * own.target.simd_width or count[inner] < CHUNKS:
        return None
    return statement, longest, results


def _far(access: Access, var: str, statement: Statement, own: Trials) -> bool:
    """Whether neighbouring iterations of a loop touch other lines."""
    distance = stride(access, var, statement, own.program.buffers)
    return distance is None or abs(distance) >= own.target.simd_width
