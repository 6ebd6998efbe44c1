"""Loops of which data choose one iteration."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from swirl.analysis.accesses import Access, parsed
from swirl.analysis.loop_facts import stride
from swirl.analysis.statements import Statement, statements_of
from swirl.analysis.trips import trips
from swirl.ir.names import INDEX_CALLS
from swirl.ir.nest import names_in
from swirl.ir.trees import name_of, nodes
from swirl.schedule.rules.trials import Trials, step
from swirl.transforms.rewrites.loops.bounds import conjuncts, equal_to

FEW = 2
"""Places for each lane, up to which adding zeros to all of them takes no longer than finding one: lanes add to that
many vectors, where a place of each lane is a store of its own."""


@dataclass(frozen=True)
class Places:
    """The places of a sum's terms that data choose.

    Args:
        statement: that adds a term.
        target: what it adds to.
        which: the loops of which data choose the iteration, outer before inner; and which one.
    """

    statement: Statement
    target: Access
    which: Mapping[str, ast.expr]

    @cached_property
    def read(self) -> set[str]:
        """The names that say which place it is."""
        return {name for one in self.which.values() for name in names_in(one)}

    @cached_property
    def free(self) -> set[str]:
        """The loops that move the target in a dimension in which data choose nothing."""
        own = [names_in(index) for index in self.target.own]
        chosen = {name for names in own if names & self.which.keys() for name in names}
        varying = {name for names in own if not names & self.which.keys() for name in names}
        return (varying & {loop.var for loop in self.statement.loops if loop.extent != 1}) - chosen

    def fit_lanes(self, trials: Trials) -> bool:
        """Whether neighbours in memory have places of their own, and these are at most :data:`FEW` times the lanes."""
        width, buffers = trials.target.simd_width, trials.program.buffers
        heads = {loop.var: trips(loop, self.statement.ranges) for loop in self.statement.loops}
        own = self.free & self.read
        rows = [min(width, heads[var]) for var in own if stride(self.target, var, self.statement, buffers) == 1]
        return bool(rows) and prod(heads[var] for var in self.which) <= FEW * max(rows)


def places_of(statement: Statement, known: Sequence[Statement]) -> Places | None:
    """The places that data choose for a sum's term; None where they choose none.

    Args:
        statement: that adds the term, maybe by way of locals.
        known: all statements of the nest.
    """
    target = next((access for access in statement.accesses if access.kind == "add"), None)
    if target is None:
        return None
    selects = (
        node.test for one in _makers(statement, known) for node in nodes(one.node) if isinstance(node, ast.IfExp)
    )
    tests = [part for test in (*map(parsed, statement.guards), *selects) for part in conjuncts(test)]
    which: dict[str, ast.expr] = {}
    for var in statement.variables():
        for one in (equal_to(var, part) for part in tests):
            if one is not None and names_in(one) - statement.variable_set - INDEX_CALLS:
                which.setdefault(var, one)
    return Places(statement, target, which) if which else None


def _makers(statement: Statement, known: Sequence[Statement]) -> list[Statement]:
    """A statement, and those that declare the locals which it reads, directly or not."""
    declared = {name_of(one.node.target): one for one in known if isinstance(one.node, ast.AnnAssign)}
    found = [statement]
    for one in found:  # it grows as we go
        makers = [declared[access.name] for access in one.accesses if access.kind == "read" and access.name in declared]
        found += [maker for maker in makers if maker not in found]
    return found


def go_to_places(trials: Trials) -> None:
    """Loops over the places that a term may be added to become the one that it is added to: not where lanes have few
    places, of their own; nor where no other loop is left for threads.

    rewrite:
        for j in range(1000):                                           for d in range(64):
            for d in range(64):                                   →         w[idx[n], d] += g[n, d]
                w[j, d] += g[n, d] if idx[n] == j else 0.0

    Hardware: lanes and copies of the loop would add zeros to all other places, each a load and a store.
    """
    known = statements_of(trials.nests[0])
    trials.give_own_names(
        {var for one in known if (places := places_of(one, known)) is not None for var in places.which}
    )
    known = statements_of(trials.nests[0])
    for statement in known:
        places = places_of(statement, known)
        if places is not None and places.free and not places.fit_lanes(trials):
            chosen, around = list(places.which), statement.variables()
            outside = [var for var in around[around.index(chosen[0]) :] if var in places.read]
            first = [step("places are those of an iteration", "reorder", [*outside, *chosen])] if outside else []
            why = "data choose the one iteration that adds something"
            trials.together([*first, *(step(why, "locate", var) for var in reversed(chosen))])
