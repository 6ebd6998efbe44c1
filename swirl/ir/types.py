"""The type of every expression, by the rules of ``docs/ir.md``; programs in which no conversion is left implicit.

``bool < int32 < float32 < float64``: operands are converted to the greater type. Literals are *weak*: one takes the
type of what it meets; if it meets nothing, that of the target that the whole expression is assigned to.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from typing import TypeVar

from swirl.errors import ValidationError
from swirl.ir.buffers import Buffer
from swirl.ir.hints import STREAM
from swirl.ir.names import Named, Scope, of_declaration, of_loop, with_distinct_names
from swirl.ir.nest import Nest, Program, clone, local_type
from swirl.ir.operations import CALLS, OPERATORS
from swirl.ir.operations import WEAK_FLOAT as WEAK_FLOAT
from swirl.ir.operations import WEAK_INT as WEAK_INT
from swirl.ir.printing import unparse
from swirl.ir.trees import as_value, changed, name_of

N = TypeVar("N", bound=ast.AST)

ORDER = ("bool", WEAK_INT, "int32", WEAK_FLOAT, "float32", "float64")
CASTS = ("float32", "float64", "int32", "bool")
DEFAULT = {WEAK_INT: "int32", WEAK_FLOAT: "float32"}
"""The type that a weak one becomes by default."""


def is_float(dtype: str) -> bool:
    """Whether it is a floating-point type, weak or not."""
    return dtype in ("float32", "float64", WEAK_FLOAT)


@cache
def joint(*dtypes: str) -> str:
    """The type in which values are compared, or chosen between: the greatest; a truth value and a literal make an
    int32."""
    found = max(dtypes, key=ORDER.index)
    return "int32" if found == WEAK_INT and "bool" in dtypes else found


def arithmetic(*dtypes: str) -> str:
    """The type in which values are added, multiplied, or the extremum is taken of: truth values count as 0 and 1."""
    return joint(WEAK_INT, *dtypes)


def dtype_of(node: ast.expr, scope: Scope, special: Callable[[ast.Call], str | None] | None = None) -> str:
    """The type of an expression where ``scope`` holds; weak if only literals determine it.

    Args:
        node: the expression.
        scope: of its names.
        special: the types of calls that are not of the grammar, or mean something else in a body; None for others.

    Raises:
        ValidationError: a name that is not declared there, or not an expression of the grammar.
    """

    if isinstance(node, (ast.Name, ast.Subscript)):
        name = name_of(node)
        if isinstance(node, ast.Name) and name in ("INFINITY", "inf"):
            return WEAK_FLOAT
        if name not in scope:
            raise ValidationError(f"{name} is not declared here")
        return WEAK_INT if scope[name].kind == "loop" else scope[name].dtype
    if isinstance(node, ast.Constant):
        return "bool" if isinstance(node.value, bool) else WEAK_INT if isinstance(node.value, int) else WEAK_FLOAT
    if isinstance(node, ast.BinOp) and node.op.__class__ in OPERATORS:
        sides = dtype_of(node.left, scope, special), dtype_of(node.right, scope, special)
        return joint(OPERATORS[node.op.__class__].least, *sides)
    if isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
        return "bool"
    if isinstance(node, ast.UnaryOp):
        return arithmetic(dtype_of(node.operand, scope, special))
    if isinstance(node, ast.IfExp):
        return joint(dtype_of(node.body, scope, special), dtype_of(node.orelse, scope, special))
    if isinstance(node, ast.BoolOp):
        return joint(*[dtype_of(value, scope, special) for value in node.values])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if special is not None and (own := special(node)) is not None:
            return own
        known = CALLS.get(node.func.id)
        if known is not None and known.result is not None:
            return known.result
        kinds = [dtype_of(argument, scope, special) for argument in node.args]
        return joint(*kinds) if known is None else joint(known.least, *kinds)
    raise ValidationError(f"not an expression of the grammar: {unparse(node)}")


def resolved(dtype: str, wanted: str | None) -> str:
    """The type that an expression is computed in if ``wanted`` is asked for: its own, unless it is weak. Whole numbers
    are computed as whole numbers."""
    if dtype == WEAK_FLOAT and wanted is not None and is_float(wanted):
        return wanted
    return DEFAULT.get(dtype, dtype)


def folded(node: ast.expr) -> bool | int | float | None:
    """The value of arithmetic on literals alone, as Python computes it; None for anything else, and for a division by
    zero."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, (bool, int, float)) else None
    if isinstance(node, ast.Name) and node.id in ("INFINITY", "inf"):
        return float("inf")
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = folded(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.BinOp):
        return folded_operation(node.op, folded(node.left), folded(node.right))
    return None


