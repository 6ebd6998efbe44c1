"""Statements and loops of a body, translated to statements of the intermediate representation."""

from __future__ import annotations

import ast
from typing import Any, TypeGuard

from latte.frontend.batch_numbers import depends_on_batch, formula_of
from latte.frontend.constants import called
from latte.frontend.expressions import Expressions
from latte.frontend.locals import from_source
from latte.frontend.number_ranges import WHOLE, Range, combined, of_call
from latte.frontend.padding import padded_value, with_padding
from latte.frontend.references import References
from latte.frontend.subscripts import affine, index_of, range_of
from latte.model.body import MISSING
from latte.model.buffers import SCALARS
from latte.model.checks import is_number
from latte.model.index import as_index
from latte.model.instances import stored_names
from latte.model.mapping import Window
from swirl.ir.hints import WORDS
from swirl.ir.item_numbers import FORMULA
from swirl.ir.nest import Loop, fresh, names_in
from swirl.ir.printing import unparse
from swirl.ir.trees import name_of, nodes


class Translator:
    """Translates the statements of one body.

    Args:
        references: what the references in it mean.

    ``eachindex_loops`` are the variables of each loop over ``eachindex``.
    """

    def __init__(self, references: References):
        self.references, self.scope = references, references.scope
        self.expressions = Expressions(references)
        self.eachindex_loops: list[tuple[str, ...]] = []

    # --- statements -----------------------------------------------------------------------------------------
    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """All statements, translated."""
        return [new for statement in statements for new in self.statement(statement)]

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        """One statement, translated to none, one or several; line numbers are the body's."""
        match node:
            case ast.Pass():
                return []
            case ast.Expr(ast.Constant()):
                return []
            case ast.Assign([target], value):
                new = self._assign(node, target, value)
            case ast.AugAssign(target, operation, value):
                if not isinstance(operation, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
                    self.scope.fail(node, f"{unparse(node)}: only +=, -=, *= and /= are known")
                changed = self.target(target)
                if isinstance(changed, ast.Subscript) and name_of(changed) in self.scope.below:
                    self.scope.fail(node, f"{unparse(node)} might leave the range of {name_of(changed)}")
                new = [ast.AugAssign(changed, operation, self.expressions.expression(value))]
            case ast.For():
                new = self._for(node)
            case ast.If(test, body, orelse):
                chosen = self.scope.constants.fold(test)
                if chosen is not MISSING:
                    return self.block(body if chosen else orelse)
                condition = padded_value(self.expressions.expression(test))
                with self.scope.under_condition():
                    inside = self.block(body)
                with self.scope.under_condition():
                    outside = self.block(orelse)
                if not inside and not outside:
                    return []
                new = [ast.If(condition, inside or [ast.Pass()], outside)]
            case ast.Expr(ast.Call(function)) if called(function) == "print":
                self.scope.fail(
                    node,
                    "print in a body: bodies are compiled, not run",
                    "read the values with get_… afterwards",
                )
            case _:
                self.scope.unknown(node)
        return [from_source(with_padding(ast.copy_location(statement, node)), node) for statement in new]

    def _assign(self, node: ast.Assign, target: ast.expr, value: ast.expr) -> list[ast.stmt]:
        if isinstance(target, ast.Tuple):
            values = self.scope.constants.value(value)
            names = [part.id for part in target.elts if isinstance(part, ast.Name)]
            if not isinstance(values, tuple) or len(names) != len(target.elts):
                self.scope.fail(
                    node,
                    f"{unparse(node)}: only constants can be unpacked",
                    "assign one by one; to swap, keep one in a local first",
                )
            if len(values) != len(names):
                self.scope.fail(node, f"{unparse(node)}: {len(names)} names for {len(values)} values")
            return [
                new
                for part, number in zip(target.elts, values, strict=True)
                for new in self._constant(node, part, number)
            ]
        if isinstance(target, ast.Name):
            known = self.scope.constants.value(value)
            if known is not MISSING:
                return self._constant(node, target, known)
        translated = self.expressions.expression(value)
        if isinstance(target, ast.Name) and self._stands_for(target, value, translated):
            return []
        new = self.target(target)
        if isinstance(new, ast.Subscript):
            self._check_in_range(node, new, value)
        elif isinstance(target, ast.Name) and target.id not in self.scope.variables and self._has_range(translated):
            self.scope.elements[target.id] = translated
        return [ast.Assign([new], translated)]

    def _stands_for(self, target: ast.Name, value: ast.expr, translated: ast.expr) -> bool:
        """Whether the local is a name for something affine in loop variables, or for a condition on such."""
        if target.id not in self.scope.read_where_assigned:
            return False
        if (index := affine(self.scope, value)) is not None:
            self._check_local(target)
            self.scope.ranges[target.id] = index
            return True
        of_data = any(isinstance(part, (ast.Subscript, ast.Call)) for part in nodes(translated))
        is_condition = isinstance(value, (ast.Compare, ast.BoolOp)) or isinstance(translated, ast.UnaryOp)
        if not is_condition or of_data or not names_in(translated) <= self.scope.loops.keys():
            return False
        self._check_local(target)
        self.scope.conditions[target.id] = translated
        return True

    def _has_range(self, node: ast.expr) -> TypeGuard[ast.Subscript]:
        """Whether it is an element of integers with a range, which the body does not change."""
        name = name_of(node) if isinstance(node, ast.Subscript) else ""
        return name in self.scope.below and name not in stored_names(self.scope.body.tree)

    def _check_in_range(self, node: ast.stmt, target: ast.Subscript, value: ast.expr) -> None:
        """Refuse stores that might leave the range of a field: it may be a subscript."""
        below = self.scope.below.get(name_of(target))
        if below is None:
            return
        found = self._numbers(value)
        if found.low < 0 or found.high >= below:
            self.scope.fail(
                node,
                f"{unparse(node)}: the numbers of {name_of(target)} are below {below}, these may not be",
                f"assign loop variables, constants, integers with such a range, or any integer % {below}, or "
                f"min(max(…, 0), {below - 1})",
            )

    def _numbers(self, node: ast.expr) -> Range:
        """The range of an integer expression, by interval arithmetic."""
        if (known := range_of(self.scope, node)) is not None:
            return known
        match node:
            case ast.BinOp(left, operation, right):
                return combined(operation, self._numbers(left), self._numbers(right)).wrapped
            case ast.IfExp(_, body, orelse):
                return self._numbers(body) | self._numbers(orelse)
            case ast.Call(function, [_, _, *_] as arguments) if called(function) in ("min", "max"):
                return of_call(called(function), map(self._numbers, arguments))
            case ast.Subscript() | ast.Attribute():
                element = self.references.element(node)
                below = self.scope.below.get(name_of(element)) if isinstance(element, ast.Subscript) else None
                return Range(0, below - 1) if below is not None else WHOLE
        return WHOLE

    def _constant(self, node: ast.Assign, target: ast.expr, number: Any) -> list[ast.stmt]:
        """A name becomes a constant, unless it is assigned elsewhere too, or perhaps not at all."""
        assert isinstance(target, ast.Name)
        certain = target.id in self.scope.body.certain or not self.scope.conditional
        if target.id not in self.scope.variables and certain:
            self.scope.constants.fixed[target.id] = number
            return []
        if not is_number(number):
            self.scope.fail(node, f"{target.id} is {number!r}, not a number")
        return [ast.Assign([self.target(target)], ast.copy_location(self.scope.number(number), node))]

    def target(self, node: ast.expr) -> ast.Name | ast.Subscript:
        """What is assigned to: a local or an element."""
        if isinstance(node, ast.Name):
            self._check_local(node)
            return ast.Name(self.scope.local(node.id), ast.Store())
        new = self.references.element(node)
        if not isinstance(new, ast.Subscript):
            self.scope.fail(node, f"{unparse(node)} cannot be assigned")
        assert isinstance(new.value, ast.Name)
        self._check_written(node, new.value.id)
        new.ctx = ast.Store()
        return from_source(new, node)

    def _check_local(self, node: ast.Name) -> None:
        if node.id in self.scope.buffers and node.id in self.scope.body.parameters:
            self.scope.fail(node, f"{node.id} is a whole array; only elements can be assigned", f"{node.id}[…] = …")
        if node.id in self.scope.loops or node.id in self.scope.many:
            self.scope.fail(node, f"the loop variable {node.id} cannot be assigned")

    def _check_written(self, node: ast.expr, name: str) -> None:
        """Refuse stores to what this phase must not compute: it would change while others read it."""
        own = self.scope.ensemble.fields(self.scope.batch_size).get(name)
        text = unparse(node)
        if name in SCALARS:
            self.scope.fail(node, f"{text} is the net's own and cannot be written")
        if own is None and not name.startswith("grad_"):
            source = next(edge.source.name for edge in self.scope.ensemble.connections if edge.name == name)
            self.scope.fail(
                node,
                f"{text} is the value of {source}, which this layer reads and cannot write",
                "compute into a local, a Field of its own, or value",
            )
        if own is not None and own.role == "param":
            self.scope.fail(
                node,
                f"{text} is a Param, which training adjusts: no phase can write it",
                f"declare a State, which lives from step to step, or compute its gradient, grad_{name}",
            )
        if own is not None and own.role == "constant":
            way_out = "declare a State, which lives from step to step, or a Field"
            self.scope.fail(node, f"{text} is a constant, which no phase can write", way_out)
        if self.scope.phase == "forward" and (own is None or own.role in ("grad", "param_grad")):
            self.scope.fail(node, f"{text} is a gradient, which forward cannot write", "define backward or update")

    # --- loops ----------------------------------------------------------------------------------------------
    def _for(self, node: ast.For) -> list[ast.stmt]:
        if node.orelse:
            self.scope.fail(node, "a for in a body cannot have an else")
        names, windows = self._loop_names(node), self._iterated(node)
        with self.scope.inner():
            if len(names) == 1 and len(windows) > 1:
                names = self._one_for_each(names[0], len(windows))
            elif len(names) != len(windows):
                over = unparse(node.iter)
                self.scope.fail(node, f"{len(names)} loop variables for {len(windows)} dimensions in {over}")
            if isinstance(node.iter, ast.Call) and called(node.iter.func) == "eachindex":
                self.eachindex_loops.append(tuple(names))
            if any(window.extent == 0 for window in windows):
                return []
            for window in windows:
                if not -(2**31) <= window.start.low <= window.stop.high < 2**31:
                    over = unparse(node.iter)
                    self.scope.fail(node, f"{over} passes 2,147,483,647, and integers have 32 bits")
            if self._is_over_items(node.iter):
                self.scope.over_items.add(names[0])
            for name, window in zip(names, windows, strict=True):
                if name in self.scope.loops:
                    self.scope.fail(node, f"the loop variable {name!r} hides the loop around it", "choose another name")
                self.scope.enter(name, window)
            body = self.block(node.body)
        if not body:
            return []
        for name, window in reversed(list(zip(names, windows, strict=True))):
            body = [ast.copy_location(loop_over(name, window).node(body), node)]
        return body

    def _one_for_each(self, name: str, count: int) -> list[str]:
        """Names for the loops over several dimensions that the user gave one variable."""
        scope = self.scope
        taken = {*scope.loops, *scope.buffers, *scope.forbidden, *scope.variables}
        scope.many[name] = [fresh(f"{name}{axis}", taken) for axis in range(count)]
        return scope.many[name]

    def _loop_names(self, node: ast.For) -> list[str]:
        parts = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        names = []
        for part in parts:
            if not isinstance(part, ast.Name):
                self.scope.fail(node, f"{unparse(node.target)} cannot be a loop variable")
            self.scope.check_name(part.id, node)
            if part.id in self.scope.locals:
                self.scope.fail(node, f"the loop variable {part.id!r} is a local variable too", "choose another name")
            if part.id in self.scope.buffers or part.id in WORDS:
                self.scope.fail(
                    node,
                    f"the loop variable {part.id!r} has the name of a field or function",
                    "choose another name",
                )
            names.append(part.id)
        if len(set(names)) != len(names):
            self.scope.fail(node, f"{unparse(node.target)} names a loop variable twice")
        return names

    def _iterated(self, node: ast.For) -> list[Window]:
        call = node.iter
        if isinstance(call, ast.Call) and not call.keywords:
            name, arguments = called(call.func), call.args
            if name == "range" and 1 <= len(arguments) <= 3:
                return [self._range(call)]
            if name == "eachindex" and len(arguments) == 1:
                return self.references.windows_of(arguments[0])
            if name in ("range_dim", "enumerate_dim") and len(arguments) == 2:
                windows, dim = self.references.windows_of(arguments[0]), self.scope.constants.fold(arguments[1])
                if not isinstance(dim, int) or not 0 <= dim < len(windows):
                    self.scope.fail(call, f"{unparse(call)}: the dimension must be 0 to {len(windows) - 1}")
                return [windows[dim]]
        self.scope.fail(
            node,
            f"a for in a body cannot run over {unparse(call)}",
            "range(…), eachindex(self.inputs) or range_dim(self.inputs, dimension)",
        )

    def _range(self, call: ast.Call) -> Window:
        if self._is_over_items(call):
            return Window(as_index(0), as_index(self.scope.batch_size))
        parts = [index_of(self.scope, argument, "the bound of a loop") for argument in call.args]
        start, stop = (as_index(0), parts[0]) if len(parts) == 1 else parts[:2]
        step = parts[2].value if len(parts) == 3 else 1
        if step is None or step <= 0:
            way_out = "for i in range(n), and n - 1 - i in its place" if step is not None and step < 0 else None
            self.scope.fail(call, f"the step of {unparse(call)} must be a positive constant", way_out)
        return Window(start, stop, step)

    def _is_over_items(self, call: ast.expr) -> bool:
        """Whether it is ``range(N)`` for the number of items ``N``."""
        if not (isinstance(call, ast.Call) and called(call.func) == "range" and len(call.args) == 1):
            return False
        last = self.scope.constants.value(call.args[0])
        return depends_on_batch(last) and formula_of(last) == FORMULA


def loop_over(name: str, window: Window) -> Loop:
    """``for name in range(…)``."""
    return Loop(name, "range", window.start.tree, window.stop.tree, window.step)
