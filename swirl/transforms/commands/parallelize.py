"""parallelize: a loop's iterations shared among threads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from swirl.analysis.dependences import Conflict, NotProved, carried
from swirl.analysis.statements import statements_of
from swirl.ir.affine import affine
from swirl.ir.nest import Program, fresh, kind_of, loop_of, variable_of
from swirl.ir.paths import at, loops, replace_at
from swirl.ir.printing import unparse
from swirl.transforms.arguments import LoopNameOrNames, NestName, ThreadSchedule
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.checked import check_locals
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.checks.ways_out import Trial, nest_of, others, step
from swirl.transforms.rewrites.sites import Site, loop_at, rewrite_each, taken_names
from swirl.transforms.rewrites.sums.reductions import NEUTRAL


@command()
def parallelize(
    program: Program,
    loop_var: LoopNameOrNames,
    *,
    schedule: ThreadSchedule | None = None,
    nest: NestName | None = None,
) -> Program:
    """Share a loop's iterations among the threads (OpenMP). Directly nested parallel loops collapse.

    rewrite:
        for n in range(N):          →       for n in parallel(N):
            s                                   s

    Args:
        loop_var: the loop, or several, outermost first, that become one parallel range of iterations.
        schedule: OpenMP's schedule: ``"static"`` (default), ``"dynamic"``, ``"dynamic,4"`` (of any size), ``"guided"``.
        nest: only in this nest (index or label).

    Raises:
        Refused: two iterations touch one element and one of them writes it; the loop assigns a local that is declared
            outside of it; or one loop is inside of the other one, but not directly.

    Source: Lake, section 3.3.
    """
    for name in loop_var if isinstance(loop_var, (list, tuple)) else [loop_var]:
        program = rewrite_each(program, name, nest, lambda before, site: _shared(before, site, schedule))
    return program


def _shared(program: Program, site: Site, schedule: str | None) -> Program:
    target, node = program.nests[site.nest], loop_at(program, site)
    loop = loop_of(node)
    note = "asked to run in parallel"
    if loop.kind == "parallel":
        return program
    if loop.kind != "range":
        raise refuse(f"{loop.var} is a {loop.kind} loop", target, site.path, note)
    for depth in range(1, len(site.path)):
        around = at(target.body, site.path[:depth])
        if isinstance(around, ast.For) and kind_of(around) == "parallel" and not _directly(around, node):
            raise refuse(
                f"{loop.var} is inside the parallel loop {variable_of(around)}, not directly",
                target,
                site.path,
                note,
                way_out="parallelize one of them",
            )
    for _, inner in loops(node.body):
        if kind_of(inner) == "parallel" and not _directly(node, inner):
            raise refuse(
                f"{loop.var} holds the parallel loop {variable_of(inner)}, not directly",
                target,
                site.path,
                note,
                way_out="parallelize one of them",
            )
    try:
        race = carried(target.body, site.path, reductions=True, known=statements_of(target))
    except NotProved:
        raise refuse("not proved free of races within the time allowed", target, site.path, note) from None
    if race is not None:
        problem = "two iterations would update the same element"
        if race.first_access.kind != race.second_access.kind or race.first_access.kind == "write":
            problem = "two iterations would touch the same element, one of them writing"
        raise refuse(problem, target, site.path, note, witness=race, way_out=lambda: _ways_out(program, site, race))
    check_locals(target, site.path, note, lambda: _ways_out(program, site, None))
    options = (("schedule", schedule),) if schedule else ()
    shared = replace(loop, kind="parallel", options=options).node(node.body)
    return program.with_nest(site.nest, target.with_body(replace_at(target.body, site.path, [shared])))


def _directly(outer: ast.For, inner: ast.For) -> bool:
    """Whether only perfectly nested parallel loops are between two loops: they collapse."""
    node: ast.stmt = outer
    while isinstance(node, ast.For) and len(node.body) == 1:
        node = node.body[0]
        if node is inner:
            return True
        if not isinstance(node, ast.For) or kind_of(node) != "parallel":
            return False
    return False


def _ways_out(program: Program, site: Site, race: Conflict | None) -> str:
    """What can run in parallel instead: other loops, copies of what is added to, a loop over the elements."""
    trial = Trial(program)
    var = loop_of(loop_at(program, site)).var
    only = nest_of(program, site)
    found = others(trial, site, lambda name, **options: (step("parallelize", name, **options),))
    plain = [one for (one,) in found if not one.options]
    single = [one.text for (one,) in found if one.options]
    more = f" (or {', '.join(repr(one.arguments[0]) for one in plain[1:])})" if plain[1:] else ""
    free = [f"{plain[0].text}{more}"] if plain else []
    free += [" or ".join(single)] if single else []
    if race is not None:
        kind, name = race.first_access.kind, race.first_access.name
        copies = step("privatize", name, var, nest=only)
        if (
            kind == race.second_access.kind
            and kind in NEUTRAL
            and name in program.buffers
            and trial.works(copies, step("parallelize", var, nest=only))
        ):
            free.append(f"{copies.text} gives each part of the loop a copy to add to")
        for gather, text in _subscripts(race, var):
            new = fresh(gather, taken_names(program))
            made = step("reindex", **{new: text}, nest=only)
            if trial.works(made, step("parallelize", new)):
                free.append(f"{made.text} makes each element belong to one iteration of {new}")
                break
    if free:
        return "; ".join(free)
    return "every loop here updates shared elements: parallelize a loop outside, or keep it sequential"


def _subscripts(race: Conflict, var: str) -> Iterator[tuple[str, str]]:
    """The subscripts that move with the loop and others, and a name for a loop over each: ``iy``, ``y + ky``."""
    for index in race.first_access.indices:
        form = affine(index)
        if form is not None and form.coefficient(var) and len(form.terms) > 1:
            yield f"i{var}", unparse(index)
