"""if_convert: branches on data become selects."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass
from typing import cast

from swirl.analysis.accesses import reduction_extremum
from swirl.analysis.dependences import NotProved, outside
from swirl.analysis.isl_notation import condition_to_isl
from swirl.analysis.statements import Statement, statements_of
from swirl.ir.affine import simplify
from swirl.ir.nest import (
    LocalType,
    Nest,
    Program,
    clone,
    declare,
    expr,
    fresh,
    local_type,
    names_in,
    reference,
    subscripts,
    substitute,
    variable_of,
    with_inner,
)
from swirl.ir.paths import Path, enclosing, loops, replace_at, walk
from swirl.ir.printing import unparse
from swirl.ir.trees import as_value, name_of, nodes, target_of
from swirl.ir.types import is_float
from swirl.transforms.arguments import LoopName, NestName
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.loops.bounds import conjunction, conjuncts
from swirl.transforms.rewrites.sites import Site, loop_at, rewrite_each, taken_names
from swirl.transforms.rewrites.sums.reductions import UNCHANGED, UNCHANGED_INTEGER, declared_type

_NOTE = "asked to become selects"
_EXTREMES = {"max": "-INFINITY", "min": "INFINITY"}
_ZEROS = {"int32": "0", "bool": "False"}


@command()
def if_convert(program: Program, loop_var: LoopName | None = None, *, nest: NestName | None = None) -> Program:
    """Turn branches on data into selects: every iteration then runs the same statements, and its elements are stored
    whatever the data are.

    rewrite:
        if x[i] > v:                        better: bool = x[i] > v
            v = x[i]                →       v = x[i] if better else v
            k = i                           k = i if better else k

    A reduction stays one: ``if c: s += e`` becomes ``s += e if c else -0.0``. Both branches on one target are joined.
    A select evaluates only the side that it takes, so reads that a condition prevents are still prevented. Conditions
    on loop variables alone are left as they are: ``tidy`` makes bounds of them.

    Args:
        loop_var: only inside this loop; by default everywhere.
        nest: only in this nest (index or label).

    Raises:
        CommandError: no such loop.
        Refused: an element that is stored under a condition might not exist where it does not hold.

    Source: Allen, Kennedy, Porterfield, Warren, *Conversion of control dependence to data dependence*, POPL 1983.
    """
    if loop_var is not None:
        return rewrite_each(program, loop_var, nest, _converted)
    result = program
    for index, target in enumerate(program.nests):
        if nest is None or nest in (index, target.label):
            result = _converted(result, Site(index, ()))
    return checked(program, result)


def _converted(program: Program, site: Site) -> Program:
    """The program with the branches in the loop at ``site`` converted; of the whole nest, where its path is empty."""
    target = program.nests[site.nest]
    convert = _Convert(program, target)
    if not site.path:
        parted = target.with_body([convert.parted(statement) for statement in target.body])
        convert.check_stores(parted, site.path)
        return program.with_nest(site.nest, target.with_body(convert.block(parted.body, None)))
    node = convert.parted(loop_at(program, site))
    assert isinstance(node, ast.For)
    convert.check_stores(target.with_body(replace_at(target.body, site.path, [node])), site.path)
    new = with_inner(node, convert.block(node.body, None))
    return program.with_nest(site.nest, target.with_body(replace_at(target.body, site.path, [new])))


@dataclass(frozen=True)
class _Under:
    """The condition of a statement: ``test``, or its opposite."""

    test: ast.expr
    holds: bool = True

    def select(self, then: ast.expr, otherwise: ast.expr) -> ast.IfExp:
        sides = (then, otherwise) if self.holds else (otherwise, then)
        return ast.IfExp(clone(self.test), *sides)

    def also(self, test: ast.expr, holds: bool = True) -> _Under:
        """This condition and another one, which is evaluated only where this one holds."""
        both = ((self.test, self.holds), (test, holds))
        return _Under(conjunction([clone(part) if yes else ast.UnaryOp(ast.Not(), clone(part)) for part, yes in both]))


class _Convert:
    """The branches of one nest."""

    def __init__(self, program: Program, nest: Nest):
        self.program = program
        self.nest = nest
        self.types: dict[str, LocalType | None] = {}
        self.declared: Counter[str] = Counter()
        for _, node in walk(nest.body):
            if isinstance(node, ast.AnnAssign):
                name, type_ = unparse(node.target), local_type(node)
                self.types[name] = type_ if self.types.get(name, type_) == type_ else None
                self.declared[name] += 1
        self.variables = {variable_of(node) for _, node in loops(nest.body)} - set(self.types) | {"min", "max"}
        self.taken = taken_names(program, [nest])

    # --- which branches, and what they store --------------------------------------------------------------
    def on_data(self, test: ast.expr) -> bool:
        """Whether a condition is more than a quasi-affine one on loop variables."""
        return not names_in(test) <= self.variables or condition_to_isl(test) is None

    def parted(self, node: ast.stmt) -> ast.stmt:
        """The statement with the parts of its conditions on loop variables as separate conditions, outside."""
        if isinstance(node, ast.For):
            return with_inner(node, [self.parted(statement) for statement in node.body])
        if not isinstance(node, ast.If):
            return node
        branches = [[self.parted(statement) for statement in body] for body in (node.body, node.orelse)]
        data = [part for part in conjuncts(node.test) if self.on_data(part)]
        shared = [part for part in conjuncts(node.test) if not self.on_data(part)]
        if node.orelse or not data or not shared:
            return ast.If(node.test, *branches)
        return ast.If(conjunction(shared), [ast.If(conjunction(data), branches[0], [])], [])

    def check_stores(self, parted: Nest, root: Path) -> None:
        """Raises Refused where a branch on data under ``root`` stores to an element that may not exist without it."""
        for statement in statements_of(parted):
            around = enclosing(parted.body, statement.path)[len(root) :]
            if not any(isinstance(node, ast.If) and self.on_data(node.test) for node in around):
                continue
            if isinstance(statement.node, (ast.Assign, ast.AugAssign)):
                target = target_of(statement.node)
                if isinstance(target, ast.Subscript):
                    self.check_store(parted, statement, target)

    def check_store(self, parted: Nest, statement: Statement, target: ast.Subscript) -> None:
        name, text = unparse(target.value), unparse(target)
        access = next(access for access in statement.accesses if access.kind != "read" and access.text == text)
        buffer = self.program.buffers.get(name)
        shape = declared_type(parted.body, statement.path, name).shape if buffer is None else buffer.shape
        try:
            witness = outside(statement, access, shape)
        except NotProved:
            raise refuse("not proved within the time allowed", parted, statement.path, _NOTE) from None
        if witness is None:
            return
        if None in statement.subscripts(access):
            found = f"nothing is known about where {text} is"
            way_out = "leave the branch as it is: vectorize masks it"
        else:
            instance = {var: expr(value) for var, value in witness.items()}
            indices = [simplify(substitute(index, instance)) for index in subscripts(target)]
            values = ", ".join(f"{var}={value}" for var, value in witness.items())
            found = f"{values} would store to {unparse(reference(name, indices))}, {name} has the shape {shape}"
            way_out = "a condition on loop variables around this one is left as it is: keep the subscript inside by one"
        problem = f"{text} would be stored whatever the data are, and may not exist then"
        raise refuse(problem, parted, statement.path, _NOTE, witness=found, way_out=way_out)

    # --- statements ---------------------------------------------------------------------------------------
    def block(self, body: list[ast.stmt], under: _Under | None) -> list[ast.stmt]:
        """The statements of a block whose condition is no longer a branch."""
        result: list[ast.stmt] = []
        rest = list(body)
        while rest:
            node = rest.pop(0)
            if isinstance(node, ast.For):
                result.append(with_inner(node, self.block(node.body, under) or [ast.Pass()]))
            elif isinstance(node, ast.If) and not self.on_data(node.test):
                branches = self.block(node.body, under), self.block(node.orelse, under)
                result.append(ast.If(node.test, branches[0] or [ast.Pass()], branches[1]))
            elif isinstance(node, ast.If):
                result += self.branch(node, under)
            elif under is None:
                result.append(node)
            elif isinstance(node, ast.AnnAssign):
                name = unparse(node.target)
                if self.declared[name] > 1:  # the block that it moves to may have another one
                    mapping: dict[str, ast.expr] = {name: expr(self.name(name))}
                    self.types[unparse(mapping[name])] = local_type(node)
                    node, rest = substitute(node, mapping), [substitute(s, mapping) for s in rest]
                result.append(self.declaration(node, under))
            elif not isinstance(node, ast.Pass):
                result.append(self.leaf(node, under))
        return result

    def name(self, base: str) -> str:
        name = fresh(base, self.taken)
        self.taken.add(name)
        return name

    def branch(self, node: ast.If, under: _Under | None) -> list[ast.stmt]:
        pairs = _pairs(node)
        result: list[ast.stmt] = []
        test = node.test
        if len(pairs) > 1 or (not pairs and _several(node)):
            name = self.name("condition")
            value = test if under is None else under.also(test).test
            result.append(declare(name, LocalType("bool"), value))
            test = ast.Name(name, ast.Load())
        if pairs:
            joined = [_joined(_Under(test), first, second) for first, second in pairs]
            return result + [statement if under is None else self.leaf(statement, under) for statement in joined]
        named = bool(result)
        result += self.block(node.body, _Under(test) if named or under is None else under.also(test))
        if node.orelse:
            result += self.block(node.orelse, _Under(test, False) if under is None else under.also(test, False))
        return result

    def declaration(self, node: ast.AnnAssign, under: _Under) -> ast.stmt:
        assert isinstance(node.target, ast.Name) and node.value is not None
        type_ = local_type(node)
        if type_.shape or isinstance(node.value, ast.Constant):
            return node
        return declare(node.target.id, type_, under.select(node.value, expr(_ZEROS.get(type_.dtype, "0.0"))))

    def leaf(self, node: ast.stmt, under: _Under) -> ast.stmt:
        """An assignment that happens where the condition holds; elsewhere it assigns the old value."""
        target = target_of(node)
        floating = is_float(self.dtype(target))
        if isinstance(node, ast.AugAssign):
            table = UNCHANGED if floating else UNCHANGED_INTEGER if self.dtype(target) == "int32" else {}
            if type(node.op) in table:
                return ast.AugAssign(node.target, node.op, under.select(node.value, expr(table[type(node.op)])))
            return ast.Assign(
                [target], under.select(ast.BinOp(as_value(target), node.op, node.value), as_value(target))
            )
        assert isinstance(node, ast.Assign)
        extremum = reduction_extremum(node)
        if extremum is None or not floating:
            return ast.Assign([target], under.select(node.value, as_value(target)))
        assert isinstance(node.value, ast.Call)
        text = unparse(target)
        args = [
            arg if unparse(arg) == text else under.select(arg, expr(_EXTREMES[extremum[0]])) for arg in node.value.args
        ]
        return ast.Assign([target], ast.Call(node.value.func, args, []))

    def dtype(self, target: ast.expr) -> str:
        """The type of a target; empty if locals of that name have several."""
        name = name_of(target)
        if name in self.types:
            type_ = self.types[name]
            return "" if type_ is None else type_.dtype
        return self.program.buffers[name].dtype


def _several(node: ast.If) -> bool:
    """Whether the branches need the condition more than once: for several statements, or those of a loop."""
    inner = [other for other in nodes(node) if isinstance(other, ast.stmt) and other is not node]
    return (
        any(isinstance(other, ast.For) for other in inner)
        or sum(not isinstance(other, (ast.If, ast.Pass)) for other in inner) > 1
    )


def _pairs(node: ast.If) -> list[tuple[ast.stmt, ast.stmt]]:
    """The statements of both branches side by side, if they assign the same targets in the same way."""
    if len(node.body) != len(node.orelse):
        return []
    pairs = list(zip(node.body, node.orelse, strict=True))
    return pairs if all(_alike(first, second) for first, second in pairs) else []


def _alike(first: ast.stmt, second: ast.stmt) -> bool:
    if not isinstance(first, (ast.Assign, ast.AugAssign)) or type(first) is not type(second):
        return False
    if unparse(target_of(first)) != unparse(target_of(second)):
        return False
    return not isinstance(first, ast.AugAssign) or type(first.op) is type(cast(ast.AugAssign, second).op)


def _joined(condition: _Under, first: ast.stmt, second: ast.stmt) -> ast.stmt:
    """One assignment for two: ``a = e if c else f``."""
    assert isinstance(first, (ast.Assign, ast.AugAssign)) and isinstance(second, (ast.Assign, ast.AugAssign))
    value = condition.select(first.value, second.value)
    if isinstance(first, ast.AugAssign):
        return ast.AugAssign(first.target, first.op, value)
    return ast.Assign(first.targets, value)
