"""distribute: a loop's body split."""

from __future__ import annotations

import ast
from collections.abc import Callable

from swirl.ir.nest import Program, names_in, variable_of
from swirl.ir.paths import at, replace_at
from swirl.ir.printing import unparse
from swirl.transforms.arguments import LoopName, NestName
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.dependence_order import check_order, tagged
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.checks.ways_out import nest_of, step, tried
from swirl.transforms.rewrites.loops.nesting import nest_each, split_body
from swirl.transforms.rewrites.sites import Site, loop_at, rewrite_each


@command()
def distribute(program: Program, loop_var: LoopName, *, nest: NestName | None = None) -> Program:
    """Split a loop into one loop for each statement of its body; statements that share a local stay together.

    rewrite:
        for c in range(C):                  for c in range(C): s
            s                       →       for c in range(C): t
            t

    Args:
        loop_var: the loop.
        nest: only in this nest (index or label).

    Raises:
        Refused: a dependence would be violated, or locals connect all statements.

    Source: Wolfe, *High Performance Compilers for Parallel Computing*, chapter 9 (loop fission).
    """

    def rewrite(before: Program, site: Site) -> Program:
        target = before.nests[site.nest]
        old = tagged(target.body)
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


def _cuts(body: list[ast.stmt]) -> list[int]:
    """Where a body can be cut without separating a local's uses from its declaration."""
    declared = [unparse(s.target) if isinstance(s, ast.AnnAssign) else None for s in body]
    return [
        cut for cut in range(1, len(body)) if not {name for s in body[cut:] for name in names_in(s)} & {*declared[:cut]}
    ]
