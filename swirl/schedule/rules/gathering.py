"""Sums whose iterations add to each other's elements become loops over the elements."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from swirl.analysis.accesses import Access
from swirl.analysis.statements import Statement, statements_of
from swirl.analysis.trips import trips
from swirl.ir.affine import affine
from swirl.ir.nest import fresh
from swirl.ir.printing import unparse
from swirl.ir.trees import names_in
from swirl.schedule.rules.one_hot_sums import places_of
from swirl.schedule.rules.trials import Trials, one_by_one
from swirl.transforms.rewrites.sites import taken_names


def gather(own: Trials) -> None:
    """Sums of a nest whose iterations add to each other's elements become loops over the elements.

    rewrite:
        for x in range(56):                              for x_to in range(58):
            for j in range(3):                     →         for j in range(3):
                g[x + j] += w[j] * a[x]                          if 0 <= x_to - j < 56:
                                                                     g[x_to] += w[j] * a[x_to - j]

    Hardware: an element stays in a register for all of its terms, and threads have elements of their own.
    """
    adding = [(s, index) for s in statements_of(own.nests[0]) for a in s.accesses if a.kind == "add" for index in a.own]
    own.give_own_names({name for s, index in adding if _overlapping(s, index) for name in names_in(index)})
    _reindex(own)
    read = [a.name for found in _scattered(own) for a in found.reads_of_locals(statements_of(own.nests[0]))]
    names = [name for name in dict.fromkeys(read) if name not in own.program.buffers]
    trial = own.scratch()  # the loops in which a local is set are not those of a sum over its neighbours
    if names and trial.apply("a sum over neighbours has loops of its own", "store_local", names):
        _reindex(trial)
        if not any(_scattered(trial)):
            own.accept(trial)


def _reindex(own: Trials) -> None:
    """Once for each array and dimension: sums that are refused are left in it."""
    for found in one_by_one(partial(_scattered, own), lambda one: (one.array, one.dim)):
        new = fresh(f"{found.loop}_to", taken_names(own.program))
        own.apply("each iteration sums elements of its own", "reindex", found.loop, **{new: found.index})


@dataclass(frozen=True)
class _Scattered:
    """A sum some of whose iterations add to the same elements.

    Args:
        array, dim: what it adds to, and by which subscript.
        loop: the longest one in the subscript.
        index: the subscript.
        statement: the sum.
    """

    array: str
    dim: int
    loop: str
    index: str
    statement: Statement

    def reads_of_locals(self, known: Sequence[Statement]) -> Iterator[Access]:
        """What is read of locals that are set in the loop, and outside of the innermost one around the sum."""
        around = self.statement.path[: self.statement.loop_depths[-1] + 1]
        for access in (a for s in known if s.path[: len(around)] == around for a in s.accesses):
            outside = len(access.indices) < len(self.statement.loops)
            if access.kind == "read" and not access.own and outside and any(self.loop in n for n in access.names):
                yield access


def _scattered(own: Trials) -> Iterator[_Scattered]:
    """Those of a nest, but for sums over places that data tell."""
    known = statements_of(own.nests[0])
    for statement in known:
        places = places_of(statement, known)
        if places is not None and places.fit_lanes(own):
            continue
        for access in statement.accesses:
            for dim, index in enumerate(access.own if access.kind == "add" else ()):
                longest = _overlapping(statement, index)
                if longest is not None and access.name in own.program.buffers:
                    yield _Scattered(access.name, dim, longest, unparse(index), statement)


def _overlapping(statement: Statement, index: ast.expr) -> str | None:
    """The longest loop in a subscript, where iterations of other loops in it may have the same element; if it moves by
    a stride, only of sums that have other terms, too."""
    form = affine(index)
    heads = {loop.var: trips(loop, statement.ranges) for loop in statement.loops}
    moving = [var for var in form.terms if heads.get(var) != 1] if form is not None else []
    if form is None or len(moving) < 2 or not set(moving) <= set(heads):
        return None
    longest = max(moving, key=lambda var: heads[var])
    reach = 1
    for coefficient, var in sorted((abs(form.terms[var]), var) for var in moving):
        if coefficient < reach:
            own = abs(form.terms[longest]) == 1 or _has_other_terms(statement)
            return longest if own else None
        reach = coefficient * heads[var]
    return None  # digits of one number: each iteration has elements of its own


def _has_other_terms(statement: Statement) -> bool:
    """Whether a sum has terms along loops that move none of its subscripts: these run on, whichever of the others a
    stride leaves out."""
    (target,) = [access for access in statement.accesses if access.kind == "add"]
    moving = names_in(ast.Tuple(list(target.own), ast.Load()))
    return any(loop.var not in moving for loop in statement.loops if loop.extent != 1)