def folded_operation(op: ast.operator, left: float | None, right: float | None) -> float | None:
    """``left op right`` of two literals as Python computes it; None if one is not a literal, or a division is by
    zero."""
    known = OPERATORS.get(type(op))
    if left is None or right is None or known is None:
        return None
    divides = isinstance(op, (ast.Div, ast.FloorDiv, ast.Mod))
    found: float | None = None if divides and right == 0 else known.compute(left, right)
    return found


def as_int32(value: float) -> int:
    """``int32(value)``: without the fraction; NaN and what is out of range give the least number, as the processor's
    instruction does."""
    return int(value) if -(2.0**31) - 1 < value < 2.0**31 else -(2**31)


Leaf = Callable[[ast.expr, str], ast.expr]
"""Replaces a literal, or a loop variable, that takes a type."""


class Conversions:
    """Expressions and statements with every conversion of types spelled out as a cast.

    Args:
        leaf: replaces literals and loop variables outside of subscripts; by default they stay.
        fold: whether ``leaf`` gets arithmetic on literals as one literal, computed in double precision.
    """

    def __init__(self, leaf: Leaf | None = None, fold: bool = True):
        self.leaf, self.fold = leaf, fold and leaf is not None

    # --- statements -----------------------------------------------------------------------------------------
    def block(self, body: Sequence[ast.stmt], scope: Scope) -> list[ast.stmt]:
        """Statements one after the other; ``scope`` is that of the first one."""
        result: list[ast.stmt] = []
        here = dict(scope)
        for node in body:
            result.append(self.statement(node, here))
            if isinstance(node, ast.AnnAssign):
                here |= of_declaration(node)
        return result

    def statement(self, node: ast.stmt, scope: Scope) -> ast.stmt:
        """One statement, converted; the same object where there is nothing to convert."""
        if isinstance(node, ast.For):
            return _with(node, body=self.block(node.body, {**scope, **of_loop(node)}))
        if isinstance(node, ast.If):
            return _with(
                node,
                test=self.condition(node.test, scope),
                body=self.block(node.body, scope),
                orelse=self.block(node.orelse, scope),
            )
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            kind = local_type(node)
            return node if kind.shape else _with(node, value=self.value(node.value, kind.dtype, scope))
        if isinstance(node, ast.Assign):
            wanted = dtype_of(node.targets[0], scope)
            if isinstance(node.value, ast.Call) and unparse(node.value.func) == STREAM:
                inside = _with(node.value, args=[self.value(node.value.args[0], wanted, scope)])
                return _with(node, value=inside)
            return _with(node, value=self.value(node.value, wanted, scope))
        if isinstance(node, ast.AugAssign):
            return self._update(node, scope)
        return node

    def _update(self, node: ast.AugAssign, scope: Scope) -> ast.stmt:
        """``t op= e`` where that is computed in the target's type; else ``t = type(t op e)``: it may not be reordered,
        as each step loses something."""
        target = dtype_of(node.target, scope)
        whole = ast.BinOp(as_value(node.target), node.op, node.value)
        if resolved(dtype_of(whole, scope), target) == target != "bool":
            return _with(node, value=self.value(node.value, target, scope))
        new = ast.Assign([node.target], self.value(whole, target, scope))
        return ast.copy_location(new, node)

    # --- expressions ----------------------------------------------------------------------------------------
    def value(self, node: ast.expr, wanted: str, scope: Scope) -> ast.expr:
        """The expression as one of type ``wanted``."""
        own = resolved(dtype_of(node, scope), wanted)
        if own == "int32" and is_float(wanted) and folded(node) is not None:
            own = wanted  # a literal is of any type
        new = self.own(node, own, scope)
        return new if own == wanted else cast(wanted, new)

    def condition(self, node: ast.expr, scope: Scope) -> ast.expr:
        """The expression as a truth value: anything but zero is true."""
        if isinstance(node, ast.BoolOp):
            return _with(node, values=[self.condition(value, scope) for value in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return _with(node, operand=self.condition(node.operand, scope))
        return self.own(node, resolved(dtype_of(node, scope), None), scope)

    def own(self, node: ast.expr, dtype: str, scope: Scope) -> ast.expr:
        """The expression, in its own type, or in the one that it takes if it is weak."""
        if self.leaf is not None and (self.fold or isinstance(node, (ast.Constant, ast.Name))):
            number = folded(node)
            if number is not None:
                return self.leaf(ast.Constant(number), dtype)
        match node:
            case ast.Constant() | ast.Name("INFINITY" | "inf") | ast.Subscript():
                return node
            case ast.Name(name):
                loop = scope[name].kind == "loop"
                return self.leaf(node, dtype) if loop and self.leaf is not None else node
            case ast.Compare():
                return self._comparison(node, scope)
            case ast.UnaryOp(ast.Not()):
                return self.condition(node, scope)
            case ast.BoolOp():
                return self._choice(node, dtype, scope)
            case ast.UnaryOp(_, operand):
                return _with(node, operand=self.value(operand, dtype, scope))
            case ast.BinOp(left, _, right):
                return _with(node, left=self.value(left, dtype, scope), right=self.value(right, dtype, scope))
            case ast.IfExp(test, body, orelse):
                arms = self._together([body, orelse], dtype, scope)
                return _with(node, test=self.condition(test, scope), body=arms[0], orelse=arms[1])
            case ast.Call(ast.Name(name), arguments):
                if name == "rand":
                    return _with(node, args=[self.value(argument, "int32", scope) for argument in arguments])
                if name in CASTS:
                    if name == "bool":
                        return _with(node, args=[self.condition(arguments[0], scope)])
                    inner = arguments[0]
                    found = resolved(dtype_of(inner, scope), name)
                    literal = found == "int32" and is_float(name) and folded(inner) is not None
                    return _with(node, args=[self.own(inner, name if literal else found, scope)])
                return _with(node, args=self._together(arguments, dtype, scope))
        raise ValidationError(f"not an expression of the grammar: {unparse(node)}")

    def _together(self, parts: Sequence[ast.expr], dtype: str, scope: Scope) -> list[ast.expr]:
        """Expressions of one type; if they are all weak, the first one decides."""
        result = [self.value(part, dtype, scope) for part in parts]
        weak = self.leaf is None and all(dtype_of(part, scope) in DEFAULT for part in result)
        if weak and dtype not in DEFAULT.values():
            result[0] = cast(dtype, result[0])
        return result

    def _comparison(self, node: ast.Compare, scope: Scope) -> ast.expr:
        """Each pair of neighbours is compared in the greater of their types."""
        sides = [node.left, *node.comparators]
        kinds = [dtype_of(side, scope) for side in sides]
        pairs = [resolved(joint(one, two), None) for one, two in pairwise(kinds)]
        if all(kind == WEAK_INT for kind in kinds):
            return node  # of loop variables: Python's integers
        if len(set(pairs)) == 1:
            left, *others = (self.value(side, pairs[0], scope) for side in sides)
            return _with(node, left=left, comparators=others)
        tests: list[ast.expr] = [
            ast.Compare(self.value(one, pair, scope), [op], [self.value(two, pair, scope)])
            for one, op, two, pair in zip(sides, node.ops, sides[1:], pairs, strict=False)
        ]
        return ast.BoolOp(ast.And(), tests)

    def _choice(self, node: ast.BoolOp, dtype: str, scope: Scope) -> ast.expr:
        """``a and b`` as a value is Python's: ``b if a else a``; of truth values it stays."""
        if dtype == "bool":
            return self.condition(node, scope)
        result = self.value(node.values[-1], dtype, scope)
        for part in reversed(node.values[:-1]):
            test, itself = self.condition(part, scope), self.value(part, dtype, scope)
            arms = (result, itself) if isinstance(node.op, ast.And) else (itself, result)
            result = ast.IfExp(clone(test), *arms)
        return result


def cast(dtype: str, node: ast.expr) -> ast.expr:
    """``dtype(node)``."""
    return ast.Call(ast.Name(dtype, ast.Load()), [node], [])


def _with(node: N, **fields: object) -> N:
    """The node with other parts; the node itself if they are the same."""
    if all(_same(getattr(node, name), part) for name, part in fields.items()):
        return node
    return changed(node, **fields)


def _same(one: object, two: object) -> bool:
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(a is b for a, b in zip(one, two, strict=True))
    return one is two


def explicit(program: Program) -> Program:
    """The program in which each local's name has one type (:func:`swirl.ir.names.with_distinct_names`), with every
    conversion of types spelled out: ``m[0] += x[i]`` of an int32 and a float32 becomes
    ``m[0] = int32(float32(m[0]) + x[i])``, ``k * x[i]`` becomes ``float32(k) * x[i]``.

    Only the type of literals is left implicit: that of what a literal meets.

    Raises:
        ValidationError: a name that is not declared.
    """
    types = {name: buffer.dtype for name, buffer in program.buffers.items()}
    nests = [
        _explicit(nest, tuple((name, types[name]) for name in nest.arguments if name in types))
        for nest in program.nests
    ]
    changed = any(new is not old for new, old in zip(nests, program.nests, strict=True))
    return program.with_nests(nests) if changed else program


@lru_cache(maxsize=4096)
def _explicit(nest: Nest, buffers: tuple[tuple[str, str], ...]) -> Nest:
    nest = with_distinct_names(nest)
    body = Conversions().block(nest.body, {name: Named("buffer", dtype) for name, dtype in buffers})
    return nest if _same(body, nest.body) else nest.with_body(body)


def has_doubles(nest: Nest, buffers: Mapping[str, Buffer]) -> bool:
    """Whether something in a nest is of double precision."""
    return "float64" in nest.text or any(buffers[name].dtype == "float64" for name in nest.arguments)
