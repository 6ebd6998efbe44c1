"""Expressions of a body, translated to expressions of the intermediate representation."""

from __future__ import annotations

import ast

from latte.frontend.constants import ALIASES, called
from latte.frontend.locals import from_source
from latte.frontend.references import References
from latte.model.body import MISSING
from latte.model.buffers import FIRST_ITEM
from latte.model.checks import is_number
from latte.model.index import as_index
from swirl.ir.operations import CALLS, COMPARISONS, OPERATORS
from swirl.ir.printing import unparse
from swirl.ir.trees import clone, nodes

# Names that bodies may call → the intermediate representation's.
FUNCTIONS = {name: name for name in (*CALLS, "stop_gradient") if name != "rand"} | ALIASES
# Random numbers of one ensemble: up to this many calls of rand() in its bodies have separate streams.
STREAMS = 256


class Expressions:
    """Translates the expressions of one body, for the loops and locals that are known so far.

    Args:
        references: what the references in it mean.
    """

    def __init__(self, references: References):
        self.references, self.scope = references, references.scope
        self._rand_calls = 0

    def expression(self, node: ast.expr) -> ast.expr:
        """An expression, translated; padded reads in it are marked (see :func:`with_padding`)."""
        known = self.scope.constants.value(node)
        if known is not MISSING:
            if not is_number(known):
                self.scope.fail(node, f"{unparse(node)} is {known!r}, not a number")
            return from_source(self.scope.number(known), node)
        whole = self.references.whole(node)
        return from_source(self._expression(node) if whole is None else whole, node)

    def _expression(self, node: ast.expr) -> ast.expr:
        match node:
            case ast.Name(name):
                return self._name(node, name)
            case ast.Attribute() | ast.Subscript():
                found = self.references.element(node)
                for part in nodes(found):
                    if isinstance(part, ast.Subscript) and isinstance(part.value, ast.Name):
                        self._check_read(node, part.value.id)
                return found
            case ast.BinOp(left, ast.Pow(), right):
                return self._power(left, right)
            case ast.BinOp(left, operation, right) if type(operation) in OPERATORS:
                return ast.BinOp(self.expression(left), operation, self.expression(right))
            case ast.UnaryOp(ast.UAdd(), operand):
                return self.expression(operand)
            case ast.UnaryOp(ast.USub() | ast.Not() as operation, operand):
                return ast.UnaryOp(operation, self.expression(operand))
            case ast.Compare(left, operations, rights):
                if not all(type(o) in COMPARISONS for o in operations):
                    self.scope.fail(node, f"{unparse(node)}: only < <= > >= == != compare")
                sides = [left, *rights]
                tests: list[ast.expr] = [
                    ast.Compare(self.expression(a), [operation], [self.expression(b)])
                    for a, operation, b in zip(sides, operations, rights, strict=False)
                ]
                return tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)
            case ast.BoolOp(operation, values):
                first, *rest = self._deciding(operation, values)
                parts = [self.expression(first)]
                with self.scope.under_condition():  # the first may decide it
                    parts += [self.expression(value) for value in rest]
                return parts[0] if len(parts) == 1 else ast.BoolOp(operation, parts)
            case ast.IfExp(test, body, orelse):
                chosen = self.scope.constants.fold(test)
                if chosen is not MISSING:
                    return self.expression(body if chosen else orelse)
                condition = self.expression(test)
                with self.scope.under_condition():
                    branches = self.expression(body), self.expression(orelse)
                return ast.IfExp(condition, *branches)
            case ast.Call():
                return self._call(node)
        self.scope.unknown(node)

    def _check_read(self, node: ast.expr, name: str) -> None:
        """Refuse gradients where there are none yet."""
        if self.scope.phase == "forward" and self.scope.buffers[name].role in ("grad", "param_grad"):
            way_out = "keep a State for what the next step needs"
            self.scope.fail(node, f"{unparse(node)} is a gradient, which forward runs before", way_out)

    def _deciding(self, operation: ast.boolop, values: list[ast.expr]) -> list[ast.expr]:
        """The operands of ``and`` or ``or``, without constants that cannot be the result, and without all after one
        that is."""
        deciding = []
        for value in values:
            known = self.scope.constants.fold(value)
            if known is MISSING or value is values[-1]:
                deciding.append(value)
            elif bool(known) != isinstance(operation, ast.And):
                return [*deciding, value]
        return deciding

    def _name(self, node: ast.expr, name: str) -> ast.expr:
        if name in self.scope.loops:
            return ast.Name(name, ast.Load())
        if name in self.scope.ranges:
            return self.scope.ranges[name].tree
        if name in self.scope.conditions:
            return clone(self.scope.conditions[name])
        if name in self.scope.locals:
            return ast.Name(self.scope.locals[name], ast.Load())
        if name in self.scope.many:
            self.scope.fail(
                node, f"{name} runs over several dimensions and is not a number", "for a, b in … names each"
            )
        if name in self.scope.variables or name in self.scope.constants.hidden and name not in self.scope.buffers:
            self.scope.fail(node, f"the variable {name} is used before it is assigned")
        if name in self.scope.buffers or name in self.scope.body.arrays:
            self.scope.fail(node, f"{name} is a whole array; bodies compute single elements", f"write {name}[…]")
        self.scope.fail(
            node,
            f"{name!r} is not defined, or is not a number",
            "a body knows its loop variables, locals, fields, and numbers from self, closures and globals",
        )

    def _power(self, left: ast.expr, right: ast.expr) -> ast.expr:
        exponent = self.scope.constants.fold(right)
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
        if name == "len":
            self.scope.fail(node, f"{unparse(node)}: len is of an array of one or more dimensions, or of a tuple")
        if name not in FUNCTIONS or node.keywords:
            self.scope.fail(
                node,
                f"a body cannot call {unparse(node.func)}",
                f"it may call {', '.join(sorted({*FUNCTIONS, 'rand', 'sigmoid'}))}",
            )
        arguments = [self.expression(argument) for argument in node.args]
        function = FUNCTIONS[name]
        wanted = CALLS[function].arguments if function in CALLS else 1
        if (wanted is None and len(arguments) < 2) or (wanted is not None and len(arguments) != wanted):
            self.scope.fail(node, f"{unparse(node)}: {name} takes {wanted or 'two or more'} arguments")
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
        """``rand(seed[0], step[0], stream, index)``: the stream belongs to this call, the index to the element.

        An item's elements are counted by the loops around, outermost first; items by their place in the batch that all
        processes share."""
        loops = sorted(self.scope.loops.items(), key=lambda loop: loop[0] not in self.scope.over_items)
        position, each = as_index(0), 1
        for name, window in loops:
            if window.extent is None or window.start.value != 0 or window.step != 1:
                self.scope.fail(node, f"rand() inside the loop {name} = {window.text}, whose length is not constant")
            position = position * window.extent + self.scope.ranges[name]
            each *= 1 if name in self.scope.over_items else window.extent
        index = position.tree
        if any(name in self.scope.over_items for name, _ in loops):
            before = self.scope.scalar(FIRST_ITEM, "first_item")
            before = before if each == 1 else ast.BinOp(before, ast.Mult(), ast.Constant(each))
            index = ast.BinOp(before, ast.Add(), index)
        stream = self.scope.ensemble.position * STREAMS + self._rand_calls
        self._rand_calls += 1
        scalars = [ast.Subscript(ast.Name(name, ast.Load()), ast.Constant(0), ast.Load()) for name in ("seed", "step")]
        return ast.Call(ast.Name("rand", ast.Load()), [*scalars, ast.Constant(stream), index], [])
