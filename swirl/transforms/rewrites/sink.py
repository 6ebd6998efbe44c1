"""Sinking: a loop moves inwards around each statement of its body. Unroll-and-jam and vectorisation share
it."""

from __future__ import annotations

import ast
import copy

from swirl.ir.affine import simplify_body
from swirl.ir.nest import (
    LocalType,
    Loop,
    Nest,
    Path,
    Program,
    at,
    clone,
    declare,
    enclosing,
    expr,
    fresh,
    local_type,
    loop_of,
    names_in,
    replace_at,
    substitute,
    with_inner,
)
from swirl.ir.statements import condition_template
from swirl.ir.trees import statements_in
from swirl.transforms.rewrites.dependence_order import check_order, tagged
from swirl.transforms.rewrites.local_arrays import expand_locals, moving_locals
from swirl.transforms.rewrites.refusals import WayOut, refuse
from swirl.transforms.rewrites.sites import Site, loop_at, taken_names


def sink(program: Program, site: Site, note: str, way_out: WayOut = None) -> Program:
    """Move the loop at ``site`` inwards around each leaf statement (jam); locals declared in it get a
    dimension.

    The loop must have literal extent, or be a vector loop. A local that does not move with the loop stays a
    scalar.

    Raises:
        Refused: a dependence would be reversed, or a bound inside moves with the loop.
    """
    nest = program.nests[site.nest]
    loop = loop_of(loop_at(program, site))
    node = own_names(nest, loop_at(program, site))
    around = {loop_of(n).var for n in enclosing(nest.body, site.path) if isinstance(n, ast.For)}
    taken = taken_names(Program("", (nest,), program.buffers)) | names_in(node)
    node = with_inner(node, _conditions_inside(node, loop, around, taken))
    nest = nest.with_body(replace_at(nest.body, site.path, [node]))
    expanded = expand_locals(nest, site.path, loop)
    # Until now the iterations ran one after the other, whatever kind of loop this will be.
    in_order = Loop(loop.var, "range", loop.start, loop.stop, loop.step)
    old = tagged(replace_at(nest.body, site.path, [in_order.node(expanded.body)]))
    sunk = at(old, site.path)
    assert isinstance(sunk, ast.For)
    new = replace_at(old, site.path, _sunk(sunk.body, loop, nest, site.path, note))
    check_order(old, new, nest, site.path, note, way_out)
    return program.with_nest(site.nest, nest.with_body(simplify_body(new)))


