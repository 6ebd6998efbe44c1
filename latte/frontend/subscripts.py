"""Subscripts of a body: quasi-affine in its loop variables."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from latte.frontend.constants import called
from latte.frontend.number_ranges import Range
from latte.frontend.scope import BodyScope
from latte.model.body import MISSING
from latte.model.index import Index, NotAffine, as_index, maximum, minimum
from swirl.ir.printing import unparse


def index_of(scope: BodyScope, node: ast.expr, what: str = "a subscript") -> Index:
    """A quasi-affine integer expression of loop variables.

    Raises:
        BodyError: if it is not quasi-affine.
    """
    try:
        return _index(scope, node)
    except NotAffine as error:
        by_field = "what is computed from data goes by way of a Field(…, dtype='int32', below=…)"
        way_out = error.way_out or (by_field if what == "a subscript" else None)
        scope.fail(node, f"{what} must be affine in loop variables, {unparse(node)} is not: {error}", way_out)


def affine(scope: BodyScope, node: ast.expr) -> Index | None:
    """A quasi-affine expression of 32 bits; None for others."""
    fixing = len(scope.constants.fixing)
    try:
        found = _index(scope, node)
        if found.low >= -(2**31) and found.high < 2**31:
            return found
    except NotAffine:
        pass
    del scope.constants.fixing[fixing:]  # it is used in another way
    return None


def range_of(scope: BodyScope, node: ast.expr) -> Range | None:
    """The range of a quasi-affine expression; None for others."""
    found = affine(scope, node)
    return None if found is None else Range(found.low, found.high)


def _index(scope: BodyScope, node: ast.expr) -> Index:
    known = scope.constants.fold(node)
    if known is not MISSING:
        if isinstance(known, float) and known.is_integer():
            raise NotAffine(f"{known} is a float; write int(…) or //")
        return as_index(known)
    match node:
        case ast.Name(name) if name in scope.ranges:
            return scope.ranges[name]
        case ast.UnaryOp(ast.USub(), operand):
            return -_index(scope, operand)
        case ast.BinOp(left, operation, right):
            a, b = _index(scope, left), _index(scope, right)
            match operation:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv():
                    return a // b
                case ast.Mod():
                    return a % b
        case ast.Call(function, arguments, []) if called(function) in ("min", "max"):
            extreme = minimum if called(function) == "min" else maximum
            return as_index(extreme(*(_index(scope, part) for part in arguments)))
        case ast.Call(function, [operand], []) if called(function) == "abs":
            return abs(_index(scope, operand))
        case ast.IfExp():
            raise NotAffine("it chooses", "abs, min and max may be part of it; or an if around the whole statement")
        case ast.Subscript() | ast.Attribute():
            raise NotAffine("it depends on data")
        case ast.Name(name) if name in scope.variables or name in scope.locals:
            several = name in scope.variables and name not in scope.loop_names
            raise NotAffine(f"{name} is a variable{', assigned in several places' if several else ''}")
        case ast.Name(name):
            raise NotAffine(f"{name} is not defined here")
    raise NotAffine(f"{unparse(node)} is not built from + - * // % abs min max")


def subscript_list(scope: BodyScope, node: ast.Subscript) -> list[ast.expr]:
    """The subscripts as written; the one variable of ``eachindex`` over several dimensions stands for
    all."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    result: list[ast.expr] = []
    for part in parts:
        if isinstance(part, ast.Slice) or (isinstance(part, ast.Constant) and part.value is Ellipsis):
            scope.fail(
                node,
                f"{unparse(node)} is a slice; bodies compute single elements",
                "write the loop over its elements",
            )
        if isinstance(part, ast.Name) and part.id in scope.many:
            result += [ast.copy_location(ast.Name(name, ast.Load()), part) for name in scope.many[part.id]]
        else:
            result.append(part)
    return result


def check_subscripts(
    scope: BodyScope, node: ast.expr, indices: Sequence[Index | ast.expr], extents: Sequence[int | None]
) -> None:
    """Refuse subscripts that certainly leave an array."""
    for index, extent in zip(indices, extents, strict=True):
        if not isinstance(index, Index):
            continue
        if extent is not None and _is_reached(scope, index) and (index.low < 0 or index.high >= extent):
            reach = "is outside" if index.value is not None else f"runs from {index.low} to {index.high}"
            scope.fail(
                node,
                f"{unparse(node)}: {index} {reach}, the extent is {extent}",
                f"subscripts count from 0: the last element is at {extent - 1}" if index.high < 0 else None,
            )


def _is_reached(scope: BodyScope, index: Index) -> bool:
    """Whether the subscript certainly has its least and its greatest value: no condition keeps a loop inside, no loop
    around it is empty, and its variables do not depend on each other."""
    if any(loop.length.high <= 0 for loop in scope.loops.values()):
        return False
    if index.value is not None:
        return True
    names = [name for atom in index.terms for name, _, _ in atom.variables]
    windows = [scope.loops[name] for name in names]
    independent = len(names) == 1 or all(w.start.value is not None and w.stop.value is not None for w in windows)
    exact = len(names) == len(set(names)) and all(atom.exact for atom in index.terms)
    return exact and independent and not scope.conditional
