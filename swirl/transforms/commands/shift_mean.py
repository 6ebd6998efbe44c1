"""shift_mean: a mean as the first element and the mean of differences from it."""

from __future__ import annotations

import ast

from swirl.ir.nest import LocalType, Program, clone, declare, expr, fresh
from swirl.ir.paths import at, replace_at
from swirl.ir.trees import as_target, changed, name_of
from swirl.transforms.arguments import LoopName, NestName
from swirl.transforms.command import Assumption, command
from swirl.transforms.rewrites.blocks import rebuilt
from swirl.transforms.rewrites.sites import Site, rewrite_each, taken_names
from swirl.transforms.rewrites.sums.mean_sums import mean_of

NOTE = "asked to add up differences"


@command(assumes=Assumption("the data are finite, and so are their differences"))
def shift_mean(
    program: Program, loop_var: LoopName, *, occurrence: int | None = None, nest: NestName | None = None
) -> Program:
    """Compute a mean from differences to the first element: the mean of equal numbers is that number.

    rewrite:
        m = 0.0                             m = 0.0
        for n in range(N):                  first: float32 = x[0, 0]
            for i in range(K):      →       for n in range(N):
                m += x[n, i]                    for i in range(K):
        m = m / (N * K)                             m += x[n, i] - first
        … x[n, i] - m …                     m = first + m / (N * K)
                                            … x[n, i] - m …

    Where each term is divided, the first element is added after the loop.

    A mean may be wrong by as many roundings of the data's size as a term goes through additions, and what is divided by
    a small deviation from it afterwards is wrong by as many digits. Of differences, these are roundings of the
    distances between the data, and one of the mean itself remains.

    Args:
        loop_var: the outermost loop of the sum.
        occurrence: only one of the loops of that name, counted from 0 in order of appearance (-1 is the last).
        nest: only in this nest (index or label).

    Raises:
        CommandError: no such loop.
        Refused: the loops do not add up one expression from zero, over constant bounds; the sum is used for something
            else than the mean; what it adds up changes before the mean is there; nothing subtracts the mean later.

    Source: Chan, Golub, LeVeque, *The American Statistician* 37 (1983), section 3 (shifted data).
    """

    def rewrite(before: Program, site: Site) -> Program:
        mean, target = mean_of(before, site, NOTE), before.nests[site.nest]
        name = fresh(f"{name_of(mean.sum.target)}_first", taken_names(before, [target]))
        first = declare(name, LocalType(mean.sum.dtype), mean.first)
        difference: ast.expr = ast.BinOp(clone(mean.data), ast.Sub(), expr(name))
        value = ast.BinOp(expr(name), ast.Add(), clone(mean.value))
        replaced: dict[int, list[ast.stmt]] = {}
        if mean.divide is None:
            difference = ast.BinOp(difference, ast.Div(), ast.Constant(float(mean.sum.count or 1)))
        elif isinstance(mean.divide, ast.AugAssign):
            replaced[id(mean.divide)] = [ast.Assign([mean.divide.target], value)]
        else:
            replaced[id(mean.divide)] = [changed(mean.divide, value=value)]
        replaced[id(mean.add)] = [changed(mean.add, value=difference)]
        after = [ast.Assign([as_target(mean.target)], value)] if mean.divide is None else []
        body = rebuilt(target.body, replaced)
        body = replace_at(body, site.path, [first, at(body, site.path), *after])
        return before.with_nest(site.nest, target.with_body(body))

    return rewrite_each(program, loop_var, nest, rewrite, occurrence)
