"""Helper functions: where a body calls a function or a method of the user's, the call becomes what that computes.

Names of a helper that the body has too get a number; line numbers say of each node which file it came from.
"""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Collection, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any, NoReturn, TypeGuard

from latte.model.body import LINES, MISSING, Body, Origin, read_function
from latte.model.substitution import Uses, is_field
from latte.model.variables import Renamed, assigned_once, located, only_loop_names, store_counts, with_line_offset
from latte.model.variables import names as names_of
from swirl.ir.nest import fresh
from swirl.ir.printing import unparse
from swirl.ir.trees import nodes


def with_helpers(body: Body, owner: type, avoid: Collection[str] = ()) -> Body:
    """A body without calls of helpers.

    Args:
        body: of a phase.
        owner: the class of the neuron or ensemble, which knows what ``self.helper`` is.
        avoid: names that the variables of a helper must not have here.

    Raises:
        BodyError: a helper that cannot be put in place of its call.
    """
    return _expanded(body, owner, avoid, (body.function,))


def _expanded(body: Body, owner: type, avoid: Collection[str], stack: tuple[FunctionType, ...]) -> Body:
    caller = _Caller(body, owner, avoid, stack)
    statements = caller.block(body.tree.body, ())
    if not caller.changed:
        return body
    tree = copy.copy(body.tree)
    tree.body = statements
    return replace(
        caller.body, tree=tree, bound=caller.bound, certain=frozenset(caller.certain), origins=tuple(caller.origins)
    )


