"""Vector loops of one lane that share a scalar: plain loops, before anything is stored in registers."""

from __future__ import annotations

import ast
from dataclasses import replace

from swirl.ir.affine import Ranges, bounds, loop_range
from swirl.ir.nest import loop_of
from swirl.ir.trees import declared_in, name_of, names_in, targets_in


def without_single_lanes(body: list[ast.stmt], ranges: Ranges | None = None) -> list[ast.stmt]:
    """Vector loops of one lane that write a scalar, or an element that does not move with them, become plain loops:
    several lanes cannot share one, a single one can."""
    result: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.If):
            branches = (without_single_lanes(branch, ranges) for branch in (node.body, node.orelse))
            result.append(ast.If(node.test, *branches))
        elif isinstance(node, ast.For):
            loop = loop_of(node)
            known = {**(ranges or {}), **loop_range(loop, ranges or {})}
            lanes = bounds(loop.stop, known)
            if loop.kind == "vector" and lanes is not None and lanes[1] == 1 and _writes_one(node, loop.var):
                result.append(replace(loop, kind="range").node(node.body))
            else:
                result.append(loop.node(without_single_lanes(node.body, known)))
        else:
            result.append(node)
    return result


def _writes_one(node: ast.For, var: str) -> bool:
    """Whether the loop assigns a scalar declared outside it, or an element without its variable in the subscripts."""
    declared = declared_in(node)
    return any(name_of(target) not in declared and var not in names_in(target) for target in targets_in(node.body))
