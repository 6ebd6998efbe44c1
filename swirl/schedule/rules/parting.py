"""Loops of their own for contractions and other sums that share theirs with statements that want other ones."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod

from swirl.analysis.loop_facts import NEAR, Contraction, contractions, facts, moves, stride, wants_lanes
from swirl.analysis.statements import statements_of
from swirl.ir.nest import Nest, loop_of, variable_of
from swirl.ir.paths import Path, loops
from swirl.ir.trees import nodes
from swirl.schedule.rules.blocking import all_make, gains_alone
from swirl.schedule.rules.flattening import flatten
from swirl.schedule.rules.hardware import READ_OFTEN
from swirl.schedule.rules.trials import Trials


def store_products(own: Trials) -> None:
    """Locals that a contraction adds to, or reads, are stored where each has many terms or is in many: it gets
    loops of its own then. What is computed of its results, and of its factors before it, wants others.

    rewrite:
        for n in range(8):                               for n in range(8):
            for k in range(64):                              for k in range(64):
                t = 0.0                                          t_stored[n, k] = 0.0
                for i in range(512):                         for k in range(64):
                    t += w[k, i] * a[n, i]          →            for i in range(512):
                y[n, k] = tanh(t)                                    t_stored[n, k] += w[k, i] * a[n, i]
                                                             for k in range(64):
                                                                 y[n, k] = tanh(t_stored[n, k])

    Hardware: a register tile of several results shares what it loads; functions of them are computed in lanes after it.
    """
    buffers, names = own.program.buffers, dict[str, None]()
    for statement in (found.statement for found in contractions(own.nests[0], buffers)):
        trips = [loop.extent or 0 for loop in statement.loops]
        for local in (a for a in statement.accesses if a.name not in buffers and not a.own):
            around = len(local.indices)
            if around and prod(trips[around:]) >= READ_OFTEN:
                names[local.name] = None
    trial = own.scratch()
    why = "a product has loops of its own"
    if names and trial.apply(why, "store_local", list(names)) and cut(trial):
        own.accept(trial)


def cut(own: Trials) -> bool:
    """Contractions, and sums with more loops than others, get loops of their own; whether a loop was cut.

    rewrite:
        for n in range(8):                               for n in range(8):
            for k in range(64):                              for k in range(64):
                for i in range(512):                             for i in range(512):
                    y[n, k] += w[k, i] * a[n, i]    →                y[n, k] += w[k, i] * a[n, i]
                z[n, k] = tanh(y[n, k])                  for n in range(8):
                                                             for k in range(64):
                                                                 z[n, k] = tanh(y[n, k])

    Hardware: copies of ``n`` and ``k`` share what they load, in a register tile; lanes of ``tanh`` run along ``k``.
    """
    refused: set[str] = set()
    done = False
    if _shared_loop(own, refused) is not None:
        own.give_own_names()
    while (shared := _shared_loop(own, refused)) is not None:
        if own.apply("each sum has loops of its own", "distribute", shared) or _cut_with_locals(own, shared):
            own.give_own_names()
            done = True
        else:
            refused.add(shared)
    return done


def _cut_with_locals(own: Trials, var: str) -> bool:
    """Cut a loop whose statements share locals without calls, and the loops around it: each sum computes them again,
    and has a nest of its own, so that its operands may be copied for it alone. Whether the loop was cut.

    rewrite:
        for n in range(8):                               for n in range(8):
            for i in range(64):                              for i in range(64):
                for d in range(64):                              for d in range(64):
                    t = g[n, i, d] / 64.0           →                t = g[n, i, d] / 64.0
                    s[n, i] += t * x[n, d]                           s[n, i] += t * x[n, d]
                    y[n, d] += t * a[n, i]               for n in range(8):
                                                             for i in range(64):
                                                                 for d in range(64):
                                                                     t = g[n, i, d] / 64.0
                                                                     y[n, d] += t * a[n, i]

    Hardware: lanes of the one are terms of the other: in one loop, one of them gathers.
    """
    found = next(loop for loop in own.loops() if loop.var == var)
    (node,) = (node for path, node in loops(own.nests[0].body) if path == found.path)
    values = (each.value for each in node.body if isinstance(each, ast.AnnAssign) and each.value is not None)
    if any(isinstance(part, ast.Call) for value in values for part in nodes(value)):
        return False
    if not own.apply("each sum computes what it shares with others", "distribute", var, recompute=True):
        return False
    for loop in reversed(found.around.loops):
        own.apply("each sum has a nest of its own", "distribute", loop.var)
    return True


def parted(trials: Trials) -> Sequence[Nest]:
    """The nests with contractions that get loops of their own, on a copy."""
    trial = trials.scratch()
    flatten(trial)
    found = []
    for number, nest in enumerate(trial.program.nests):
        own = replace(trial.scratch(), nest=number)
        shared = _shared_loop(own, ()) if contractions(nest, own.program.buffers) else None
        if shared is not None and own.apply("each sum has loops of its own", "distribute", shared):
            found.append(nest)
    return found


def lone_contractions(trials: Trials) -> int:
    """How many contractions have a nest of their own once their loops are cut, on a copy: a local that is read
    after them may keep them where it is made."""
    trial, number = trials.scratch(), 0
    while number < len(trial.program.nests):  # cutting a nest makes others of it
        cut(replace(trial, nest=number))
        number += 1
    nests, buffers = trial.program.nests, trial.program.buffers
    return sum(len(statements_of(nest)) == 1 and bool(contractions(nest, buffers)) for nest in nests)


def _shared_loop(own: Trials, refused: Collection[str]) -> str | None:
    """The innermost loop over what a contraction reads again and other loops, or calls of functions (they want
    lanes); or over its terms, and other loops or statements, around loops over its results, which cannot move
    outside of it; or, but for the outermost, around contractions with several targets, or over terms of several
    sums, some of which have more loops than others."""
    nest = own.nests[0]
    found = contractions(nest, own.program.buffers)
    known = statements_of(nest)
    sums = [(s, a) for s in known for a in s.accesses if a.kind == "add"]
    for path, node in sorted(loops(nest.body), key=lambda item: -len(item[0])):
        var = variable_of(node)
        if len(node.body) == 1 or var in refused:
            continue
        inside = [c for c in found if c.statement.path[: len(path)] == path]
        deeper = [s for s in known if s.path[: len(path)] == path and len(s.loops) > len(path)]
        targets = {c.target.text for c in inside}
        over = [(s, a) for s, a in sums if s.path[: len(path)] == path and not moves(a, var)]
        if len({len(s.loops) for s, _ in over}) > 1:
            targets |= {access.text for _, access in over}
        several = len(path) > 1 and len(targets) > 1
        again = [c for c in inside if var in c.read_again]
        around = {loop.var for c in inside for loop in c.statement.loops[: c.statement.variables().index(var)]}
        # A loop of one iteration keeps a contraction from blocks of those around.
        held = [c for c in inside if loop_of(node).extent == 1 and around & set(c.read_again)]
        over_terms = any(var in c.sums and _results_inside(c, path) for c in inside)
        calls = any(wants_lanes(s) for s in known if s.path[: len(path)] == path)
        if (
            several
            or over_terms
            or (len(path) > 1 and (_lanes_differ(own, path) or not found and _written_differently(own, path)))
            or any(calls or not all_make(c, deeper) or gains_alone(own, c) for c in again)
            or any(gains_alone(own, c) for c in held)
        ):
            return var
    return None


def _lanes_differ(own: Trials, path: Path) -> bool:
    """Whether of the rows in the loop at ``path`` some can become lanes, and others cannot, as of a
    recurrence: lanes along the loop around, the only ones for all of them, would gather."""
    every, width = facts(own.nests[0], own.program.buffers), own.target.simd_width
    rows = []
    for number, loop in enumerate(every):
        inside = loop.path[: len(path)] == path and loop.depth == len(path) + 1 and not any(map(loop.contains, every))
        if inside and loop.trips >= width and loop.contiguous and not loop.gathered:
            rows.append((loop.var, [other.var for other in every[:number]].count(loop.var)))
    if len(rows) < 2:
        return False
    can = [own.scratch().apply("", "vectorize", var, width, occurrence=occurrence) for var, occurrence in rows]
    return any(can) and not all(can)


def _written_differently(own: Trials, path: Path) -> bool:
    """Whether statements in the loop at ``path`` write rows along one of their loops, and others along another one, as
    the gradients of ``x[i, j] * y[j, i]``: lanes along either would scatter."""
    along: set[str] = set()
    for statement in statements_of(own.nests[0]):
        if statement.path[: len(path)] == path:
            written = [a for a in statement.accesses if a.kind != "read"]
            if len(written) != 1 or written[0].name not in own.program.buffers:
                return False  # a local holds them together
            strides = {v: stride(written[0], v, statement, own.program.buffers) for v in statement.variables()}
            rows = [var for var, distance in strides.items() if distance == 1]
            if len(rows) != 1 or not all(distance == 1 or (distance or 0) > NEAR for distance in strides.values()):
                return False  # a sum, or a few elements apart
            along.update(rows)
    return len(along) > 1


def _results_inside(found: Contraction, path: Path) -> bool:
    """Whether the loop at ``path`` is around one over the contraction's results."""
    around = zip(found.statement.loops, found.statement.loop_depths, strict=True)
    return any(loop.var in found.results for loop, depth in around if depth >= len(path))
