"""Conditional assignments under a loop, ``if test: t = e``, as selects: ``t = e if test else t``.

The test is evaluated once, before anything that it reads is written; other statements keep depending on it::

    if x[i, j] > value[i]:            better: bool = x[i, j] > value[i]
        value[i] = x[i, j]      ->    value[i] = x[i, j] if better else value[i]
        place[i] = j                  if better:
                                          place[i] = j

Only where the test depends on what the statement changes: elsewhere, reversal evaluates the test again.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from latte.autodiff.prepare import Body, assign, edited, with_origin
from latte.autodiff.uses import sites
from swirl.analysis.statements import Statement
from swirl.ir.nest import LocalType, Program, declare, fresh, make_nest, names_in
from swirl.ir.paths import Path
from swirl.ir.trees import as_value, name_of, target_of


def branches_as_selects(program: Program, active: set[str]) -> Program:
    """The program with conditional assignments to ``active`` names as selects, where a test cannot be evaluated
    again."""
    nests = [list(nest.body) for nest in program.nests]
    taken = set(program.buffers).union(*(names_in(s) for nest in nests for s in nest), set())
    edits: dict[Path, Body] = {}
    every = sites(nests)
    for site in every:
        test, body = _flat(site.node)
        inside_another = any(site.path[: len(path)] == path for path in edits)
        if test is None or inside_another or not _to_rewrite(site, _read(test, every), body, active):
            continue
        better = fresh("better", taken)
        taken.add(better)
        asked = ast.Name(better, ast.Load())
        edits[site.path] = [declare(better, LocalType("bool"), test)]
        for statement in body:
            target = as_value(statement.targets[0])
            if name_of(target) in active:
                chosen = with_origin(assign(target, ast.IfExp(asked, statement.value, target)), statement)
                chosen.was_branch = True  # type: ignore[attr-defined]
                edits[site.path].append(chosen)
            else:
                edits[site.path].append(ast.If(asked, [statement], []))
    if not edits:
        return program
    made = [
        make_nest(old.label, body, program.buffers)
        for old, body in zip(program.nests, edited(nests, edits), strict=True)
    ]
    return replace(program, nests=tuple(made))


def _flat(statement: ast.stmt) -> tuple[ast.expr | None, list[ast.Assign]]:
    """Test and assignments of ``if a: if b: t = e`` (``a and b``); no test for any other statement."""
    tests = []
    while isinstance(statement, ast.If) and not statement.orelse:
        tests.append(statement.test)
        if len(statement.body) == 1 and isinstance(statement.body[0], ast.If):
            statement = statement.body[0]
            continue
        body = [part for part in statement.body if isinstance(part, ast.Assign)]
        if len(body) < len(statement.body):
            return None, []
        return tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests), body
    return None, []


def _read(test: ast.expr, every: list[Statement]) -> set[str]:
    """Names that a test reads, directly or through its locals."""
    read = names_in(test)
    while True:
        more = set(read)
        for site in every:
            if isinstance(site.node, ast.If):
                continue
            target = target_of(site.node)
            if isinstance(target, ast.Name) and target.id in read:
                more |= names_in(site.node.value)  # type: ignore[attr-defined]
        if more == read:
            return read
        read = more


def _to_rewrite(site: Statement, read: set[str], body: list[ast.Assign], active: set[str]) -> bool:
    written = {name_of(statement.targets[0]) for statement in body}
    chosen = [statement for statement in body if name_of(statement.targets[0]) in active]
    # A choice between values that depend on earlier choices does not choose one iteration.
    independent = all(not (written & names_in(statement.value)) for statement in chosen)
    return bool(chosen and site.loops and written & read) and independent
