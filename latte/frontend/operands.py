"""Operands of sums of products that are computed, as normalised or masked weights: each element is computed once, and
stored, not again for all the results that it is part of; and so is its gradient."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import islpy as isl

from swirl.analysis.domains import Domain
from swirl.analysis.sets import NotProved, least_point, set_of
from swirl.analysis.statements import Statement, statements_of
from swirl.ir.buffers import Buffer
from swirl.ir.names import changed_in
from swirl.ir.nest import (
    LocalType,
    Nest,
    Program,
    fresh,
    local_type,
    make_nest,
    names_in,
    nested,
    reference,
    references,
    subscripts,
    substitute,
    variable_of,
)
from swirl.ir.paths import Path, at, edit_at, enclosing, replace_at, walk
from swirl.ir.printing import unparse
from swirl.ir.trees import as_target, changed, name_of, nodes, targets_in
from swirl.transforms.rewrites.blocks import without_dead
from swirl.transforms.rewrites.sites import taken_names

REUSED = 4
"""Results that each element is part of, from which on storing it costs less than computing it again."""


def stored_operands(program: Program, taken: Collection[str] = ()) -> Program:
    """The program with computed operands of its sums of products in arrays.

    rewrite:
        for n in range(N):                              for k in range(K):
            for k in range(K):                              for d in range(D):
                for d in range(D):                              v_part[k, d] = g[k] * v[k, d] / norm[k]
                    value[n, k] += (            →       for n in range(N):
                        g[k] * v[k, d] / norm[k]            for k in range(K):
                        * x[n, d])                              for d in range(D):
                                                                    value[n, k] += v_part[k, d] * x[n, d]

    An operand is the product of the factors that move with some of the loops, where it takes more than one reference;
    the factors are multiplied in another order, if need be, but divisors are not multiplied: that may underflow. It is
    stored before the loops that do not move it, if what it is computed of does not change in them, and if the sum
    computes each element at least once: not where data decide whether it does.

    Args:
        program: the forward program of a layer.
        taken: names that the layer has for arrays of its own, beside those in the program.
    """
    while (found := next(_operands(program), None)) is not None:
        program = _stored(program, found, taken)
    return program


@dataclass(frozen=True)
class _Factor:
    """A part of a product.

    Args:
        node: as it is written.
        meaning: the same, of arrays and loop variables: locals written out.
        divides: whether the product is divided by it.
        loops: those that move it.
    """

    node: ast.expr
    meaning: ast.expr
    divides: bool
    loops: frozenset[str]

    @property
    def arrays(self) -> set[str]:
        return {name_of(part) for part in references(self.meaning)}


@dataclass(frozen=True)
class _Operand:
    """Factors of the terms of a sum that are one operand.

    Args:
        nest: the number of the nest.
        statement: that adds the terms up.
        factors: of the terms, in order.
        own: those of the operand.
        model: an element that it reads of an array as large: its subscripts are the loops that move the operand.
        before: the statement before which it can be stored.
    """

    nest: int
    statement: Statement
    factors: Sequence[_Factor]
    own: Sequence[_Factor]
    model: ast.Subscript
    before: Path


# --- which ------------------------------------------------------------------------------------------------------
def _operands(program: Program) -> Iterator[_Operand]:
    """The computed operands of a program."""
    for number, nest in enumerate(program.nests):
        written_out = _Locals(nest)
        for statement in statements_of(nest):
            node = statement.node
            if isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Add, ast.Sub)):
                yield from _operands_of(program, number, statement, written_out)


def _operands_of(program: Program, number: int, statement: Statement, locals_: _Locals) -> Iterator[_Operand]:
    """Those of the terms that a statement adds up."""
    assert isinstance(statement.node, ast.AugAssign)
    (target,) = (access for access in statement.accesses if access.kind == "add")
    moving = statement.variable_set
    results = {name for index in target.indices for name in names_in(index)} & moving
    factors = []
    for node, divides in _product(statement.node.value):
        meaning = locals_.written_out(node)
        known = _read(meaning) <= {*program.buffers, *moving}
        factors.append(_Factor(node, meaning, divides, frozenset(names_in(meaning) & moving) if known else moving))
    groups = {factor.loops for factor in factors if factor.loops - results and results - factor.loops}
    for group in sorted((g for g in groups if not any(g < other for other in groups)), key=sorted):
        own = [factor for factor in factors if factor.loops and factor.loops <= group]
        others = [factor for factor in factors if factor not in own]
        if not (_is_float32(program, own) and _is_computed(own) and any(factor.loops - results for factor in others)):
            continue
        before, model = _before(program, number, statement, own, group), _model(own, group)
        if before is None or model is None or not _is_read_often(program, statement, group):
            continue
        if _is_read_whole(statement, group):
            yield _Operand(number, statement, factors, own, model, before)


def _product(node: ast.expr) -> Iterator[tuple[ast.expr, bool]]:
    """The factors of a product, with whether it is divided by them; a sign before it is the first one's. (Lowering
    writes an integer among floats as ``float32(m)``: the sign is a float's.)"""
    inner = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else None
    if isinstance(inner, ast.BinOp) and isinstance(inner.op, (ast.Mult, ast.Div)):
        (first, _), *others = _product(inner)
        yield from [(ast.UnaryOp(ast.USub(), first), False), *others]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        yield from _product(node.left)
        yield from [(node.right, True)] if isinstance(node.op, ast.Div) else _product(node.right)
    else:
        yield node, False


