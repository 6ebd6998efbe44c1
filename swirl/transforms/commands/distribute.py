"""distribute: a loop's body split."""

from __future__ import annotations

import ast
from collections.abc import Callable

from swirl.ir.nest import Program, expr, fresh, names_in, substitute, variable_of, with_inner
from swirl.ir.paths import at, replace_at
from swirl.ir.printing import unparse
from swirl.ir.trees import declared_in, name_of, targets_in
from swirl.transforms.arguments import LoopName, NestName
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.dependence_order import check_order, tagged
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.checks.ways_out import nest_of, step, tried
from swirl.transforms.rewrites.loops.nesting import nest_each, split_body
from swirl.transforms.rewrites.sites import Site, loop_at, rewrite_each, taken_names


@command()
def distribute(
    program: Program, loop_var: LoopName, *, recompute: bool = False, nest: NestName | None = None
) -> Program:
    """Split a loop into one loop for each statement of its body; statements that share a local stay together.

    rewrite:
        for c in range(C):                  for c in range(C): s
            s                       →       for c in range(C): t
            t

    rewrite (recompute=True):
        for d in range(D):                     for d in range(D):
            t: float32 = g[d] / 64.0               t: float32 = g[d] / 64.0
            a[d] += t * x[d]              →        a[d] += t * x[d]
            b[d] += t * y[d]                   for d in range(D):
                                                   t_1: float32 = g[d] / 64.0
                                                   b[d] += t_1 * y[d]

    Args:
        loop_var: the loop.
        recompute: whether each loop computes the locals that it reads by itself: those that are set once, from what the
            loop does not change.
        nest: only in this nest (index or label).

    Raises:
        Refused: a dependence would be violated, or locals connect all statements.

    Source: Wolfe, *High Performance Compilers for Parallel Computing*, chapter 9 (loop fission).
    """

    def rewrite(before: Program, site: Site) -> Program:
        target = before.nests[site.nest]
        body = target.body
        if recompute:
            loop = loop_at(before, site)
            body = replace_at(body, site.path, [with_inner(loop, _with_own_locals(loop.body, taken_names(before)))])
        old = tagged(body)
        node = at(old, site.path)
        assert isinstance(node, ast.For)
        cuts = _cuts(node.body)
        if len(node.body) > 1 and not cuts:
            raise refuse(
                "a local connects the statements of the body",
                target,
                site.path,
                "asked to distribute",
                way_out=_parted(before, site),
            )
        pieces = split_body(node, cuts)
        assert pieces is not None  # no cut separates a local from its declaration
        new = replace_at(old, site.path, list(pieces))
        check_order(old, new, target, site.path, "asked to distribute")
        nests = nest_each(before, target, new) if len(site.path) == 1 else [target.with_body(new)]
        return before.with_nest(site.nest, *nests)

    return rewrite_each(program, loop_var, nest, rewrite)


def _parted(program: Program, site: Site) -> Callable[[], str | None]:
    """The command that gives each iteration its own locals, so that the loop can be cut between their uses."""
    node = loop_at(program, site)
    var, only = variable_of(node), nest_of(program, site)
    names = [unparse(s.target) for s in node.body if isinstance(s, ast.AnnAssign)]
    expanded = step("scalar_expand", names[0] if len(names) == 1 else names, var, nest=only)
    return tried(program, (expanded, step("distribute", var, nest=only)))


def _with_own_locals(body: list[ast.stmt], taken: set[str]) -> list[ast.stmt]:
    """Statements with the locals that each of them reads right before it, where these are set once, from what no
    statement changes."""
    changed = {name_of(target) for target in targets_in(body)}
    own: dict[str, ast.AnnAssign] = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            name = name_of(node.target)
            if not changed & {name, *names_in(node.value)}:
                own[name] = node
    result, met = list[ast.stmt](), set[str]()
    for node in body:
        if node in own.values():
            continue
        read = names_in(node) - declared_in(node)
        needed = list[ast.AnnAssign]()
        for name, declared in reversed(own.items()):  # a local may read those before it
            if name in read:
                needed.insert(0, declared)
                read |= names_in(declared)
        names = {name_of(each.target): name_of(each.target) for each in needed}
        for name in names.keys() & met:
            names[name] = fresh(name, taken)
        met, taken = met | names.keys(), taken | {*names.values()}
        mapping = {name: expr(new) for name, new in names.items() if name != new}
        result += [substitute(each, mapping) for each in (*needed, node)]
    return result


def _cuts(body: list[ast.stmt]) -> list[int]:
    """Where a body can be cut without separating a local's uses from its declaration."""
    declared = [unparse(s.target) if isinstance(s, ast.AnnAssign) else None for s in body]
    return [
        cut for cut in range(1, len(body)) if not {name for s in body[cut:] for name in names_in(s)} & {*declared[:cut]}
    ]
