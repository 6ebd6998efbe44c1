"""Sinking: a loop moves inwards around each statement of its body. Unroll-and-jam and vectorisation share
it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from swirl.analysis.accesses import condition_template
from swirl.ir.affine import ranges_at, simplify_body
from swirl.ir.names import renaming
from swirl.ir.nest import (
    LocalType,
    Loop,
    Nest,
    Program,
    clone,
    declare,
    expr,
    fresh,
    kind_of,
    local_type,
    loop_of,
    names_in,
    substitute,
    variable_of,
    with_inner,
)
from swirl.ir.paths import Path, enclosing, replace_at
from swirl.ir.trees import changed, name_of, statements_in
from swirl.transforms.rewrites.checks.dependence_order import check_order, tagged
from swirl.transforms.rewrites.checks.refusals import WayOut, refuse
from swirl.transforms.rewrites.sites import Site, loop_at, taken_names
from swirl.transforms.rewrites.storage.local_arrays import expand_locals, moving_locals


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
    around = {variable_of(n) for n in enclosing(nest.body, site.path) if isinstance(n, ast.For)}
    taken = taken_names(Program("", (nest,), program.buffers)) | names_in(node)
    variables = around | {variable_of(n) for n in statements_in(node) if isinstance(n, ast.For)}
    inside = _ConditionsInside(loop.kind == "vector", moving_locals(node, loop.var) | {loop.var}, variables, taken)
    node = with_inner(node, inside.block(node.body))
    nest = nest.with_body(replace_at(nest.body, site.path, [node]))
    expanded = expand_locals(nest, site.path, loop)
    # Until now the iterations ran one after the other, whatever kind of loop this will be.
    in_order = Loop(loop.var, "range", loop.start, loop.stop, loop.step)
    (old,) = tagged([in_order.node(expanded.body)])
    assert isinstance(old, ast.For)
    sunk = _sunk(old.body, loop, nest, site.path, note)
    check_order([old], sunk, nest, site.path, note, way_out, inside=True)
    sunk = simplify_body(sunk, ranges_at(nest.body, site.path))
    return program.with_nest(site.nest, nest.with_body(replace_at(nest.body, site.path, sunk)))


def own_names(nest: Nest, node: ast.For) -> ast.For:
    """The loop, every local declared in it under a name that no other statement declares."""
    taken = taken_names(Program("", (nest,), {}))
    seen: set[str] = set()

    def block(body: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        rest = list(body)
        while rest:
            statement = rest.pop(0)
            if isinstance(statement, ast.AnnAssign):
                name = name_of(statement.target)
                if name in seen:
                    mapping = renaming([name], taken)
                    statement, rest = substitute(statement, mapping), [substitute(s, mapping) for s in rest]
                    name = name_of(statement.target)
                seen.add(name)
            elif isinstance(statement, (ast.For, ast.If)):
                statement = changed(statement, body=block(statement.body), orelse=block(statement.orelse))
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
        if isinstance(node, ast.For) and not (kind_of(node) == "vector" and loop.kind != "vector"):
            flush()
            if loop.var in names_in(node.iter):
                raise refuse(f"the bounds of {variable_of(node)} move with {loop.var}", nest, path, note)
            result.append(with_inner(node, _sunk(node.body, loop, nest, path, note)))
        elif isinstance(node, ast.If) and loop.var not in names_in(node.test) and _has_loop(node):
            flush()
            body, orelse = (_sunk(branch, loop, nest, path, note) for branch in (node.body, node.orelse))
            result.append(changed(node, body=body, orelse=orelse))
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


@dataclass(frozen=True)
class _ConditionsInside:
    """Puts conditions that move with a loop inside of the loops that they stand around, as the loop is to move inwards.

    rewrite (i moves inwards):
        if i < 3:                           for k in range(K):
            for k in range(K): s    →           if i < 3: s

    A condition on data first becomes a local with its value before the loops; not for lanes.

    Args:
        lanes: whether the loop is a vector loop.
        moving: the names whose values move with the loop.
        variables: those of the loops, inside and around.
        taken: names that a local must not have; those that are made are added.
    """

    lanes: bool
    moving: set[str]
    variables: set[str]
    taken: set[str]

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for node in body:
            if isinstance(node, ast.For):
                result.append(with_inner(node, self.block(node.body)))
            elif isinstance(node, ast.If):
                result += self._branches(node)
            else:
                result.append(node)
        return result

    def _branches(self, node: ast.If) -> list[ast.stmt]:
        branches = self.block(node.body), self.block(node.orelse)
        kept = not _has_loop(node) or not names_in(node.test) & self.moving
        if kept or (self.lanes and any(map(self._on_data, statements_in(node)))):
            return [ast.If(node.test, *branches)]
        test, declared = node.test, []
        if self._on_data(node):
            test = self._local()
            declared = [declare(test.id, LocalType("bool"), node.test)]
        return [*declared, *self._under(branches[0], test), *self._under(branches[1], ast.UnaryOp(ast.Not(), test))]

    def _on_data(self, node: ast.stmt) -> bool:
        """Whether a condition around a loop depends on data."""
        return (
            isinstance(node, ast.If)
            and _has_loop(node)
            and (condition_template(node.test) is None or not names_in(node.test) - {"min", "max"} <= self.variables)
        )

    def _local(self) -> ast.Name:
        name = fresh("condition", self.taken)
        self.taken.add(name)
        return ast.Name(name, ast.Load())

    def _under(self, body: list[ast.stmt], test: ast.expr) -> list[ast.stmt]:
        """The statements, each under a condition, but for loops: these have it inside."""
        result: list[ast.stmt] = []
        run: list[ast.stmt] = []
        for node in body:
            before, inside = self._parted(node, test)
            if before and run:
                result.append(ast.If(clone(test), run, []))
                run = []
            result += before
            run += inside
        return [*result, ast.If(clone(test), run, [])] if run else result

    def _parted(self, node: ast.stmt, test: ast.expr) -> tuple[list[ast.stmt], list[ast.stmt]]:
        """What stands outside of the condition for a statement, and then what stands under it."""
        if isinstance(node, ast.For) and kind_of(node) != "vector":
            return [with_inner(node, self._under(node.body, test))], []
        if isinstance(node, ast.If) and self._on_data(node):  # what it looks at may not be there otherwise
            own = self._local()
            asked = ast.If(clone(test), [ast.Assign([ast.Name(own.id, ast.Store())], node.test)], [])
            branches = self._under(node.body, own) + self._under(node.orelse, ast.UnaryOp(ast.Not(), own))
            return [declare(own.id, LocalType("bool"), ast.Constant(False)), asked, *self._under(branches, test)], []
        if isinstance(node, ast.If) and _has_loop(node):
            return [ast.If(node.test, self._under(node.body, test), self._under(node.orelse, test))], []
        if isinstance(node, ast.AnnAssign):
            type_, name = local_type(node), name_of(node.target)
            if type_.shape or node.value is None:
                return [node], []
            started = declare(name, type_, expr(_START.get(type_.dtype, 0.0)))
            return [started], [ast.Assign([ast.Name(name, ast.Store())], node.value)]
        return [], [node]


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
            (found, body), (others, orelse) = _without_arrays(node.body), _without_arrays(node.orelse)
            node = changed(node, body=body, orelse=orelse)
            arrays += [*found, *others]
        kept.append(node)
    return arrays, kept


def _has_loop(node: ast.stmt) -> bool:
    return any(isinstance(inner, ast.For) and kind_of(inner) != "vector" for inner in statements_in(node))
