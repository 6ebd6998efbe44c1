"""shift_mean: a mean as the first element and the mean of differences from it."""

from __future__ import annotations

import ast

from swirl.ir.nest import LocalType, Program, clone, declare, expr, fresh
from swirl.ir.paths import at, replace_at
from swirl.ir.trees import Transformer, as_target, changed, name_of
from swirl.transforms.arguments import LoopName, NestName
from swirl.transforms.command import Assumption, command
from swirl.transforms.rewrites.blocks import rebuilt
from swirl.transforms.rewrites.sites import Site, rewrite_each, taken_names
from swirl.transforms.rewrites.sums.mean_sums import Mean, mean_of

NOTE = "asked to add up differences"


@command(assumes=Assumption("the data are finite, and so are their differences"))
def shift_mean(program: Program, loop_var: LoopName, *, nest: NestName | None = None) -> Program:
    """Compute a mean from differences to the first element: the mean of equal numbers is that number.

    rewrite:
        m = 0.0                             m = 0.0
        for n in range(N):                  first: float32 = x[0, 0]
            for i in range(K):      →       for n in range(N):
                m += x[n, i]                    for i in range(K):
        m = m / (N * K)                             m += x[n, i] - first
        … x[n, i] - m …                     m = first + m / (N * K)
                                            … x[n, i] - m …

    Where each term is divided, the first element is added after the loop; where the sum is used for something else than
    the mean, it is added so often. A mean that is written as a quotient wherever it is used gets a local.

    A mean may be wrong by as many roundings of the data's size as a term goes through additions, and what is divided by
    a small deviation from it afterwards is wrong by as many digits. Of differences, these are roundings of the
    distances between the data, and one of the mean itself remains.

    Args:
        loop_var: the outermost loop of the sum.
        nest: only in this nest (index or label).

    Raises:
        CommandError: no such loop.
        Refused: the loops do not add up one expression from zero, over constant bounds; the sum is not divided by the
            number of terms where it is used first, or wherever it is; what it adds up changes before the mean is there;
            nothing subtracts the mean later.

    Source: Chan, Golub, LeVeque, *The American Statistician* 37 (1983), section 3 (shifted data).
    """

    def rewrite(before: Program, site: Site) -> Program:
        mean, target = mean_of(before, site, NOTE), before.nests[site.nest]
        taken, text = taken_names(before, [target]), name_of(mean.sum.target)
        name = fresh(f"{text}_first", taken)
        first = declare(name, LocalType(mean.sum.dtype), mean.first)
        difference: ast.expr = ast.BinOp(clone(mean.data), ast.Sub(), expr(name))
        value: ast.expr = ast.BinOp(expr(name), ast.Add(), clone(mean.value))
        if mean.negated:
            value = ast.BinOp(clone(mean.value), ast.Sub(), expr(name))
        count = ast.Constant(float(mean.sum.count or 1))
        whole: list[ast.stmt] = []
        if mean.used:  # it is the sum again
            whole = [
                ast.AugAssign(as_target(mean.sum.target), clone(mean.add.op), expr("first * n", first=name, n=count))
            ]
        replaced: dict[int, list[ast.stmt]] = {}
        after: list[ast.stmt] = []
        if mean.written_out:
            local = fresh(f"{text}_mean", taken | {name})
            after = [declare(local, LocalType(mean.sum.dtype), value), *whole]
            named = _Named(mean, local)
            replaced = {id(statement): [named.visit(clone(statement))] for statement in mean.later}
        elif mean.divide is None:
            difference = ast.BinOp(difference, ast.Div(), count)
            after = [ast.Assign([as_target(mean.target)], value)]
        elif isinstance(mean.divide, ast.AugAssign):
            replaced[id(mean.divide)] = [ast.Assign([mean.divide.target], value)]
        else:
            replaced[id(mean.divide)] = [changed(mean.divide, value=value), *whole]
        replaced[id(mean.add)] = [changed(mean.add, value=difference)]
        body = rebuilt(target.body, replaced)
        body = replace_at(body, site.path, [first, at(body, site.path), *after])
        return before.with_nest(site.nest, target.with_body(body))

    return rewrite_each(program, loop_var, nest, rewrite)


class _Named(Transformer):
    """Puts a local in the place of a mean that is written out."""

    def __init__(self, mean: Mean, local: str):
        self.mean, self.local = mean, local

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        return expr(self.local) if self.mean.is_mean(node) else self.generic_visit(node)
