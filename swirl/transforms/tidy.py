"""tidy: loops of one iteration, decided conditions and dead locals disappear before code generation."""

from __future__ import annotations

import ast
from dataclasses import replace

from swirl.ir.affine import Ranges, bounds, loop_range, simplify_body
from swirl.ir.nest import Program, loop_of, substitute
from swirl.transforms.base import checked
from swirl.transforms.bounds import tighten
from swirl.transforms.guards import drop_decided_guards


def tidy(program: Program) -> Program:
    """The program without loops of one iteration and without conditions that the loops' ranges decide.

    rewrite:
        for w in range(0, 8, 16):           for w_lane in vector(8): s[w_lane]
            for w_lane in vector(8):   →
                s[w + w_lane]
    """
    nests = []
    for nest in program.nests:
        body = simplify_body(tighten(drop_decided_guards(_without_single(nest.body))))
        body = _without_lone_lanes(body)
        if body:
            nests.append(nest.with_body(body))
    return checked(program, program.with_nests(nests))


def _without_single(body: list[ast.stmt]) -> list[ast.stmt]:
    result: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.If):
            branches = _without_single(node.body), _without_single(node.orelse)
            result.append(ast.If(node.test, branches[0] or [ast.Pass()], branches[1]))
        elif isinstance(node, ast.For):
            loop = loop_of(node)
            if loop.kind == "range" and loop.extent == 0:
                continue
            inner = _without_single(node.body)
            declares = any(isinstance(s, ast.AnnAssign) for s in inner)
            if loop.kind in ("range", "unrolled") and loop.extent == 1 and not declares:
                result += [substitute(s, {loop.var: loop.start}) for s in inner]
            elif inner:
                result.append(loop.node(inner))
        else:
            result.append(node)
    return result


def _without_lone_lanes(body: list[ast.stmt], ranges: Ranges | None = None) -> list[ast.stmt]:
    """Vector loops of one lane that write a scalar become plain loops: lanes cannot share a scalar, one may
    have it."""
    result: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.If):
            branches = (_without_lone_lanes(branch, ranges) for branch in (node.body, node.orelse))
            result.append(ast.If(node.test, *branches))
        elif isinstance(node, ast.For):
            loop = loop_of(node)
            known = {**(ranges or {}), **loop_range(loop, ranges or {})}
            lanes = bounds(loop.stop, known)
            if loop.kind == "vector" and lanes is not None and lanes[1] == 1 and _writes_scalar(node):
                result.append(replace(loop, kind="range").node(node.body))
            else:
                result.append(loop.node(_without_lone_lanes(node.body, known)))
        else:
            result.append(node)
    return result


def _writes_scalar(node: ast.For) -> bool:
    """Whether the loop assigns a scalar declared outside it."""
    declared = {ast.unparse(s.target) for s in ast.walk(node) if isinstance(s, ast.AnnAssign)}
    targets = [t for s in ast.walk(node) if isinstance(s, (ast.Assign, ast.AugAssign))
               for t in (s.targets if isinstance(s, ast.Assign) else [s.target])]  # fmt: skip
    return any(isinstance(target, ast.Name) and target.id not in declared for target in targets)
