"""Answers that spare the long way, on random programs: they are those of the long way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

from swirl.analysis import footprints
from swirl.analysis.accesses import Access
from swirl.analysis.dependences import disjoint, find
from swirl.analysis.statements import Statement, statements, statements_at
from swirl.ir.nest import Program, names_in
from swirl.ir.paths import at
from swirl.ir.trees import names_of
from tests import support
from tests.fuzz.checks import apply, random_pick
from tests.fuzz.commands import CommandMaker
from tests.fuzz.programs import ProgramMaker


def random_programs(count: int) -> Iterator[Program]:
    for seed in range(count):
        yield ProgramMaker(random_pick(seed)).program()


def meeting_by_name(program: Program) -> Iterator[tuple[Statement, Statement, Access, Access]]:
    """Pairs of references to one array, one of them writing."""
    for nest in program.nests:
        found = statements(nest.body)
        for first, second in [*combinations(found, 2), *zip(found, found, strict=True)]:
            for a, b in product(first.accesses, second.accesses):
                if a.name == b.name and {a.kind, b.kind} != {"read"} and a.indices:
                    yield first, second, a, b


def test_what_bounds_find_apart_never_meets() -> None:
    """isl finds no pair of instances that touch one element, in any iterations where the shared loops are equal."""
    told = 0
    for program in random_programs(300):
        for first, second, a, b in meeting_by_name(program):
            shared = [one.var for one, two in zip(first.loops, second.loops, strict=False) if one == two]
            for outer in range(len(shared) + 1):
                if not disjoint(first, second, a, b, set(shared[:outer])):
                    continue
                told += 1
                same = [f"{var}_a = {var}_b" for var in shared[:outer]]
                pair = (replace(first, accesses=(a,)), replace(second, accesses=(b,)))
                assert find(*pair, same, reductions=True) is None, f"{a.text} and {b.text} in\n{program.text}"
    assert told > 150


def test_the_ends_of_subscripts_are_those_that_isl_finds() -> None:
    """Also of steps, backwards, and in loops without iterations, which need no isl."""
    spared = 0
    stepping = "for i in range(9, {}, -2):\n    for j in range(1, 8, 3):\n        x[3 * i - 2 * j + 40] = y[j - i + 9]"
    shapes = {"x": (80,), "y": (20,)}
    others = [support.program(stepping.format(stop), **shapes) for stop in (0, -1, 8, 9)]
    for made in (*random_programs(60), *others):
        for statement in (s for nest in made.nests for s in statements(nest.body)):
            for form in (form for access in statement.accesses for form in access.forms if form is not None):
                text = statement.domain.subscript(form.to_expr())
                if text is not None:
                    assert footprints._ends(statement, form) == footprints.extremes(statement, text), made.text
                    spared += not statement.domain.constraints()
    assert spared > 300


def test_statements_of_a_part_are_those_of_the_whole() -> None:
    for program in random_programs(100):
        for nest in program.nests:
            whole = statements(nest.body)
            for path in {s.path[:depth] for s in whole for depth in range(1, len(s.path) + 1)}:
                inside = [s for s in whole if s.path[: len(path)] == path]
                assert statements_at(nest.body, path, [at(nest.body, path)]) == inside, program.text


def test_names_that_are_kept_are_those_of_the_tree() -> None:
    """Also after commands, which build on parts of the program before."""
    applied = 0
    for number, program in enumerate(random_programs(60)):
        pick = random_pick(number)
        for _ in range(4):
            for nest in program.nests:
                assert names_of(nest.body) == set().union(*map(names_in, nest.body)), program.text
            after = apply(program, CommandMaker(program, pick).make(None))
            applied += after is not None
            program = program if after is None else after
    assert applied > 40
