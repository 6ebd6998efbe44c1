"""Loops inside of one that is to become lanes, with something between them, go outside."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from swirl.analysis.loop_facts import LoopFacts
from swirl.ir.nest import names_in
from swirl.ir.paths import at
from swirl.ir.trees import name_of
from swirl.schedule.rules.trials import Step, step

KEPT = 512
"""Iterations for which what one of them computes is kept, at the most: a level-1 cache holds several such locals."""


def outside(found: LoopFacts, loops: Sequence[LoopFacts]) -> tuple[list[Step], str]:
    """What lets the loops inside of one go outside: the locals that it computes for them get an element for each of its
    iterations.

    Args:
        found: the loop.
        loops: of its nest.

    Returns:
        the commands, none where nothing is between the loops, or something else is; and the loop, which is cut in parts
        where it is long.
    """
    inside = [each for each in loops if found.contains(each)]
    node = at(found.nest.body, found.path)
    assert isinstance(node, ast.For)
    if not inside or _chained(at(found.nest.body, inside[0].path)) != len(inside):
        return [], found.var
    used = names_in(at(found.nest.body, inside[0].path))
    declared = [name_of(one.target) for one in node.body if isinstance(one, ast.AnnAssign)]
    kept = [name for name in declared if name in used]
    if not kept:
        return [], found.var
    why, var, steps = f"{', '.join(kept)} for each iteration", found.var, list[Step]()
    if found.trips > KEPT:
        steps.append(step(why, "tile_loop", var, KEPT))
        var = f"{var}_inner"
    steps.append(step(why, "scalar_expand", kept, var))
    steps.append(step(f"{var} is innermost", "reorder", [*(each.var for each in inside), var]))
    return steps, var


def _chained(node: ast.stmt) -> int:
    """How many loops are one in the other, with nothing but conditions between, which ``reorder`` moves inside."""
    count = 0
    while isinstance(node, (ast.For, ast.If)):
        count += isinstance(node, ast.For)
        if len(node.body) != 1 or node.orelse:
            break
        (node,) = node.body
    return count