def _read(node: ast.expr) -> set[str]:
    """The names in an expression, but for those of functions."""
    functions = {id(part.func) for part in nodes(node) if isinstance(part, ast.Call)}
    return {part.id for part in nodes(node) if isinstance(part, ast.Name) and id(part) not in functions}


class _Locals:
    """The locals of a nest that have one value for good, of arrays that the nest does not change."""

    def __init__(self, nest: Nest):
        self.values: dict[str, ast.expr] = {}
        changed = changed_in(*nest.body)
        targets = [name_of(target) for target in targets_in(nest.body, declared=True)]
        for _, node in walk(nest.body):
            if not isinstance(node, ast.AnnAssign) or node.value is None or targets.count(name_of(node.target)) > 1:
                continue
            value = substitute(node.value, self.values)
            arrays = {name_of(part) for part in references(value)}
            if local_type(node) == LocalType("float32") and not arrays & changed:
                self.values[name_of(node.target)] = value

    def written_out(self, node: ast.expr) -> ast.expr:
        """An expression with what they stand for in their place."""
        return substitute(node, self.values) if names_in(node) & set(self.values) else node


def _is_float32(program: Program, factors: Sequence[_Factor]) -> bool:
    """Whether the product of factors is computed in single precision, in whichever order: at most one of them is an
    integer, beside others."""
    dtypes = [{program.buffers[name].dtype for name in factor.arrays} for factor in factors]
    whole = [found for found in dtypes if "float32" not in found]
    return not any("float64" in found for found in dtypes) and len(whole) <= 1 and len(whole) < len(dtypes)


def _is_computed(factors: Sequence[_Factor]) -> bool:
    """Whether an operand takes more than one load, and a sign; not of divisors alone, whose product may underflow."""
    node = factors[0].meaning
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    if len(factors) > 1:
        return not all(factor.divides for factor in factors)
    return not isinstance(node, (ast.Subscript, ast.Constant, ast.Name))


def _model(factors: Sequence[_Factor], group: frozenset[str]) -> ast.Subscript | None:
    """An element of an array that is read along just these loops, by plain subscripts."""
    every = (part for factor in factors for part in references(factor.meaning))
    return next((part for part in every if sorted(map(unparse, subscripts(part))) == sorted(group)), None)


def _is_read_often(program: Program, statement: Statement, group: frozenset[str]) -> bool:
    """Whether each element of an operand is part of several results. The batch counts as many, whatever its size:
    batches of all sizes have the same arrays."""
    buffers = program.buffers
    batched = [a.own[0] for a in statement.accesses if a.name in buffers and buffers[a.name].batch_dims]
    again = [loop for loop in statement.loops if loop.var not in group]
    batch = {name for index in batched for name in names_in(index)}
    return any(loop.var in batch for loop in again) or prod(loop.extent or 1 for loop in again) >= REUSED