def own_names(nest: Nest, node: ast.For) -> ast.For:
    """The loop, every local declared in it under a name that no other statement declares."""
    taken = taken_names(Program("", (nest,), {}))
    seen: set[str] = set()

    def block(body: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        rest = list(body)
        while rest:
            statement = rest.pop(0)
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                name = statement.target.id
                if name in seen:
                    new = fresh(name, taken)
                    taken.add(new)
                    mapping: dict[str, ast.expr] = {name: ast.Name(new, ast.Load())}
                    statement, rest = substitute(statement, mapping), [substitute(s, mapping) for s in rest]
                    name = new
                seen.add(name)
            elif isinstance(statement, (ast.For, ast.If)):
                statement = copy.copy(statement)
                statement.body, statement.orelse = block(statement.body), block(statement.orelse)
            result.append(statement)
        return result

    return with_inner(node, block(node.body))


def _sunk(body: list[ast.stmt], loop: Loop, nest: Nest, path: Path, note: str) -> list[ast.stmt]:
    result: list[ast.stmt] = []
    run: list[ast.stmt] = []

    def flush() -> None:
        if run:
            result.append(loop.node(list(run)))
            run.clear()

    for node in body:
        if isinstance(node, ast.For) and not (loop_of(node).kind == "vector" and loop.kind != "vector"):
            flush()
            if loop.var in names_in(node.iter):
                raise refuse(f"the bounds of {loop_of(node).var} move with {loop.var}", nest, path, note)
            result.append(with_inner(node, _sunk(node.body, loop, nest, path, note)))
        elif isinstance(node, ast.If) and loop.var not in names_in(node.test) and _has_loop(node):
            flush()
            branch = copy.copy(node)
            branch.body = _sunk(node.body, loop, nest, path, note)
            branch.orelse = _sunk(node.orelse, loop, nest, path, note)
            result.append(branch)
        elif isinstance(node, ast.If) and _has_loop(node):
            raise refuse(f"a condition on data around a loop moves with {loop.var}", nest, path, note)
        elif isinstance(node, ast.AnnAssign) and loop.var not in names_in(node):
            flush()
            result.append(node)
        else:
            arrays, kept = _without_arrays([node])
            if arrays:
                flush()
                result += arrays
            run += kept
    flush()
    return result


def _conditions_inside(outer: ast.For, loop: Loop, around: set[str], taken: set[str]) -> list[ast.stmt]:
    """The body of a loop that will move inwards, with conditions that depend on it moved into the loops inside them.

    rewrite (i moves inwards):
        if i < 3:                           for k in range(K):
            for k in range(K): s    →           if i < 3: s

    A condition on data first becomes a local with its value before the loops; not for lanes.

    Args:
        around: the variables of the loops around.
        taken: names that a local must not have; those that are made are added.
    """
    moving = moving_locals(outer, loop.var) | {loop.var}
    variables = around | {loop_of(n).var for n in statements_in(outer) if isinstance(n, ast.For)}

    def block(body: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for node in body:
            if isinstance(node, ast.For):
                result.append(with_inner(node, block(node.body)))
                continue
            if not isinstance(node, ast.If):
                result.append(node)
                continue
            branches = block(node.body), block(node.orelse)
            kept = not _has_loop(node) or not names_in(node.test) & moving
            if kept or (loop.kind == "vector" and any(map(on_data, statements_in(node)))):
                result.append(ast.If(node.test, *branches))
                continue
            test = node.test
            if on_data(node):
                test = local()
                result.append(declare(test.id, LocalType("bool"), node.test))
            result += under(branches[0], test) + under(branches[1], ast.UnaryOp(ast.Not(), test))
        return result

    def on_data(node: ast.stmt) -> bool:
        return isinstance(node, ast.If) and _has_loop(node) and (
            condition_template(node.test) is None or not names_in(node.test) - {"min", "max"} <= variables
        )  # fmt: skip

    def local() -> ast.Name:
        name = fresh("condition", taken)
        taken.add(name)
        return ast.Name(name, ast.Load())

    def under(body: list[ast.stmt], test: ast.expr) -> list[ast.stmt]:
        """The statements, each under a condition; loops have it inside."""
        result: list[ast.stmt] = []
        run: list[ast.stmt] = []

        def flush() -> None:
            if run:
                result.append(ast.If(clone(test), list(run), []))
                run.clear()

        for node in body:
            if isinstance(node, ast.For) and loop_of(node).kind != "vector":
                flush()
                result.append(with_inner(node, under(node.body, test)))
            elif isinstance(node, ast.If) and on_data(node):  # its operands may not exist otherwise
                flush()
                own = local()
                result.append(declare(own.id, LocalType("bool"), ast.Constant(False)))
                result.append(ast.If(clone(test), [ast.Assign([ast.Name(own.id, ast.Store())], node.test)], []))
                result += under(under(node.body, own) + under(node.orelse, ast.UnaryOp(ast.Not(), own)), test)
            elif isinstance(node, ast.If) and _has_loop(node):
                flush()
                result.append(ast.If(node.test, under(node.body, test), under(node.orelse, test)))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                flush()
                type_ = local_type(node)
                if type_.shape or node.value is None:
                    result.append(node)
                    continue
                result.append(declare(node.target.id, type_, expr(_START.get(type_.dtype, 0.0))))
                run.append(ast.Assign([ast.Name(node.target.id, ast.Store())], node.value))
            else:
                run.append(node)
        flush()
        return result

    return block(outer.body)


_START: dict[str, int | str] = {"int32": 0, "bool": "False"}


def _without_arrays(body: list[ast.stmt]) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The declarations of arrays in branches of ``body``, and ``body`` without them."""
    arrays: list[ast.stmt] = []
    kept: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.AnnAssign) and local_type(node).shape:
            arrays.append(node)
            continue
        if isinstance(node, ast.If):
            node = copy.copy(node)
            found, node.body = _without_arrays(node.body)
            others, node.orelse = _without_arrays(node.orelse)
            arrays += [*found, *others]
        kept.append(node)
    return arrays, kept


def _has_loop(node: ast.stmt) -> bool:
    return any(isinstance(inner, ast.For) and loop_of(inner).kind != "vector" for inner in statements_in(node))
