"""Conditions on loop variables move outwards and become bounds: a loop runs over what its condition lets
through."""

from __future__ import annotations

import ast
from collections import Counter

from swirl.ir.affine import affine, simplify
from swirl.ir.names import on_loops
from swirl.ir.nest import Loop, expr, loop_of, names_in
from swirl.ir.operations import COMPARISONS, ORDERS
from swirl.ir.printing import unparse
from swirl.ir.trees import declared_in


def tighten(body: list[ast.stmt], around: frozenset[str] = frozenset()) -> list[ast.stmt]:
    """``body`` with conditions on loop variables moved out of the loops that do not decide them, and into
    bounds.

    rewrite:
        for ky in range(3):                             for ky in range(max(0, 1 - y), 3):
            for c in range(C):                              for c in range(C):
                if y + ky >= 1 and x + kx >= 1: s   →           if x + kx >= 1: s

    A condition on a local stays where it is, as the loop may change the local.

    Args:
        body: statements one after the other.
        around: the variables of the loops around them.
    """
    result: list[ast.stmt] = []
    for node in body:
        result += _statement(node, around)
    return result


def _statement(node: ast.stmt, around: frozenset[str]) -> list[ast.stmt]:
    if isinstance(node, ast.If):
        return [ast.If(node.test, tighten(node.body, around), tighten(node.orelse, around))]
    if not isinstance(node, ast.For):
        return [node]
    loop = loop_of(node)
    known = around | {loop.var}
    inner = _shared(tighten(node.body, known), known)
    if len(inner) != 1 or not isinstance(inner[0], ast.If) or inner[0].orelse:
        return [loop.node(inner)]
    outside: list[ast.expr] = []
    inside: list[ast.expr] = []
    for part in conjuncts(inner[0].test):
        if not _on_loops_only(part, known):
            inside.append(part)
        elif loop.var not in names_in(part):
            outside.append(part)
        else:
            tighter = restricted(loop, part) if loop.kind in ("range", "parallel") and loop.step == 1 else None
            if tighter is None:
                inside.append(part)
            else:
                loop = tighter
    content: list[ast.stmt] = [ast.If(conjunction(inside), inner[0].body, [])] if inside else inner[0].body
    whole: ast.stmt = loop.node(content)
    return [ast.If(conjunction(outside), [whole], [])] if outside else [whole]


def _shared(body: list[ast.stmt], known: frozenset[str]) -> list[ast.stmt]:
    """``body`` in one condition, if it is several statements that all have it: what the variables of the loops
    ``known`` decide stays as it is from one statement to the next.

    rewrite:
        if y >= 1 and x >= 1: s
        if y >= 1: t               →    if y >= 1: (if x >= 1: s), t
    """
    if len(body) < 2 or not all(isinstance(node, ast.If) and not node.orelse for node in body):
        return body
    parts = [{unparse(part): part for part in conjuncts(node.test)} for node in body if isinstance(node, ast.If)]
    shared = {
        text: part
        for text, part in parts[0].items()
        if all(text in own for own in parts) and _on_loops_only(part, known)
    }
    declared = Counter(name for node in body for name in declared_in(node))
    if not shared or any(number > 1 for number in declared.values()):
        return body  # of two locals of one name, either would be in scope in the other one's statements
    inside: list[ast.stmt] = []
    for node, own in zip(body, parts, strict=True):
        assert isinstance(node, ast.If)
        rest = [part for text, part in own.items() if text not in shared]
        inside += [ast.If(conjunction(rest), node.body, [])] if rest else node.body
    return [ast.If(conjunction(list(shared.values())), inside, [])]


def conjuncts(test: ast.expr) -> list[ast.expr]:
    """The parts of a condition that are joined by ``and``; a chain ``a <= b < c`` is two."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [part for value in test.values for part in conjuncts(value)]
    if isinstance(test, ast.Compare) and len(test.ops) > 1:
        operands = [test.left, *test.comparators]
        return [
            ast.Compare(left, [op], [right]) for left, op, right in zip(operands, test.ops, operands[1:], strict=False)
        ]
    return [test]


def equal_to(var: str, test: ast.expr) -> ast.expr | None:
    """``e`` of the condition ``e == var`` or ``var == e``; None for another one."""
    if not isinstance(test, ast.Compare) or len(test.ops) > 1 or not isinstance(test.ops[0], ast.Eq):
        return None
    sides = [test.left, *test.comparators]
    others = [side for side in sides if not (isinstance(side, ast.Name) and side.id == var)]
    return others[0] if len(others) == 1 else None


def conjunction(parts: list[ast.expr]) -> ast.expr:
    """``parts`` joined by ``and``."""
    return parts[0] if len(parts) == 1 else ast.BoolOp(ast.And(), parts)


def _on_loops_only(part: ast.expr, known: frozenset[str]) -> bool:
    """Whether the condition compares quasi-affine expressions of the loops ``known`` (data could change inside the
    loop)."""
    return isinstance(part, ast.Compare) and all(
        on_loops(side, known) and affine(side) is not None for side in (part.left, *part.comparators)
    )


def restricted(loop: Loop, part: ast.expr) -> Loop | None:
    """The loop restricted by ``part``, a comparison that is linear in its variable with coefficient ±1; else
    None."""
    assert isinstance(part, ast.Compare)
    operator = type(part.ops[0])
    difference = affine(expr("a - b", a=part.left, b=part.comparators[0]))
    if difference is None or operator not in ORDERS:
        return None
    coefficient = difference.coefficient(loop.var)
    if abs(coefficient) != 1 or difference.terms.keys() - {loop.var} != {
        key for key in difference.terms if loop.var not in names_in(difference.atoms[key])
    }:
        return None
    # var OP rest, after moving everything else to the right.
    rest = difference.add(affine(ast.Name(loop.var, ast.Load())) or difference, -coefficient).scale(-coefficient)
    if coefficient < 0:
        operator = COMPARISONS[operator].mirrored
    limit = rest.to_expr()
    start, stop = loop.start, loop.stop
    if operator is ast.Lt:
        stop = simplify(expr("min(a, b)", a=stop, b=limit))
    elif operator is ast.LtE:
        stop = simplify(expr("min(a, b + 1)", a=stop, b=limit))
    elif operator is ast.GtE:
        start = simplify(expr("max(a, b)", a=start, b=limit))
    else:
        start = simplify(expr("max(a, b + 1)", a=start, b=limit))
    return Loop(loop.var, loop.kind, start, stop, loop.step, loop.options)
