"""partial_sums: a long sum as a sum of shorter ones."""

from __future__ import annotations

import ast

from swirl.errors import Refused
from swirl.ir.nest import Program, clones, declare, expr, fresh, kind_of, loop_of, reference, subscripts, with_inner
from swirl.ir.paths import replace_at
from swirl.ir.trees import as_target, nodes
from swirl.ir.types import is_float
from swirl.transforms.arguments import LoopName, NestName
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.sites import Site, loop_at, rewrite_each, taken_names
from swirl.transforms.rewrites.storage.scalar_replacement import localize_reductions
from swirl.transforms.rewrites.sums.reductions import (
    accumulation,
    combine,
    declared_type,
    over,
    own_loops,
    reductions_over,
    retargeted,
)

NOTE = "asked for partial sums"


@command()
def partial_sums(program: Program, loop_var: LoopName, *, nest: NestName | None = None) -> Program:
    """Let each iteration of a loop add up its own terms, and add that to the sum: long sums lose fewer digits.

    rewrite:
        for n in range(N):                  for n in range(N):
            for i in range(M):      →           s_part: float32 = 0.0
                s += x[n, i]                    for i in range(M):
                                                    s_part += x[n, i]
                                                s += s_part

    A sum of N·M terms in order may lose N·M roundings of the sum of their absolute values; with partial sums it may
    lose M + N. After ``vectorize`` and ``unroll``, the sums of lanes and copies stay in registers.

    Args:
        loop_var: the loop; it contains the loops that add up.
        nest: only in this nest (index or label).

    Raises:
        Refused: no loop inside adds to something that stays the same; or the sum is used meanwhile.

    Source: Higham, *Accuracy and Stability of Numerical Algorithms*, section 4.2 (the number of additions that a term
    goes through bounds the error).
    """
    refusals: list[Refused] = []
    found: list[str] = []

    def rewrite(before: Program, site: Site) -> Program:
        try:
            after = _with_parts(before, site)
        except Refused as refusal:
            refusals.append(refusal)
            return before
        found.append(loop_var)
        return after

    result = rewrite_each(program, loop_var, nest, rewrite)
    if not found:
        raise refusals[0]
    return result


def _with_parts(program: Program, site: Site) -> Program:
    target = program.nests[site.nest]
    loop = loop_of(loop_at(program, site))
    if loop.kind != "range":
        raise refuse(
            f"{loop.var} is a {loop.kind} loop",
            target,
            site.path,
            NOTE,
            way_out="give this command before the one that made it so",
        )
    program, new_site = localize_reductions(program, site)
    nest, node = program.nests[site.nest], loop_at(program, new_site)
    inside = {text for loop in _inner_loops(node) for text in _added(loop)}
    sums = [
        (r, own, type_)
        for r in reductions_over(nest.body, new_site.path)
        if r.text in inside
        and r.name not in program.buffers
        and (own := own_loops(node, r)) is not None
        and is_float((type_ := declared_type(nest.body, new_site.path, r.name)).dtype)
    ]
    if not sums:
        raise refuse(
            f"no loop inside {loop.var} adds to something that stays the same",
            target,
            site.path,
            NOTE,
            way_out="name the loop around the one that adds up",
        )
    taken = taken_names(program, [nest])
    opening: list[ast.stmt] = []
    closing: list[ast.stmt] = []
    new: ast.stmt = node
    for reduction, own, type_ in sums:
        name = fresh(f"{reduction.name}_part", taken)
        taken.add(name)
        part = _renamed(reduction.target, name)
        zero = ast.Constant(0.0)
        opening.append(declare(name, type_, None if type_.shape else zero))
        opening += [over(ast.Assign([as_target(part)], zero), own)] if type_.shape else []
        new = retargeted(new, reduction, part)
        closing.append(over(combine("add", reduction.target, part), own))
    assert isinstance(new, ast.For)
    new = with_inner(new, [*opening, *new.body, *closing])
    return program.with_nest(site.nest, nest.with_body(replace_at(nest.body, new_site.path, [new])))


def _renamed(target: ast.expr, name: str) -> ast.expr:
    """The same element of another local."""
    return reference(name, clones(subscripts(target))) if isinstance(target, ast.Subscript) else expr(name)


def _inner_loops(node: ast.For) -> list[ast.For]:
    loops = [n for s in node.body for n in nodes(s) if isinstance(n, ast.For)]
    return [loop for loop in loops if kind_of(loop) == "range"]


def _added(node: ast.For) -> set[str]:
    """The targets of additions in a loop."""
    found = [accumulation(n) for n in nodes(node) if isinstance(n, ast.AugAssign)]
    return {reduction.text for reduction in found if reduction is not None and reduction.kind == "add"}
