"""Expressions of a body, translated to expressions of the intermediate representation.

What ``self.inputs[c, ky, kx]`` or ``inputs[n, c]`` means is said by subclasses, in ``latte/frontend/references.py``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

from latte.frontend.constants import Constants, attribute, called, literal
from latte.model.body import MISSING, Body
from latte.model.ensemble import Ensemble
from latte.model.index import Index, NotAffine, as_index, maximum, minimum
from latte.model.instances import is_number
from latte.model.mapping import Window
from swirl.ir.buffers import Buffer
from swirl.ir.nest import CALLS

# Names that bodies may call → the intermediate representation's.
FUNCTIONS = {
    **{name: name for name in CALLS if name != "rand"},
    "fmax": "max",
    "fmin": "min",
    "maximum": "max",
    "minimum": "min",
    "fabs": "abs",
    "power": "pow",
    "float": "float32",
    "int": "int32",
    "stop_gradient": "stop_gradient",
}
ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
# Random numbers of one ensemble: up to this many calls of rand() in its bodies have streams of their own.
STREAMS = 256
_NAMES = {
    ast.While: "while",
    ast.Try: "try",
    ast.With: "with",
    ast.Return: "return",
    ast.Break: "break",
    ast.Continue: "continue",
    ast.FunctionDef: "def",
    ast.Import: "import",
    ast.ImportFrom: "import",
    ast.Delete: "del",
    ast.Raise: "raise",
    ast.Assert: "assert",
    ast.Global: "global",
    ast.ListComp: "a list",
    ast.List: "a list",
    ast.Dict: "a dictionary",
    ast.Lambda: "lambda",
    ast.NamedExpr: ":=",
    ast.AnnAssign: "name: type",
    ast.JoinedStr: "a string",
    ast.Slice: "a slice",
    ast.Starred: "*",
    ast.Match: "match",
    ast.Tuple: "a tuple",
}


class Expressions:
    """Translates the expressions of one body, for the loops and locals that are known so far.

    Args:
        ensemble: whose body it is.
        body: the source.
        buffers: by the name inside bodies.
        batch_size: number of items.
        training: what ``self.training`` is.
        phase: ``forward``, ``backward`` or ``update``.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        body: Body,
        buffers: Mapping[str, Buffer],
        batch_size: int,
        training: bool,
        phase: str,
    ):
        self.ensemble = ensemble
        self.phase = phase
        self.body = body
        self.buffers = buffers
        stores = _stores(body)
        self.loop_names = _loop_names(body)
        self.variables = {name for name, values in stores.items() if values != 1}
        fixed = {
            "self.training": training,
            "self.batch_size": batch_size,
            "self.shape": ensemble.shape,
            "self.ndim": ensemble.ndim,
            **self.shapes(),
        }
        self.constants = Constants(body, fixed, partial(attribute, ensemble), set(stores) | set(body.parameters))
        self.loops: dict[str, Window] = {}
        self.ranges: dict[str, Index] = {}
        self.many: dict[str, list[str]] = {}
        self.locals: dict[str, str] = {}
        self.eachindex_loops: list[tuple[str, ...]] = []
        self.rand_calls = 0
        # How many conditions on data are around: an assignment under one is no constant.
        self.conditional = 0
        for node in ast.walk(body.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._check_name(node.id, node)

    # --- what the subclasses say ----------------------------------------------------------------------------
    def shapes(self) -> dict[str, Any]:
        """``self.inputs.shape`` and its kin, as constants."""
        raise NotImplementedError

    def windows_of(self, node: ast.expr) -> list[Window]:
        """What ``eachindex(node)`` runs over: one window for each dimension, starting at 0."""
        raise NotImplementedError

    def reference(self, node: ast.expr, indices: list[ast.expr] | None) -> ast.expr:
        """``node[indices]`` as a reference to a buffer."""
        raise NotImplementedError

    def forbidden_names(self) -> dict[str, str]:
        """Names that no loop or local may have, and why."""
        raise NotImplementedError

    def fail(self, node: ast.AST, message: str, way_out: str | None = None) -> NoReturn:
        self.body.fail(node, message, way_out)

    def _unknown(self, node: ast.AST) -> NoReturn:
        name = _NAMES.get(type(node)) or f"{ast.unparse(node)!r}"
        self.fail(
            node,
            f"a body cannot contain {name}",
            "bodies are made of for over ranges, if, assignments and arithmetic on single elements",
        )

    def _check_name(self, name: str, node: ast.AST) -> None:
        why = self.forbidden_names().get(name)
        if why:
            self.fail(node, f"the variable {name!r} has the name of {why}", "choose another name")

    # --- subscripts -----------------------------------------------------------------------------------------
    def index(self, node: ast.expr, what: str = "a subscript") -> Index:
        """A quasi-affine integer expression of loop variables.

        Raises:
            BodyError: if it is none.
        """
        try:
            return self._index(node)
        except NotAffine as error:
            self.fail(node, f"{what} must be affine in loop variables, {ast.unparse(node)} is not: {error}")

    def _index(self, node: ast.expr) -> Index:
        known = self.constants.fold(node)
        if known is not MISSING:
            if isinstance(known, float) and known.is_integer():
                raise NotAffine(f"{known} is a float; write int(…) or //")
            return as_index(known)
        match node:
            case ast.Name(name) if name in self.ranges:
                return self.ranges[name]
            case ast.UnaryOp(ast.USub(), operand):
                return -self._index(operand)
            case ast.BinOp(left, operation, right):
                a, b = self._index(left), self._index(right)
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
                return as_index(extreme(*map(self._index, arguments)))
            case ast.Subscript() | ast.Attribute():
                raise NotAffine("it depends on data")
            case ast.Name(name) if name in self.variables or name in self.locals:
                raise NotAffine(f"{name} is a variable")
            case ast.Name(name):
                raise NotAffine(f"{name} is not defined here")
        raise NotAffine(f"{ast.unparse(node)} is not built from + - * // % min max")

    def subscript_list(self, node: ast.Subscript) -> list[ast.expr]:
        """The subscripts as written; the one variable of ``eachindex`` over several dimensions stands for
        all."""
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        result: list[ast.expr] = []
        for part in parts:
            if isinstance(part, ast.Slice) or (isinstance(part, ast.Constant) and part.value is Ellipsis):
                self.fail(
                    node,
                    f"{ast.unparse(node)} is a slice; bodies compute single elements",
                    "write the loop over its elements",
                )
            if isinstance(part, ast.Name) and part.id in self.many:
                result += [ast.copy_location(ast.Name(name, ast.Load()), part) for name in self.many[part.id]]
            else:
                result.append(part)
        return result

    def check_constant_subscripts(
        self, node: ast.expr, indices: list[Index], extents: list[int | None]
    ) -> None:
        """Refuse constants and plain loop variables that leave an array."""
        for index, extent in zip(indices, extents, strict=True):
            # Under a condition the loop may stay inside.
            plain = index.value is not None or (index.text in self.ranges and not self.conditional)
            if extent is not None and plain and (index.low < 0 or index.high >= extent):
                reach = "is outside" if index.value is not None else f"runs from {index.low} to {index.high}"
                self.fail(node, f"{ast.unparse(node)}: {index} {reach}, the extent is {extent}")

    # --- expressions ----------------------------------------------------------------------------------------
    def element(self, node: ast.expr) -> ast.expr:
        """``self.value``, ``self.weights[…]``, ``inputs[…]``."""
        if isinstance(node, ast.Subscript):
            return ast.copy_location(self.reference(node.value, self.subscript_list(node)), node)
        return ast.copy_location(self.reference(node, None), node)

    def expression(self, node: ast.expr) -> ast.expr:
        """An expression, translated; padded reads in it are marked (see :func:`apply_guards`)."""
        known = self.constants.fold(node)
        if known is not MISSING:
            if not is_number(known):
                self.fail(node, f"{ast.unparse(node)} is {known!r}, not a number")
            return ast.copy_location(literal(known), node)
        return ast.copy_location(self._expression(node), node)

    def _expression(self, node: ast.expr) -> ast.expr:
        match node:
            case ast.Name(name):
                return self._name(node, name)
            case ast.Attribute() | ast.Subscript():
                found = self.element(node)
                for part in ast.walk(found):
                    if isinstance(part, ast.Subscript) and isinstance(part.value, ast.Name):
                        self._check_read(node, part.value.id)
                return found
            case ast.BinOp(left, ast.Pow(), right):
                return self._power(left, right)
            case ast.BinOp(left, operation, right) if isinstance(operation, ARITHMETIC):
                return ast.BinOp(self.expression(left), operation, self.expression(right))
            case ast.UnaryOp(ast.UAdd(), operand):
                return self.expression(operand)
            case ast.UnaryOp(ast.USub() | ast.Not() as operation, operand):
                return ast.UnaryOp(operation, self.expression(operand))
            case ast.Compare(left, operations, rights):
                if not all(
                    isinstance(o, (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)) for o in operations
                ):
                    self.fail(node, f"{ast.unparse(node)}: only < <= > >= == != compare")
                sides = [left, *rights]
                tests: list[ast.expr] = [
                    ast.Compare(self.expression(a), [operation], [self.expression(b)])
                    for a, operation, b in zip(sides, operations, rights, strict=False)
                ]
                return tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)
            case ast.BoolOp(operation, values):
                parts = [self.expression(value) for value in self._deciding(operation, values)]
                return parts[0] if len(parts) == 1 else ast.BoolOp(operation, parts)
            case ast.IfExp(test, body, orelse):
                chosen = self.constants.fold(test)
                if chosen is not MISSING:
                    return self.expression(body if chosen else orelse)
                condition = self.expression(test)
                self.conditional += 1
                branches = self.expression(body), self.expression(orelse)
                self.conditional -= 1
                return ast.IfExp(condition, *branches)
            case ast.Call():
                return self._call(node)
        self._unknown(node)

    def _check_read(self, node: ast.expr, name: str) -> None:
        """Refuse gradients where there are none yet."""
        if self.phase == "forward" and self.buffers[name].role in ("grad", "param_grad"):
            way_out = "keep a State for what the next step needs"
            self.fail(node, f"{ast.unparse(node)} is a gradient, which forward runs before", way_out)

    def _deciding(self, operation: ast.boolop, values: list[ast.expr]) -> list[ast.expr]:
        """The operands of ``and`` or ``or`` but for constants that cannot be the result, and all after one that is."""
        deciding = []
        for value in values:
            known = self.constants.fold(value)
            if known is MISSING or value is values[-1]:
                deciding.append(value)
            elif bool(known) != isinstance(operation, ast.And):
                return [*deciding, value]
        return deciding

    def _name(self, node: ast.expr, name: str) -> ast.expr:
        if name in self.loops:
            return ast.Name(name, ast.Load())
        if name in self.locals:
            return ast.Name(self.locals[name], ast.Load())
        if name in self.many:
            self.fail(
                node, f"{name} runs over several dimensions and is no number", "for a, b in … names each"
            )
        if name in self.variables or name in self.constants.hidden and name not in self.buffers:
            self.fail(node, f"the variable {name} is used before it is assigned")
        if name in self.buffers:
            self.fail(node, f"{name} is a whole array; bodies compute single elements", f"write {name}[…]")
        self.fail(
            node,
            f"{name!r} is not defined, or is no number",
            "a body knows its loop variables, locals, fields, and numbers from self, closures and globals",
        )

    def _power(self, left: ast.expr, right: ast.expr) -> ast.expr:
        exponent = self.constants.fold(right)
        base = self.expression(left)
        if exponent == 2 and isinstance(base, (ast.Name, ast.Subscript)):
            return ast.BinOp(base, ast.Mult(), self.expression(left))
        if exponent == 0.5:
            return ast.Call(ast.Name("sqrt", ast.Load()), [base], [])
        return ast.Call(ast.Name("pow", ast.Load()), [base, self.expression(right)], [])

    def _call(self, node: ast.Call) -> ast.expr:
        name = called(node.func)
        if name == "rand" and not node.args and not node.keywords:
            return self._rand(node)
        if name not in FUNCTIONS or node.keywords:
            self.fail(
                node,
                f"a body cannot call {ast.unparse(node.func)}",
                f"it may call {', '.join(sorted({*FUNCTIONS, 'rand'}))}",
            )
        arguments = [self.expression(argument) for argument in node.args]
        function = FUNCTIONS[name]
        wanted = CALLS.get(function, 1)
        if (wanted is None and len(arguments) < 2) or (wanted is not None and len(arguments) != wanted):
            self.fail(node, f"{ast.unparse(node)}: {name} takes {wanted or 'two or more'} arguments")
        if function in ("max", "min"):
            # A literal stands first, so that NaN in the other argument passes.
            arguments.sort(
                key=lambda argument: (
                    not isinstance(argument, (ast.Constant, ast.UnaryOp))
                    or not (isinstance(argument, ast.Constant) or isinstance(argument.operand, ast.Constant))
                )
            )
        return ast.Call(ast.Name(function, ast.Load()), arguments, [])

    def _rand(self, node: ast.Call) -> ast.expr:
        """``rand(seed[0], step[0], stream, index)``: the stream is this call's own, the index that of the
        element."""
        position = as_index(0)
        for name, window in self.loops.items():
            if window.extent is None or window.start.value != 0 or window.step != 1:
                self.fail(node, f"rand() inside the loop {name} = {window.text}, whose length is no constant")
            position = position * window.extent + self.ranges[name]
        stream = self.ensemble.position * STREAMS + self.rand_calls
        self.rand_calls += 1
        scalars = [
            ast.Subscript(ast.Name(name, ast.Load()), ast.Constant(0), ast.Load())
            for name in ("seed", "step")
        ]
        return ast.Call(ast.Name("rand", ast.Load()), [*scalars, ast.Constant(stream), position.tree], [])


def _loop_names(body: Body) -> set[str]:
    """Names of all loop variables of a body."""
    targets = (node.target for node in ast.walk(body.tree) if isinstance(node, ast.For))
    return {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}


def _stores(body: Body) -> dict[str, int]:
    """How often each plain name is assigned; an update counts twice, since its target cannot be a
    constant."""
    counts: dict[str, int] = {}
    for node in ast.walk(body.tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            counts[node.id] = counts.get(node.id, 0) + 1
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            counts[node.target.id] = counts.get(node.target.id, 0) + 1
    return counts
