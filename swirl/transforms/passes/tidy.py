"""tidy: loops of one iteration, decided conditions and dead locals disappear before code generation."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from swirl.ir.affine import simplify_body
from swirl.ir.nest import Program, loop_of, substitute
from swirl.ir.trees import name_of, names_in
from swirl.ir.types import explicit
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.loops.bounds import tighten
from swirl.transforms.rewrites.loops.decided_guards import drop_decided_guards
from swirl.transforms.rewrites.loops.single import is_single


def tidy(program: Program) -> Program:
    """The program without loops of one iteration and without conditions that the loops' ranges decide.

    rewrite:
        for w in range(0, 8, 16):           for w_lane in vector(8): s[w_lane]
            for w_lane in vector(8):   →
                s[w + w_lane]
    """
    program = explicit(program)
    nests = []
    for nest in program.nests:
        body = simplify_body(tighten(drop_decided_guards(_without_single(nest.body))))
        if body:
            nests.append(nest.with_body(body))
    return checked(program, program.with_nests(nests))


def _without_single(body: list[ast.stmt]) -> list[ast.stmt]:
    result: list[ast.stmt] = []
    for place, node in enumerate(body):
        if isinstance(node, ast.If):
            branches = _without_single(node.body), _without_single(node.orelse)
            result.append(ast.If(node.test, branches[0] or [ast.Pass()], branches[1]))
        elif isinstance(node, ast.For):
            loop = loop_of(node)
            if loop.kind == "range" and loop.extent == 0:
                continue
            inner = _without_single(node.body)
            if is_single(loop) and not _clashes(inner, body[:place] + body[place + 1 :]):
                result += [substitute(s, {loop.var: loop.start}) for s in inner]
            elif inner:
                result.append(loop.node(inner))
        else:
            result.append(node)
    return result


def _clashes(inner: Iterable[ast.stmt], others: Iterable[ast.stmt]) -> bool:
    """Whether statements declare a local whose name others have: in one block there can be one of a name."""
    declared = {name_of(node.target) for node in inner if isinstance(node, ast.AnnAssign)}
    return bool(declared) and any(not declared.isdisjoint(names_in(other)) for other in others)
