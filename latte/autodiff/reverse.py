"""The reversal of prepared nests: every statement becomes what it adds to the adjoints of what it read."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping

from latte.autodiff.activity import active_names
from latte.autodiff.adjoint_terms import (
    Condition,
    Term,
    inverted,
    leading_minus,
    negated,
    same,
    selected,
    summed,
)
from latte.autodiff.cleanup import cleaned, merge_first
from latte.autodiff.partials import RESULT, Partials, active_in, active_references
from latte.autodiff.prepare import ELEMENT, Body, add_to, assign, line_of, origin
from latte.autodiff.recovered import divided_later
from latte.autodiff.tapes import TapedValues, Tapes
from latte.autodiff.uses import Use, use_of
from latte.autodiff.values import Choices, Values
from swirl.analysis.statements import Statement
from swirl.errors import DerivativeError
from swirl.ir.buffers import Buffer
from swirl.ir.nest import (
    LocalType,
    Loop,
    clone,
    constant,
    counting,
    declare,
    expr,
    fresh,
    local_type,
    loop_of,
    names_in,
    nested,
    reference,
    substitute,
)
from swirl.ir.paths import Path, walk
from swirl.ir.printing import unparse
from swirl.ir.trees import ASSIGNMENTS, as_target, as_value, name_of, target_of


class OutputChanges(Exception):
    """Reversal would write to the gradient of the output: it needs a copy."""


class Reversal:
    """Reverses one prepared program.

    Args:
        nests: see ``prepare``.
        buffers: of the forward program.
        wanted: names whose gradient is wanted.
        output: name whose gradient is given.
        taken: names in use.
        choices: see there.
        tapes: keeps values that are overwritten; without it they are an error.

    After :meth:`run`, ``adjoints`` maps adjoint buffers to the forward buffers they belong to.
    """

    def __init__(
        self,
        name: str,
        nests: list[Body],
        buffers: Mapping[str, Buffer],
        wanted: Collection[str],
        output: str,
        taken: set[str],
        choices: Choices,
        tapes: Tapes | None = None,
    ):
        self.name, self.nests, self.buffers, self.output = name, nests, buffers, output
        self.choices, self.taken = choices, set(taken)
        self.active = active_names(nests, buffers, wanted, output)
        self.values = TapedValues(nests, buffers, choices, tapes) if tapes else Values(nests, buffers, choices)
        self.sites, self.declared = self.values.sites, self.values.declared
        self._loop_paths = {
            id(part): path
            for index, nest in enumerate(nests)
            for path, part in walk(nest, (("body", index),))
            if isinstance(part, ast.For)
        }
        self.adjoints: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def run(self) -> list[Body]:
        """The reversed nests, last first; empty ones left out.

        Raises:
            DerivativeError, Overwritten, OutputChanges, TooDear
        """
        result = []
        for index in reversed(range(len(self.nests))):
            body = self.block(self.nests[index])
            if any(isinstance(statement, ast.AnnAssign) for statement in body):
                result.append(body)
            else:
                result += [[statement] for statement in body]
        return result

    # --- names ----------------------------------------------------------------------------------------------
    def adjoint_name(self, name: str) -> str:
        """The name of the adjoint of a buffer or local."""
        if name not in self._names:
            if name == self.output:
                new = "grad_" + name if self.choices.copy_output else "grad"
            elif name in self.buffers:
                new = "grad_" + name
            else:
                short = "grad_" + name.removesuffix(ELEMENT)
                new = fresh(short, self.taken | {"grad_" + buffer for buffer in self.buffers})
                plain = name.removesuffix(ELEMENT)
                read = any(use.name == plain for use in self.values.uses if use.reads)
                if plain != name and plain in self.buffers and not (read and plain != self.output):
                    # The adjoint of such an element may have the name of the buffer's adjoint, which is not used.
                    new = fresh(short, self.taken)
            self._names[name] = new
            self.taken.add(new)
        if name in self.buffers:
            self.adjoints[self._names[name]] = name
        return self._names[name]

    def adjoint(self, reference: ast.expr) -> ast.expr:
        """``x[i]`` → ``grad_x[i]``."""
        if isinstance(reference, ast.Name):
            return ast.Name(self.adjoint_name(reference.id), ast.Load())
        assert isinstance(reference, ast.Subscript) and isinstance(reference.value, ast.Name)
        name = self.adjoint_name(reference.value.id)
        return ast.Subscript(ast.Name(name, ast.Load()), clone(reference.slice), ast.Load())

    def new_local(self, base: str = "grad_part") -> str:
        name = fresh(base, self.taken)
        self.taken.add(name)
        return name

    def refuse(self, statement: ast.stmt, why: str) -> DerivativeError:
        return DerivativeError(
            f"`{origin(statement)}` cannot be differentiated: {why}",
            location=self.name,
            way_out="write the statement differently, or define backward and update by hand",
            line=line_of(statement),
        )

    # --- blocks ---------------------------------------------------------------------------------------------
    def block(self, body: Body) -> Body:
        result: Body = []
        for statement in reversed(body):
            result += self.statement(statement)
        for statement in body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                name = statement.target.id
                if name not in self.active or name not in self._names:
                    continue
                type_ = local_type(statement)
                if type_.shape:
                    result = [*self._array_of_zeros(self._names[name], type_, statement), *result]
                else:
                    result = merge_first(result, declare(self._names[name], type_, expr("0.0")))
        result = self.values.again(body, result)
        return cleaned(result)

    def _array_of_zeros(self, name: str, type_: LocalType, statement: ast.stmt) -> Body:
        """The adjoint of a local array."""
        if not self.values.carries_arrays:
            raise self.refuse(statement, "local arrays carry no gradient")
        variables = [self.new_local(f"i{axis}") for axis in range(len(type_.shape))]
        zero = assign(reference(name, [ast.Name(v, ast.Load()) for v in variables]), expr("0.0"))
        return [declare(name, type_), *nested(counting(variables, type_.shape), [zero])]

    def statement(self, statement: ast.stmt) -> Body:
        if isinstance(statement, ast.For):
            body = self.block(statement.body)
            return [self._loop(statement).node(body)] if body else []
        if isinstance(statement, ast.If):
            body = self.block(statement.body)
            orelse = self.block(statement.orelse)
            if not body and not orelse:
                return []
            test = clone(self.values.value(statement.test, self.sites[id(statement)]))
            if not body:
                test = inverted(test) if self._needs_branch(Condition(test)) else ast.UnaryOp(ast.Not(), test)
            return [ast.If(test, body or orelse, orelse if body else [])]
        if isinstance(statement, ASSIGNMENTS):
            return self._assignment(statement)
        return []

    def _loop(self, statement: ast.For) -> Loop:
        """The loop in its own order, or backwards where a value goes from one iteration to the next."""
        loop = loop_of(statement)
        path = self._loop_paths[id(statement)]
        if not self._carries(path):
            return loop.plain
        if loop.step == 1:
            last = expr("stop - 1", stop=loop.stop)
        else:
            last = expr(
                "a + (b - a - s) // k * k",
                a=loop.start,
                b=loop.stop,
                k=loop.step,
                s=1 if loop.step > 0 else -1,
            )
        sign = 1 if loop.step > 0 else -1
        before = expr("a - s", a=loop.start, s=sign)
        return Loop(loop.var, "range", _folded(last), _folded(before), -loop.step)

    def _carries(self, loop: Path) -> bool:
        inside = [use for use in self.values.uses if use.site.path[: len(loop)] == loop and self._flows(use)]
        for a in inside:
            for b in inside:
                if a.name != b.name or a.access.kind == b.access.kind in ("read", "add"):
                    continue
                if a.name in self.declared:
                    if len(self.declared[a.name].path) <= len(loop):
                        return True
                elif a.meets_later(b, carried_by=loop):
                    return True
        return False

    def _flows(self, use: Use) -> bool:
        """Whether a gradient passes through a use: tests and constants read without one."""
        if use.name not in self.active or isinstance(use.site.node, ast.If):
            return False
        if not use.reads:
            return True
        value = use.site.node.value  # type: ignore[attr-defined]
        return use.name in {name_of(ref) for ref in active_references(value, self._is_active)}

    # --- statements -----------------------------------------------------------------------------------------
    def _assignment(self, statement: ast.Assign | ast.AugAssign | ast.AnnAssign) -> Body:
        target, value = target_of(statement), statement.value
        assert value is not None
        name = name_of(target)
        if name not in self.active or not active_in(value, self._is_active):
            return self._clear(statement, target) if name in self.active else []
        site = self.sites[id(statement)]
        shared: Body = []
        upstream = self.adjoint(target)
        partials = Partials(self._is_active, self.new_local, self.values.dtype(name), shared)
        if self.values.result_at_hand(statement, target):
            there: ast.expr | None = as_value(target)
        else:
            there = divided_later(self.values, statement, target)
        result = None if there is None else ast.Name(RESULT, ast.Load())
        try:
            partials.walk(value, Term(over=(upstream,)), result)
        except DerivativeError as error:
            raise self.refuse(statement, error.message) from error
        own = [(ref, term) for ref, term in partials.found if same(ref, target)]
        rest = [(ref, term) for ref, term in partials.found if not same(ref, target)]
        out = self._contributions(rest)
        if isinstance(statement, ast.AugAssign):
            last: Body = []
        elif own:
            self._check_output(name)
            last = [assign(upstream, summed(selected(term.product(), term.conditions) for _, term in own))]
        else:
            last = self._clear(statement, target)
        if (last or len(rest) > 1) and any(name_of(ref) == name for ref, _ in rest):
            # The statement reads other elements of what it writes: take its adjoint out first.
            local = self.new_local(f"{self.adjoint_name(name)}_here")
            taken = ast.Name(local, ast.Load())
            shared, out, last = (_replaced(part, upstream, taken) for part in (shared, out, last))
            for part in last:
                if isinstance(part, ast.Assign):
                    part.targets = [as_target(upstream)]
            out = [declare(local, LocalType(self.values.dtype(name)), upstream), *shared, *last, *out]
            return self._finished(out, there, site)
        return self._finished([*shared, *out, *last], there, site)

    def _finished(self, out: Body, result: ast.expr | None, site: Statement) -> Body:
        """``out`` with the result's placeholder replaced, and every forward value in it checked."""
        out = self.values.check(out, site)
        return out if result is None else [substitute(part, {RESULT: result}) for part in out]

    def _is_active(self, name: str) -> bool:
        return name in self.active

    def _check_output(self, name: str) -> None:
        if name == self.output and not self.choices.copy_output:
            raise OutputChanges

    def _clear(self, statement: ast.stmt, target: ast.expr) -> Body:
        """``grad_t[…] = 0.0``, where an earlier value of the element has an adjoint of its own."""
        if isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
            return []
        site = self.sites[id(statement)]
        name = name_of(target)
        here = use_of(target, "write", site)
        for write in self.values.writes:
            if write.name != name or not self._consumes(write.site.node):
                continue
            if isinstance(target, ast.Name) or write.meets_later(here):
                self._check_output(name)
                return [assign(self.adjoint(target), expr("0.0"))]
        return []

    def _consumes(self, statement: ast.stmt) -> bool:
        return active_in(statement.value, self._is_active)  # type: ignore[attr-defined]

    def _contributions(self, found: list[tuple[ast.expr, Term]]) -> Body:
        grouped: dict[str, list[tuple[ast.expr, Term]]] = {}
        for ref, term in found:
            grouped.setdefault(unparse(ref), []).append((ref, term))
        out: Body = []
        for group in grouped.values():
            parts = []
            for _, term in group:
                branches = [c for c in term.conditions if self._needs_branch(c)]
                chosen = selected(term.product(), [c for c in term.conditions if c not in branches])
                parts.append((branches, chosen))
            self._check_output(name_of(group[0][0]))
            target = self.adjoint(group[0][0])
            if all(not branches for branches, _ in parts):
                chosen = _either([term for _, term in group]) or summed(chosen for _, chosen in parts)
                out.append(self._add(target, chosen))
                continue
            for branches, chosen in parts:
                statement = self._add(target, chosen)
                if branches:
                    tests = [clone(c.test) if c.wanted else inverted(c.test) for c in branches]
                    test = tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)
                    last = out[-1] if out else None
                    if isinstance(last, ast.If) and same(last.test, test):
                        last.body.append(statement)
                        continue
                    statement = ast.If(test, [statement], [])
                out.append(statement)
        return out

    def _add(self, target: ast.expr, value: ast.expr) -> ast.stmt:
        statement = add_to(target, negated(value) if leading_minus(value) else value)
        if leading_minus(value):
            assert isinstance(statement, ast.AugAssign)
            statement.op = ast.Sub()
        return statement

    def _needs_branch(self, condition: Condition) -> bool:
        """A test of loop variables alone also guards the subscripts: it must be an ``if``, not a select."""
        names = names_in(condition.test)
        return not names & {RESULT, *self.buffers, *self.declared}


