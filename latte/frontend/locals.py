"""Types and declarations of a body's local variables, and the casts where integers meet floats."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Collection, Mapping
from functools import reduce
from typing import Literal, NoReturn, TypeVar

from swirl.ir.names import Named
from swirl.ir.nest import LocalType, constant, declare, expr, names_in
from swirl.ir.printing import unparse
from swirl.ir.trees import name_of, nodes
from swirl.ir.types import CASTS, DEFAULT, ORDER, arithmetic, dtype_of, is_float, joint, resolved

N = TypeVar("N", bound=ast.AST)
Fail = Callable[[ast.AST, str], NoReturn]
Use = Literal["read", "store", "maybe"]
_LARGEST = sys.float_info.max
# Largest exponent for which an integer's power is written as products.
_MAX_POWER = 8


def from_source(new: N, node: ast.AST) -> N:
    """A translation that is at the place of what was written, and remembers it for messages."""
    ast.copy_location(new, node)
    new.source = node  # type: ignore[attr-defined]
    return new


def written(node: ast.AST) -> str:
    """A part of a body as the user wrote it."""
    return unparse(getattr(node, "source", node))


def mentions(tree: ast.AST, name: str) -> bool:
    """Whether ``name`` (a local or a buffer) occurs in ``tree``."""
    return name in names_in(tree)


def first_use(statements: list[ast.stmt], name: str) -> Use | None:
    """How ``statements`` first touch a local or buffer: ``store`` on every way, ``read`` on some way before a
    store, ``maybe`` stored on some ways only. Loops are taken to run at least once."""
    seen: Use | None = None
    for statement in statements:
        use = _first_use(statement, name)
        if use == "read":
            return "read"
        if use == "store":
            return "store"
        seen = use or seen
    return seen


def _first_use(statement: ast.stmt, name: str) -> Use | None:
    match statement:
        case ast.Assign([target], value):
            if mentions(value, name) or (isinstance(target, ast.Subscript) and mentions(target.slice, name)):
                return "read"
            return "store" if name_of(target) == name else None
        case ast.AnnAssign(ast.Name(target_name), _, value):
            return "read" if value is not None and mentions(value, name) else "store" if target_name == name else None
        case ast.For():
            return "read" if mentions(statement.iter, name) else first_use(statement.body, name)
        case ast.If():
            if mentions(statement.test, name):
                return "read"
            uses = [first_use(statement.body, name), first_use(statement.orelse, name)]
            if "read" in uses:
                return "read"
            return "store" if uses == ["store", "store"] else "maybe" if uses != [None, None] else None
    return "read" if mentions(statement, name) else None


# --- types --------------------------------------------------------------------------------------------------
class Types:
    """Types of the names of a body.

    Args:
        body: statements in the intermediate representation, locals not yet declared.
        buffers: element type by name.
        fail: raises an error for a node.

    ``locals`` are the types of the locals, in the order of their first stores.
    """

    def __init__(self, body: list[ast.stmt], buffers: Mapping[str, str], fail: Fail):
        self.fail = fail
        stores: list[tuple[str, ast.expr]] = []
        for statement in body:
            for node in nodes(statement):
                match node:
                    case ast.Assign([ast.Name(name)], value):
                        stores.append((name, value))
                    case ast.AugAssign(ast.Name(name), operation, value):
                        stores.append((name, ast.BinOp(ast.Name(name, ast.Load()), operation, value)))
        # A loop's variable is an int32 in a body, whatever it is multiplied by.
        loops = set().union(*map(names_in, body)) - set(buffers)
        self.scope = {name: Named("local", "int32") for name in loops}
        self.scope |= {name: Named("buffer", dtype) for name, dtype in buffers.items()}
        self.scope |= {name: Named("local", ORDER[0]) for name, _ in stores}
        changed = True
        while changed:
            changed = False
            for name, value in stores:
                found = Named("local", joint(self.scope[name].dtype, self.of(value)))
                changed = changed or found != self.scope[name]
                self.scope[name] = found
        self.scope |= {name: Named("local", resolved(self.scope[name].dtype, None)) for name, _ in stores}
        self.locals = {name: self.scope[name].dtype for name, _ in stores}

    def of(self, node: ast.expr) -> str:
        """The type of an expression."""
        return dtype_of(node, self.scope, self._power_type)

    def _power_type(self, node: ast.Call) -> str | None:
        """The type of a power of whole numbers if it is a whole number."""
        return None if self._whole_power(node) is None else arithmetic(self.of(node.args[0]))

    def _whole_power(self, node: ast.Call) -> int | None:
        """The exponent, a small literal, of a power of whole numbers that is a whole number; else None."""
        if not isinstance(node.func, ast.Name) or node.func.id != "pow":
            return None
        base, exponent = node.args
        number = constant(exponent)
        if number is None or not 1 <= number <= _MAX_POWER:
            return None
        return None if is_float(self.of(base)) else number

    # --- casts ----------------------------------------------------------------------------------------------
    def cast(self, node: ast.expr, wanted: str) -> ast.expr:
        """``node``, its parts cast, as an expression of type ``wanted``."""
        found = self.of(node)
        if wanted in ("int32", "bool") and is_float(found):
            self.fail(node, f"{written(node)} is a float where {wanted} is needed; write {wanted}(…)")
        weak = found in DEFAULT and wanted != "bool"
        converted = self.convert(node, wanted if weak else found)
        if found == wanted or weak:
            return converted
        return ast.Call(ast.Name(wanted, ast.Load()), [converted], [])

    def truth(self, node: ast.expr) -> ast.expr:
        """``node`` as a condition: numbers are compared with zero (NaN is true, as in Python)."""
        match node:
            case ast.UnaryOp(ast.Not(), operand):
                return ast.UnaryOp(ast.Not(), self.truth(operand))
            case ast.BoolOp(operation, values):
                return ast.BoolOp(operation, [self.truth(value) for value in values])
        found = self.of(node)
        if found == "bool":
            return self.convert(node, found)
        found = resolved(found, None)
        zero = ast.Constant(0.0 if is_float(found) else 0)
        return ast.Compare(self.cast(node, found), [ast.NotEq()], [zero])

    def convert(self, node: ast.expr, wanted: str) -> ast.expr:
        """``node`` with casts inside, at its place in the body."""
        new = self._converted(node, wanted)
        return new if new is node else from_source(new, getattr(node, "source", node))

    def _converted(self, node: ast.expr, wanted: str) -> ast.expr:
        """``node`` with casts inside; literals in floating-point arithmetic become floats."""
        number = constant(node)
        if number is not None and wanted == "int32":
            if not -(2**31) <= number < 2**31:
                self.fail(node, f"{_shown(number)} does not fit an int32, in which it is computed here")
            return node
        if number is not None and is_float(wanted):
            if abs(number) > _LARGEST:
                self.fail(node, f"{_shown(number)} does not fit a float")
            literal = ast.Constant(float(abs(number)))
            return ast.UnaryOp(ast.USub(), literal) if number < 0 else literal
        found = self.of(node)
        inner = wanted if found in DEFAULT else found
        match node:
            case ast.BinOp(left, operation, right):
                if isinstance(operation, (ast.FloorDiv, ast.Mod)) and is_float(inner):
                    self.fail(node, f"{written(node)}: // and % are for integers; write floor(a / b)")
                return ast.BinOp(self.cast(left, inner), operation, self.cast(right, inner))
            case ast.UnaryOp(ast.Not(), operand):
                return ast.UnaryOp(ast.Not(), self.truth(operand))
            case ast.UnaryOp(operation, operand):
                return ast.UnaryOp(operation, self.cast(operand, inner))
            case ast.Compare(left, operations, [right]):
                joined = resolved(joint(self.of(left), self.of(right)), None)
                return ast.Compare(self.cast(left, joined), operations, [self.cast(right, joined)])
            case ast.BoolOp(operation, values) if found == "bool":
                return ast.BoolOp(operation, [self.truth(value) for value in values])
            case ast.BoolOp(operation, values):
                return self._chosen(isinstance(operation, ast.And), values, inner)
            case ast.IfExp(test, body, orelse):
                return ast.IfExp(self.truth(test), self.cast(body, inner), self.cast(orelse, inner))
            case ast.Call(ast.Name("rand")) | ast.Subscript() | ast.Name() | ast.Constant():
                return node
            case ast.Call():
                return self._call(node, inner)
        return node

    def _chosen(self, conjunction: bool, values: list[ast.expr], wanted: str) -> ast.expr:
        """``a and b`` as a value: ``b if a else a``; ``a or b``: ``a if a else b``."""
        *first, last = values
        chosen = self.cast(last, wanted)
        for value in reversed(first):
            test, own = self.truth(value), self.cast(value, wanted)
            chosen = ast.IfExp(test, *((chosen, own) if conjunction else (own, chosen)))
        return chosen

    def _call(self, node: ast.Call, wanted: str) -> ast.expr:
        match node:
            case ast.Call(ast.Name(name), [argument]) if name in CASTS:
                found = self.of(argument)
                if found in DEFAULT and is_float(name):
                    return self.convert(argument, name)
                return ast.Call(node.func, [self.convert(argument, resolved(found, None))], [])
            case ast.Call(_, [base, _]) if (exponent := self._whole_power(node)) is not None:
                factors = [self.cast(base, wanted) for _ in range(exponent)]
                return reduce(lambda left, right: ast.BinOp(left, ast.Mult(), right), factors)
        return ast.Call(node.func, [self.cast(argument, wanted) for argument in node.args], [])

    def statement(self, node: ast.stmt) -> ast.stmt:
        """A copy of a statement with its casts."""
        new: ast.stmt
        match node:
            case ast.Assign([target], value):
                new = ast.Assign([target], self.cast(value, self.of(target)))
                if is_float(self.of(target)):
                    new = _as_update(target, new.value) or new
            case ast.AugAssign(target, operation, value):
                dtype = self.of(target)
                if dtype == "bool" or (dtype == "int32" and isinstance(operation, ast.Div)):
                    self.fail(
                        node,
                        f"{written(node)}: {written(target)} is {dtype}, the result is a number of "
                        "another type; write the assignment out",
                    )
                new = ast.AugAssign(target, operation, self.cast(value, dtype))
            case ast.AnnAssign(target, annotation, value, simple):
                assert value is not None
                new = ast.AnnAssign(target, annotation, self.cast(value, self.of(target)), simple)
            case ast.For(target, iterator, body):
                new = ast.For(target, iterator, [self.statement(s) for s in body], [], None)
            case ast.If(test, body, orelse):
                new = ast.If(
                    self.truth(test),
                    [self.statement(s) for s in body],
                    [self.statement(s) for s in orelse],
                )
            case _:
                return node
        return ast.copy_location(new, node)


def _as_update(target: ast.expr, value: ast.expr) -> ast.AugAssign | None:
    """``t = t + e``, ``t = e + t`` and ``t = t - e`` as ``t += e`` and ``t -= e``, where ``e`` does not read ``t``: the
    same bits, and sums are found however they are written. None where it is something else."""
    match value:
        case ast.BinOp(left, ast.Add() | ast.Sub() as operation, right):
            if isinstance(operation, ast.Add) and unparse(right) == unparse(target):
                left, right = right, left
            if unparse(left) == unparse(target) and not mentions(right, name_of(target)):
                assert isinstance(target, (ast.Name, ast.Subscript))
                return ast.AugAssign(target, operation, right)
    return None


def _shown(number: int) -> str:
    """A whole number for messages."""
    digits = str(abs(number))
    return str(number) if len(digits) <= 20 else f"a whole number of {len(digits)} digits"


# --- declarations -------------------------------------------------------------------------------------------
def declare_locals(block: list[ast.stmt], names: Collection[str], types: Types, fail: Fail) -> list[ast.stmt]:
    """``block`` with every local of ``names`` declared, each as far inside as its uses allow.

    Raises (through ``fail``):
        BodyError: for a local that may be read before it is assigned.
    """
    for name in sorted(names):
        if any(mentions(statement, name) for statement in block):
            use = first_use(block, name)
            if use == "read":
                node = next(statement for statement in block if _first_use(statement, name) == "read")
                fail(node, f"the local variable {name} may be read before it is assigned")
            block = _declare(block, name, types.locals[name])
    return block


def _declare(block: list[ast.stmt], name: str, dtype: str) -> list[ast.stmt]:
    where = [index for index, statement in enumerate(block) if mentions(statement, name)]
    first = block[where[0]]
    if isinstance(first, ast.Assign):
        declared = ast.copy_location(declare(name, LocalType(dtype), first.value), first)
        return [*block[: where[0]], declared, *block[where[0] + 1 :]]
    if all(self_contained(block[index], name) for index in where):
        return [_inside(s, name, dtype) if index in where else s for index, s in enumerate(block)]
    zero = {"bool": "False", "int32": "0"}.get(dtype, "0.0")
    declared = ast.copy_location(declare(name, LocalType(dtype), expr(zero)), first)
    return [*block[: where[0]], declared, *block[where[0] :]]


def self_contained(statement: ast.stmt, name: str) -> bool:
    """Whether the local can be declared inside ``statement``: each block in it stores before it reads."""
    if isinstance(statement, ast.For):
        return not mentions(statement.iter, name) and _block_contains(statement.body, name)
    if isinstance(statement, ast.If) and not mentions(statement.test, name):
        return all(_block_contains(block, name) for block in (statement.body, statement.orelse))
    return False


def _block_contains(block: list[ast.stmt], name: str) -> bool:
    if first_use(block, name) in (None, "store"):
        return True
    return all(self_contained(statement, name) for statement in block if mentions(statement, name))


def _inside(statement: ast.stmt, name: str, dtype: str) -> ast.stmt:
    new: ast.stmt
    if isinstance(statement, ast.For):
        new = ast.For(statement.target, statement.iter, _declare(statement.body, name, dtype), [], None)
    else:
        assert isinstance(statement, ast.If)
        blocks = [
            _declare(block, name, dtype) if any(mentions(s, name) for s in block) else block
            for block in (statement.body, statement.orelse)
        ]
        new = ast.If(statement.test, *blocks)
    return ast.copy_location(new, statement)
