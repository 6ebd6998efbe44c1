"""Loops of which data choose one iteration."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from math import prod

from latte.planning.defaults.trials import Trials, step
from swirl.ir.names import INDEX_CALLS
from swirl.ir.nest import names_in
from swirl.ir.statements import Statement, parsed, statements_of
from swirl.ir.trees import nodes
from swirl.loop_facts import stride, trips
from swirl.transforms.rewrites.bounds import conjuncts, equal_to

FEW = 2
"""Places for each lane, up to which adding zeros to all of them takes no longer than finding one."""


def go_to_places(trials: Trials) -> None:
    """Loops over the places that a term may be added to become the one that it is added to: lanes and copies would add
    zeros to the others. Not where lanes have few places, of their own; nor where no other loop is left for threads."""
    for statement in statements_of(trials.nests[0]):
        chosen = dict(chosen_by_data(statement))
        if chosen and _free(statement) and not lanes_pay(trials, statement):
            own = {name for which in chosen.values() for name in names_in(which)}
            inside = statement.variables()[statement.variables().index(next(iter(chosen))) :]
            outside = [var for var in inside if var in own]
            first = [step("places are those of an iteration", "reorder", [*outside, *chosen])] if outside else []
            why = "data choose the one iteration that adds something"
            trials.together([*first, *(step(why, "locate", var) for var in reversed(chosen))])


def chosen_by_data(statement: Statement) -> Iterator[tuple[str, ast.expr]]:
    """The loops of which data choose the iteration in which a sum gets a term, outer before inner; and which one."""
    if any(access.kind == "add" for access in statement.accesses):
        selects = (node.test for node in nodes(statement.node) if isinstance(node, ast.IfExp))
        tests = [part for test in (*map(parsed, statement.guards), *selects) for part in conjuncts(test)]
        for var in statement.variables():
            equal = (equal_to(var, part) for part in tests)
            of_data = (e for e in equal if e is not None and names_in(e) - statement.variable_set - INDEX_CALLS)
            which = next(of_data, None)
            if which is not None:
                yield var, which


def lanes_pay(trials: Trials, statement: Statement) -> bool:
    """Whether neighbours in memory have places of their own, and these are at most :data:`FEW` times the lanes."""
    chosen, width = dict(chosen_by_data(statement)), trials.target.simd_width
    if not chosen:
        return False
    heads = {loop.var: trips(loop, statement.ranges) for loop in statement.loops}
    own = {name for which in chosen.values() for name in names_in(which)}
    (target,) = (access for access in statement.accesses if access.kind == "add")
    rows = [
        min(width, heads[var])
        for var in _free(statement) & own
        if stride(target, var, statement, trials.program.buffers) == 1
    ]
    return bool(rows) and prod(heads[var] for var in chosen) <= FEW * max(rows)


def _free(statement: Statement) -> set[str]:
    """The loops that move the target of a sum in a dimension in which data choose nothing."""
    chosen = dict(chosen_by_data(statement))
    (target,) = (access for access in statement.accesses if access.kind == "add")
    own = [names_in(index) for index in target.own]
    moved = {name for names in own if not names & chosen.keys() for name in names}
    long = {loop.var for loop in statement.loops if loop.extent != 1}
    return (moved & long) - {name for names in own if names & chosen.keys() for name in names}
