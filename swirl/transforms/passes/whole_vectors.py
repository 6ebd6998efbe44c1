"""whole_vectors: loops over whole vectors, each followed by a remainder of known size."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import replace

from swirl.analysis.statements import local_uses
from swirl.ir.affine import bounds, constant, loop_range, simplify_body
from swirl.ir.nest import Loop, Program, declare, local_type, loop_of, names_in, subscripts, substitute
from swirl.ir.paths import loops
from swirl.ir.printing import unparse
from swirl.transforms.rewrites.checks.checked import checked


def whole_vectors(program: Program) -> Program:
    """The program with the last, partial vector of loops of constant bounds split off, and with local arrays of the
    extents that are used: a known mask costs nothing, unlike one that each iteration computes.

    rewrite:
        for w in range(0, 40, 16):                        for w in range(0, 32, 16):
            for w_lane in vector(min(16, 40 - w)): s  →       for w_lane in vector(16): s
                                                          for w_lane in vector(8): s   (32 for w)
    """
    nests = []
    for nest in program.nests:
        nests.append(nest.with_body(_without_unused_ends(simplify_body(_cut_before_remainders(nest.body)))))
    return checked(program, program.with_nests(nests))


def _cut_before_remainders(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Loops over vectors, of which only the last one is not whole, cut before that one."""
    result: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.If):
            result.append(ast.If(node.test, *(_cut_before_remainders(branch) for branch in (node.body, node.orelse))))
        elif isinstance(node, ast.For):
            loop = loop_of(node)
            inner = _cut_before_remainders(node.body)
            start, stop = constant(loop.start), constant(loop.stop)
            if loop.kind == "range" and start is not None and stop is not None and _bounds_vectors(loop.var, inner):
                last = start + (stop - start) // loop.step * loop.step
                if start < last < stop:
                    result.append(replace(loop, stop=ast.Constant(last)).node(inner))
                    rest = [substitute(statement, {loop.var: ast.Constant(last)}) for statement in inner]
                    declares = any(isinstance(statement, ast.AnnAssign) for statement in rest)
                    result += [replace(loop, start=ast.Constant(last)).node(rest)] if declares else rest
                    continue
            result.append(loop.node(inner))
        else:
            result.append(node)
    return result


def _bounds_vectors(var: str, body: Sequence[ast.stmt]) -> bool:
    """Whether a loop variable is in the bound of a vector loop."""
    heads = (loop_of(node) for _, node in loops(list(body)))
    return any(head.kind == "vector" and var in names_in(head.stop) for head in heads)


def _without_unused_ends(body: Sequence[ast.stmt], around: tuple[Loop, ...] = ()) -> list[ast.stmt]:
    """Local arrays without the elements after the last one that a subscript can reach: registers without unused
    lanes."""
    result: list[ast.stmt] = []
    for position, node in enumerate(body):
        if isinstance(node, ast.For):
            loop = loop_of(node)
            node = loop.node(_without_unused_ends(node.body, (*around, loop)))
        elif isinstance(node, ast.If):
            branches = (_without_unused_ends(branch, around) for branch in (node.body, node.orelse))
            node = ast.If(node.test, *branches)
        elif isinstance(node, ast.AnnAssign) and local_type(node).shape:
            name, type_ = unparse(node.target), local_type(node)
            uses = [_ends(use, inside) for use, _, inside in local_uses(body[position + 1 :], name, around)]
            if uses:
                shape = tuple(map(min, zip(type_.shape, map(max, zip(*uses, strict=True)), strict=True)))
                node = declare(name, replace(type_, shape=shape))
        result.append(node)
    return result


def _ends(use: ast.Subscript, around: Sequence[Loop]) -> tuple[int, ...]:
    """One more than the largest value of each subscript."""
    ranges: dict[str, tuple[int, int]] = {}
    for loop in around:
        ranges |= loop_range(loop, ranges)
    limits = (bounds(index, ranges) for index in subscripts(use))
    return tuple(sys.maxsize if limit is None else limit[1] + 1 for limit in limits)
