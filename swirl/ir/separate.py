"""A program taken apart: each of its loop nests as a program of its own."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import chain

from swirl.ir.nest import Nest, Program, make_nest, names_in


def separate(program: Program) -> list[tuple[str, Program]]:
    """The loop nests of a finished program, each with its label as a program of its own."""
    result = []
    for nest in program.nests:
        bodies = _bodies(nest)
        for number, body in enumerate(bodies, 1):
            label = nest.label if len(bodies) == 1 else f"{nest.label}, loop {number}"
            result.append((label, program.with_nests([make_nest(nest.label, body, program.buffers)])))
    return result


def _bodies(nest: Nest) -> list[list[ast.stmt]]:
    """The statements of a nest in groups that can run by themselves: each has a loop, after its straight statements.
    Statements stay together where one reads a local that another declares."""
    groups: list[list[ast.stmt]] = []
    for statement in nest.body:
        used = names_in(statement)
        first = next((place for place, group in enumerate(groups) if _declared(group) & used), len(groups))
        if first == len(groups) > 0 and _is_straight(groups[-1]):
            first -= 1
        groups[first:] = [[*chain.from_iterable(groups[first:]), statement]]
    if len(groups) > 1 and _is_straight(groups[-1]):
        groups[-2:] = [[*groups[-2], *groups[-1]]]
    return groups


def _is_straight(statements: Sequence[ast.stmt]) -> bool:
    return not any(isinstance(statement, (ast.For, ast.If)) for statement in statements)


def _declared(statements: Sequence[ast.stmt]) -> set[str]:
    """The locals that statements declare for those that follow them; a loop's own end with it."""
    return {s.target.id for s in statements if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)}