def _is_read_whole(statement: Statement, group: frozenset[str]) -> bool:
    """Whether the sum reads each element of an operand at least once, so that no other one is computed."""
    loops = [loop for loop in statement.loops if loop.var in group]
    around = {name for loop in loops for bound in (loop.start, loop.stop) for name in names_in(bound)}
    ranges = [statement.ranges.get(loop.var, (-1, 0)) for loop in loops]
    if not statement.domain.exact or not around - {"min", "max"} <= group or any(least < 0 for least, _ in ranges):
        return False
    names = [loop.var + "_" for loop in loops]
    others = [var + "_" for var in statement.variables() if var not in group]
    own = Domain(tuple(loops)).for_isl("_")

    def unread(context: isl.Context) -> isl.Set:
        every = set_of(context, f"{{ [{', '.join(names)}] : {' and '.join(own)} }}")
        exists = f"exists {', '.join(others)} : "
        read = f"{{ [{', '.join(names)}] : {exists}{' and '.join(statement.domain.for_isl('_'))} }}"
        return every.subtract(set_of(context, read))

    try:
        return least_point(unread, len(names), statement.text) is None
    except NotProved:
        return False


def _before(
    program: Program, number: int, statement: Statement, own: Sequence[_Factor], group: frozenset[str]
) -> Path | None:
    """The outermost statement around a sum that changes nothing that an operand is computed of, in loops that move the
    operand; None where there is none."""
    body = program.nests[number].body
    read = {name for factor in own for name in factor.arrays}
    for depth in range(1, len(statement.path)):
        path = statement.path[:depth]
        node = at(body, path)
        if not read & changed_in(node):
            return path
        if not isinstance(node, ast.For) or variable_of(node) not in group:
            return None
    return None


# --- stored -----------------------------------------------------------------------------------------------------
def _stored(program: Program, found: _Operand, taken: Collection[str]) -> Program:
    """The program with an operand in an array of its own."""
    nest, statement, model = program.nests[found.nest], found.statement, found.model
    name = fresh(f"{name_of(model)}_part", taken_names(program).union(taken))
    loops = {loop.var: loop for loop in statement.loops}
    names = [unparse(index) for index in subscripts(model)]
    shape = tuple(statement.ranges[var][1] + 1 for var in names)
    per_item = shape[0] in _batches(program, found.own, names[0])
    buffer = Buffer(f"{program.name.split('.')[0]}.{name}", shape, per_item=per_item)
    element = reference(name, [ast.Name(var, ast.Load()) for var in names])

    own = found.own  # as they are written, if the first one is not a divisor
    if own[0].divides:
        own = sorted(own, key=lambda factor: factor.divides)
    divides = own[0].divides  # it is the only one, then
    value = _product_of((factor.meaning, factor.divides) for factor in own)
    first = min(map(found.factors.index, own))
    terms = _product_of(
        (element, divides) if index == first else (factor.node, factor.divides)
        for index, factor in enumerate(found.factors)
        if index == first or factor not in own
    )
    every = [loops[var] for var in names]
    if any(loop.extent is None for loop in every):  # bounds that depend on the loops around
        every = [loop for loop in statement.loops if loop in every]
    around = {variable_of(node) for node in enclosing(nest.body, found.before) if isinstance(node, ast.For)}
    store = ast.copy_location(ast.Assign([as_target(element)], value), statement.node)
    made = nested((loop for loop in every if loop.var not in around), [store])

    program = program.with_buffers(**{name: buffer})
    body = replace_at(nest.body, statement.path, [changed(statement.node, value=terms)])
    if len(found.before) > 1 or len(body) > 1:
        body = edit_at(body, found.before, lambda node: [*made, node])
    body = without_dead(body)
    nests = [make_nest(nest.label, body, program.buffers)]
    if len(found.before) == 1 and len(nest.body) == 1:
        nests.insert(0, make_nest(f"{nest.label}_{name}", made, program.buffers))
    return program.with_nest(found.nest, *nests)


def _batches(program: Program, factors: Sequence[_Factor], var: str) -> set[int]:
    """The items in the arrays that factors read along the batch by a loop."""
    read = [part for factor in factors for part in references(factor.meaning)]
    along = [program.buffers[name_of(part)] for part in read if unparse(subscripts(part)[0]) == var]
    return {buffer.shape[0] for buffer in along if buffer.batch_dims}


def _product_of(factors: Iterable[tuple[ast.expr, bool]]) -> ast.expr:
    """The product of the factors, divided by those that are marked; the first one is not."""
    (value, _), *others = factors
    for node, divides in others:
        value = ast.BinOp(value, ast.Div() if divides else ast.Mult(), node)
    return value