def _either(terms: list[Term]) -> ast.expr | None:
    """``a if c else b`` for two terms of which one counts where ``c`` holds, the other where it does not."""
    if len(terms) != 2 or any(len(term.conditions) != 1 for term in terms):
        return None
    (first,), (second,) = terms[0].conditions, terms[1].conditions
    if not same(first.test, second.test) or not first.wanted or second.wanted:
        return None
    return ast.IfExp(clone(first.test), terms[0].product(), terms[1].product())


def _folded(node: ast.expr) -> ast.expr:
    """Integer arithmetic on literals is folded."""

    class Fold(ast.NodeTransformer):
        def visit_BinOp(self, part: ast.BinOp) -> ast.expr:
            self.generic_visit(part)
            left, right = constant(part.left), constant(part.right)
            if left is None or right is None:
                return part
            value = {
                ast.Add: lambda: left + right,
                ast.Sub: lambda: left - right,
                ast.Mult: lambda: left * right,
                ast.FloorDiv: lambda: left // right,
            }[type(part.op)]()
            return expr(value)

    return Fold().visit(clone(node))


def _replaced(body: Body, old: ast.expr, new: ast.expr) -> Body:
    class Replace(ast.NodeTransformer):
        def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
            return clone(new) if same(node, old) and isinstance(node.ctx, ast.Load) else node

        def visit_Name(self, node: ast.Name) -> ast.expr:
            return clone(new) if same(node, old) and isinstance(node.ctx, ast.Load) else node

    return [Replace().visit(clone(part)) for part in body]
