"""Loops of which data choose one iteration."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from latte.planning.defaults.trials import Trials
from swirl.ir.names import INDEX_CALLS
from swirl.ir.nest import names_in
from swirl.ir.statements import Statement, parsed, statements_of
from swirl.ir.trees import nodes
from swirl.loop_facts import stride
from swirl.transforms.rewrites.bounds import conjuncts, equal_to


def go_to_places(trials: Trials) -> None:
    """Loops over the places that a term may be added to become the one that it is added to: lanes and copies would add
    zeros to the others. Where neighbours in memory have places of their own, lanes for all places are as fast."""
    for statement in statements_of(trials.nests[0]):
        chosen = list(chosen_by_data(statement))
        if chosen and not _lanes_beside(trials, statement, set(chosen)):
            for var in reversed(chosen):
                trials.apply("data choose the one iteration that adds something", "locate", var)


def chosen_by_data(statement: Statement) -> Iterator[str]:
    """The loops of which data choose the iteration in which a sum gets a term, outer before inner."""
    if any(access.kind == "add" for access in statement.accesses):
        selects = (node.test for node in nodes(statement.node) if isinstance(node, ast.IfExp))
        tests = [part for test in (*map(parsed, statement.guards), *selects) for part in conjuncts(test)]
        for var in statement.variables():
            which = (equal_to(var, part) for part in tests)
            if any(one is not None and names_in(one) - statement.variable_set - INDEX_CALLS for one in which):
                yield var


def _lanes_beside(trials: Trials, statement: Statement, chosen: set[str]) -> bool:
    """Whether neighbours in memory are those of a loop in whose dimension no place is chosen."""
    (target,) = [access for access in statement.accesses if access.kind == "add"]
    own = [names_in(index) for index in target.own]
    free = [var for var in statement.variables() if not any(var in names and names & chosen for names in own)]
    return any(stride(target, var, statement, trials.program.buffers) == 1 for var in free)
