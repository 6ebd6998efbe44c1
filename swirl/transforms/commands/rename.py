"""rename: a loop gets another name, so that later commands can distinguish it."""

from __future__ import annotations

import ast
from dataclasses import replace

from swirl.errors import CommandError
from swirl.ir.nest import Program, loop_of, substitute
from swirl.ir.paths import replace_at
from swirl.transforms.arguments import LoopName, NestName, NewLoopName
from swirl.transforms.command import command
from swirl.transforms.rewrites.sites import Site, inner_name, loop_at, rewrite_each


@command()
def rename(
    program: Program,
    loop_var: LoopName,
    name: NewLoopName,
    *,
    nest: NestName | None = None,
) -> Program:
    """Give a loop another name: commands act on every loop of a name, so loops to be scheduled apart have two.

    rewrite (name = "j"):
        for i in range(N): x[i] = 0.0               for i in range(N): x[i] = 0.0
        for i in range(N): y[i] = x[i]      →       for j in range(N): y[j] = x[j]      (nest = 1)

    Args:
        loop_var: the loop.
        name: a name that is not used in its nest.
        nest: only in this nest (index or label).

    Raises:
        CommandError: no such loop, or the name is invalid or used there already.
    """

    def rewrite(before: Program, site: Site) -> Program:
        target, node = before.nests[site.nest], loop_at(before, site)
        loop = loop_of(node)
        if loop.var == name:
            return before
        if inner_name(before, site, name) != name:
            raise CommandError(f"{name} is used already where {loop.var} runs", way_out="choose another name")
        body = [substitute(statement, {loop.var: ast.Name(name, ast.Load())}) for statement in node.body]
        new = replace(loop, var=name).node(body)
        return before.with_nest(site.nest, target.with_body(replace_at(target.body, site.path, [new])))

    return rewrite_each(program, loop_var, nest, rewrite, together=True)