class _Caller:
    """A function whose calls of helpers are being replaced."""

    def __init__(self, body: Body, owner: type, avoid: Collection[str], stack: tuple[FunctionType, ...]):
        self.body, self.owner, self.avoid, self.stack = body, owner, set(avoid), stack
        self.origins: list[Origin] = list(body.origins)
        self.bound: dict[str, Any] = dict(body.bound)
        self.certain: set[str] = set(body.certain)
        self.changed = False
        self.stored = set(store_counts(body.tree)) | {
            part.arg for part in nodes(body.tree) if isinstance(part, ast.arg)
        }
        """Variables and parameters."""
        self.loops = only_loop_names(body.tree)
        self.names = self.avoid | names_of(body.tree)
        """All that are in use: loops may share theirs."""

    def fail(self, node: ast.AST, message: str, way_out: str | None = None) -> NoReturn:
        replace(self.body, origins=tuple(self.origins)).fail(node, message, way_out)

    # --- statements -----------------------------------------------------------------------------------------
    def block(self, statements: Sequence[ast.stmt], around: tuple[str, ...]) -> list[ast.stmt]:
        """Statements without calls of helpers; ``around`` are the variables of the loops that they are in."""
        result: list[ast.stmt] = []
        for node in statements:
            before: list[ast.stmt] = []
            after = self.statement(node, _Place(before, around))
            result += [*before, *after]
        return result

    def statement(self, node: ast.stmt, place: _Place) -> list[ast.stmt]:
        """One statement; what has to run before it goes to ``place``."""
        new = copy.copy(node)
        match new:
            case ast.Expr(ast.Call() as call) if self.helper(call) is not None:
                self.call(call, place, "statement")
                return []
            case ast.Assign([target], ast.Call() as call) if self.helper(call) is not None:
                return self._assigned(new, target, call, place)
            case ast.Return(ast.Call() as call) if self.helper(call) is not None:
                new.value = self.call(call, place, "assigned")
            case ast.Assign(targets, value):
                new.value = self.expression(value, place)
                new.targets = [self.expression(target, place) for target in targets]
            case ast.AugAssign(target, _, value):
                new.value = self.expression(value, place)
                new.target = self.expression(target, place)  # type: ignore[assignment]
            case ast.Return(value) if value is not None:
                new.value = self.expression(value, place)
            case ast.For(target, iterator, body):
                new.iter = self.expression(iterator, place)
                names = tuple(part.id for part in nodes(target) if isinstance(part, ast.Name))
                new.body = self.block(body, (*place.around, *names))
            case ast.If(test, body, orelse):
                new.test = self.expression(test, place)
                new.body, new.orelse = self.block(body, place.around), self.block(orelse, place.around)
                new.body = new.body or [ast.copy_location(ast.Pass(), node)]
        return [new]

    def _assigned(self, node: ast.Assign, target: ast.expr, call: ast.Call, place: _Place) -> list[ast.stmt]:
        """``a = helper(…)`` or ``a, b = helper(…)``. A local that the helper returns is called ``a``, where that name
        is free; else all values are computed before the first is assigned."""
        known, start = set(self.names), len(place.before)
        result = self.call(call, place, "assigned")
        targets, values = [target], [result]
        if isinstance(target, ast.Tuple) and isinstance(result, ast.Tuple):
            targets, values = target.elts, result.elts
        if len(targets) != len(values):
            self.fail(node, f"{unparse(node)}: {len(targets)} names for {len(values)} values")
        taken = set().union(*map(names_of, [*place.before[start:], *values]))
        own = {value.id for value in values if isinstance(value, ast.Name)} - known - self.loops
        names: dict[str, ast.expr | str] = {}
        left = []
        for one, value in zip(targets, values, strict=True):
            match one, value:
                case ast.Name(new), ast.Name(old) if old in own - names.keys() and new not in {*taken, *names.values()}:
                    names[old] = new
                case _:
                    left.append((one, value))
        place.before[start:] = [Renamed(names).visit(statement) for statement in place.before[start:]]
        left = [(self.expression(one, place), Renamed(names).visit(value)) for one, value in left]
        if len(left) > 1:
            left = [(one, self.local("part", value, place, node)) for one, value in left]
        return [located(ast.Assign([one], value), node) for one, value in left]

    def local(self, name: str, value: ast.expr, place: _Place, node: ast.AST) -> ast.Name:
        """A new local variable with that value, which is assigned before."""
        new = self.new(name)
        self.certain.add(new)
        place.before.append(located(ast.Assign([ast.Name(new, ast.Store())], value), node))
        return located(ast.Name(new, ast.Load()), node)

    def new(self, name: str) -> str:
        """A variable's name that nothing else has."""
        found = fresh(name, self.names)
        self.names.add(found)
        self.stored.add(found)
        return found

    # --- expressions ----------------------------------------------------------------------------------------
    def expression(self, node: ast.expr, place: _Place) -> ast.expr:
        """An expression without calls of helpers; what has to run before it goes to ``place``."""
        if not any(isinstance(part, ast.Call) and self.helper(part) is not None for part in nodes(node)):
            return node
        match node:
            case ast.Call() if self.helper(node) is not None:
                return self.call(node, place, "value")
            case ast.IfExp(test, body, orelse):
                return self._choice(node, test, body, orelse, place)
            case ast.BoolOp(operation, [first, *others]):
                rest = others[0] if len(others) == 1 else ast.copy_location(ast.BoolOp(operation, others), node)
                return self._decided(node, operation, first, rest, place)
        new = copy.copy(node)
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(new, name, self.expression(value, place))
            elif isinstance(value, list):
                setattr(new, name, [self.expression(v, place) if isinstance(v, ast.expr) else v for v in value])
        return new

    def _choice(self, node: ast.expr, test: ast.expr, body: ast.expr, orelse: ast.expr, place: _Place) -> ast.expr:
        """``a if c else b``: where a side needs statements, a branch."""
        condition = self.expression(test, place)
        sides = []
        for side in (body, orelse):
            inner = _Place([], place.around)
            sides.append((self.expression(side, inner), inner.before))
        (then, first), (otherwise, second) = sides
        if not first and not second:
            return ast.copy_location(ast.IfExp(condition, then, otherwise), node)
        name = self.new("chosen")
        for value, before in sides:
            before.append(located(ast.Assign([ast.Name(name, ast.Store())], value), node))
        place.before.append(located(ast.If(condition, first, second), node))
        return located(ast.Name(name, ast.Load()), node)

    def _decided(
        self, node: ast.expr, operation: ast.boolop, first: ast.expr, rest: ast.expr, place: _Place
    ) -> ast.expr:
        """``a and b``, ``a or b``: where ``b`` needs statements, a branch."""
        start, inner = self.expression(first, place), _Place([], place.around)
        end = self.expression(rest, inner)
        if not inner.before:
            return ast.copy_location(ast.BoolOp(operation, [start, end]), node)
        name = self.new("decided")
        place.before.append(located(ast.Assign([ast.Name(name, ast.Store())], start), node))
        test: ast.expr = ast.Name(name, ast.Load())
        if isinstance(operation, ast.Or):
            test = ast.UnaryOp(ast.Not(), test)
        inner.before.append(ast.Assign([ast.Name(name, ast.Store())], end))
        place.before.append(located(ast.If(test, inner.before, []), node))
        return located(ast.Name(name, ast.Load()), node)

    # --- calls ----------------------------------------------------------------------------------------------
    def helper(self, call: ast.Call) -> tuple[FunctionType, bool] | None:
        """The function of the user's that is called, and whether it gets ``self``; None for other calls."""
        match call.func:
            case ast.Attribute(ast.Name("self"), name):
                found = inspect.getattr_static(self.owner, name, None)
            case ast.Attribute(ast.Call(ast.Name("super"), []), name):
                base = self.body.lookup("__class__")
                order = self.owner.__mro__
                after = order[order.index(base) + 1 :] if base in order else ()
                found = next((vars(kind)[name] for kind in after if name in vars(kind)), None)
            case ast.Name() | ast.Attribute():
                found = self.bound_or_free(call.func)
                return (found, False) if _is_helper(found) else None
            case _:
                return None
        if isinstance(found, staticmethod) and _is_helper(found.__func__):
            return found.__func__, False
        return (found, True) if _is_helper(found) else None

    def bound_or_free(self, node: ast.expr) -> Any:
        """What a name, or an attribute of a module or class, stands for; MISSING for variables."""
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name) or root.id in self.stored:
            return MISSING
        return self.body.evaluate(node)

    def call(self, call: ast.Call, place: _Place, use: str) -> ast.expr:
        """What a call of a helper stands for.

        Args:
            call: in this function.
            place: takes the statements of the helper.
            use: ``statement``, ``assigned`` (all that is on the right side) or ``value``.
        """
        found = self.helper(call)
        assert found is not None
        function, is_method = found
        name, text = function.__name__, unparse(call)
        if function in self.stack:
            chain = " → ".join(f.__name__ for f in (*self.stack[self.stack.index(function) :], function))
            self.fail(call, f"{text}: {name} calls itself ({chain})", "write the recursion as a for over a range")
        helper = read_function(function, self.body.known)
        _check(helper)
        helper = _expanded(helper, self.owner, (), (*self.stack, function))
        given = self._arguments(call, function, is_method)
        given = {parameter: self.expression(value, place) for parameter, value in given.items()}
        writes = any(is_field(node) and isinstance(node.ctx, ast.Store) for node in nodes(helper.tree))  # type: ignore[attr-defined]
        if writes and use == "value":
            way_out = f"a line of its own: result = {text}"
            self.fail(call, f"{name} writes elements of fields, and is called inside of an expression", way_out)
        self.changed = True
        *statements, last = self._in_place(helper, call, given, writes, place)
        if isinstance(last, ast.Return) and last.value is not None:
            place.before += statements
            return last.value
        place.before += [*statements, *([] if isinstance(last, ast.Return) else [last])]
        if use != "statement":
            self.fail(call, f"{text}: {name} returns nothing", f"end {name} with return …")
        return ast.Constant(None)

    def _arguments(self, call: ast.Call, function: FunctionType, is_method: bool) -> dict[str, ast.expr]:
        """What each parameter is given: an expression of the caller, or a default value."""
        if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
            self.fail(call, f"{unparse(call)}: a body cannot contain *", "give each argument")
        signature = inspect.signature(function)
        of_self = [located(ast.Name("self", ast.Load()), call)] if is_method else []
        try:
            found = signature.bind(*of_self, *call.args, **{str(k.arg): k.value for k in call.keywords})
        except TypeError as error:
            self.fail(call, f"{unparse(call)}: {error}", f"def {function.__name__}{signature}")
        result: dict[str, ast.expr] = dict(found.arguments)
        for name, parameter in signature.parameters.items():
            if name not in result:
                result[name] = located(ast.Name(self._constant(name, parameter.default), ast.Load()), call)
        return result

    def _constant(self, name: str, value: Any) -> str:
        """A new name for a value of the helper's surroundings."""
        new = fresh(name, self.names)
        self.names.add(new)
        self.bound[new] = value
        return new

    def _in_place(
        self, helper: Body, call: ast.Call, given: dict[str, ast.expr], writes: bool, place: _Place
    ) -> list[ast.stmt]:
        """The statements of a helper as they stand in the caller."""
        offset, here = len(self.origins) + 1, self.body.location(call)
        self.origins += [
            Origin(origin.filename, (*origin.callers, here)) for origin in (Origin(helper.filename), *helper.origins)
        ]
        tree = with_line_offset(helper.tree, offset * LINES)
        names: dict[str, ast.expr | str] = {}
        stored, uses = set(store_counts(tree)), Uses(tree)
        for parameter, value in given.items():
            if parameter not in stored and uses.fits(parameter, value, writes, self.stored - self.loops):
                names[parameter] = value
        arguments = {name for value in names.values() if isinstance(value, ast.expr) for name in names_of(value)}
        # Loops keep their names, by which recipes call them, where no other meaning is near.
        busy = (self.names - self.loops) | {*place.around, *arguments}
        loops = only_loop_names(tree)
        for name in sorted(loops):
            names[name] = new = fresh(name, busy | (names_of(tree) - {name}))
            for known in (self.loops, self.names, self.stored):
                known.add(new)
        for name in sorted(stored - loops - given.keys()):
            names[name] = self.new(name)
        self.certain |= {str(names[name]) for name in helper.certain if name in names}
        self.certain |= {str(names[name]) for name in assigned_once(tree) if name in names}
        for name in given:
            if name not in names:
                names[name] = self.local(name, given[name], place, call).id
                if name in stored:
                    self.certain.discard(str(names[name]))
        # Functions of the language are known by their names.
        functions = {
            node.func.id for node in nodes(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        for name in sorted(names_of(tree) - stored - given.keys() - functions):
            value = helper.lookup(name)
            if name in self.stored or name in self.avoid or self.lookup(name) is not value:
                names[name] = self._constant(name, value)
            self.names.add(name)
        Renamed(names).visit(tree)
        return replace(helper, tree=tree).statements or [ast.Pass()]

    def lookup(self, name: str) -> Any:
        """What a free name stands for here."""
        return self.bound[name] if name in self.bound else self.body.lookup(name)


class _Place:
    """Where an expression stands: ``before`` gets statements that run before it, ``around`` are the loops."""

    def __init__(self, before: list[ast.stmt], around: tuple[str, ...]):
        self.before, self.around = before, around


def _check(helper: Body) -> None:
    """Refuse decorators, ``*`` arguments, and a return that is not the last statement."""
    if helper.tree.args.vararg or helper.tree.args.kwarg:
        helper.fail(helper.tree, f"{helper.function.__name__} may have plain arguments only, no *")
    if any(not isinstance(node, ast.Name) or node.id != "staticmethod" for node in helper.tree.decorator_list):
        helper.fail(
            helper.tree, f"{helper.function.__name__} has a decorator, which would not be compiled", "remove it"
        )
    last = helper.tree.body[-1]
    for node in nodes(helper.tree):
        if isinstance(node, ast.Return) and node is not last:
            helper.fail(
                node,
                f"{helper.function.__name__} returns before its end",
                "assign to a local in if … else …, and return it at the end",
            )


def _is_helper(value: Any) -> TypeGuard[FunctionType]:
    """Whether it is a function of the user's: those of the language have no body to read."""
    return isinstance(value, FunctionType) and not hasattr(value, "of_bodies")
