"""Vector loops of one lane that share a scalar: plain loops, before anything is stored in registers."""

from __future__ import annotations

import ast
from dataclasses import replace

from swirl.ir.affine import Ranges, bounds, loop_range
from swirl.ir.nest import loop_of
from swirl.ir.trees import declared_in, targets_in


def without_single_lanes(body: list[ast.stmt], ranges: Ranges | None = None) -> list[ast.stmt]:
    """Vector loops of one lane that write a scalar become plain loops: several lanes cannot share a scalar, a
    single one can."""
    result: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.If):
            branches = (without_single_lanes(branch, ranges) for branch in (node.body, node.orelse))
            result.append(ast.If(node.test, *branches))
        elif isinstance(node, ast.For):
            loop = loop_of(node)
            known = {**(ranges or {}), **loop_range(loop, ranges or {})}
            lanes = bounds(loop.stop, known)
            if loop.kind == "vector" and lanes is not None and lanes[1] == 1 and _writes_scalar(node):
                result.append(replace(loop, kind="range").node(node.body))
            else:
                result.append(loop.node(without_single_lanes(node.body, known)))
        else:
            result.append(node)
    return result


def _writes_scalar(node: ast.For) -> bool:
    """Whether the loop assigns a scalar declared outside it."""
    declared = declared_in(node)
    return any(isinstance(target, ast.Name) and target.id not in declared for target in targets_in(node.body))
