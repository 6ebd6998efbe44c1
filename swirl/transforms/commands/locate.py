"""locate: straight to the one iteration of a loop that does something."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from swirl.analysis.accesses import is_empty_array
from swirl.errors import Refused
from swirl.ir.affine import affine, ranges_at, simplify_body
from swirl.ir.hints import prefetch_of
from swirl.ir.names import INDEX_CALLS, changed_in, scope_at
from swirl.ir.nest import Loop, Program, expr, loop_of, names_in, references, substitute, variable_of
from swirl.ir.paths import loops, replace_at, walk
from swirl.ir.printing import unparse
from swirl.ir.trees import changed, declared_in, name_of, nodes, target_of
from swirl.ir.types import folded
from swirl.transforms.arguments import LoopName, NestName
from swirl.transforms.command import Assumption, command
from swirl.transforms.rewrites.checks.refusals import WayOut, refuse
from swirl.transforms.rewrites.checks.ways_out import nest_of, step, tried
from swirl.transforms.rewrites.loops.bounds import conjunction, conjuncts, equal_to
from swirl.transforms.rewrites.loops.decided_guards import drop_decided_guards
from swirl.transforms.rewrites.loops.strips import plain_loop
from swirl.transforms.rewrites.references import in_bounds
from swirl.transforms.rewrites.sites import Site, loop_at, rewrite_each
from swirl.transforms.rewrites.sums.reductions import UNCHANGED

_NOTE = "asked for its one iteration"


@command(
    assumes=Assumption(
        "it does not matter whether a zero is 0.0 or -0.0, and what is multiplied with zeros, or divides them, is "
        "finite and not zero"
    )
)
def locate(program: Program, loop_var: LoopName, *, nest: NestName | None = None) -> Program:
    """Replace a loop that does something in one iteration only by that iteration: a window that adds to its greatest
    element goes to its place, without a look at the others.

    rewrite:
        for j in range(3):                                      if 0 <= m[y] and m[y] < 3:
            dx[y + j] += dy[y] if m[y] == j else 0.0    →           dx[y + m[y]] += dy[y]

    Every statement of the loop that has an effect is under one condition ``e == j``: in an ``if``, or in a select whose
    other side changes nothing (``x += … else 0.0``, ``x *= … else 1.0``, ``x = … else x``). ``e`` is a whole number
    that stays the same in the loop. If ranges decide whether it is an iteration, no condition is left. A local that the
    loop declares may be in between: one that is 0.0 in other iterations, as are products with it and quotients of it.

    Which element is touched then depends on data: loops whose iterations may touch the same one stay sequential.

    An addition of 0.0 is left out: where it made 0.0 of -0.0, the element stays -0.0.

    Args:
        loop_var: the loop, plain and of step 1.
        nest: only in this nest (index or label).

    Raises:
        CommandError: no such loop.
        Refused: several iterations may have an effect, or which one has changes in the loop.

    Source: ``sum(f(j) if e == j else 0 for j) = f(e)``, the sifting property of Kronecker's delta; Chou, Kjolstad,
    Amarasinghe, *Format abstraction for sparse tensor algebra compilers*, OOPSLA 2018 (*locate* instead of *iterate*).
    """

    def rewrite(before: Program, site: Site) -> Program:
        target, node = before.nests[site.nest], loop_at(before, site)
        loop = plain_loop(target, site.path, node, _NOTE)
        only = _only(before, site, loop, node)
        body = [substitute(statement, {loop.var: only.which}) for statement in only.body]
        inside = expr("start <= e and e < stop", start=loop.start, stop=loop.stop, e=only.which)
        ranges = ranges_at(target.body, site.path)
        new = simplify_body([ast.If(inside, body, [])], ranges)
        # Of the whole nest: a local that is no longer in a branch must not hide one beside it.
        return before.with_nest(
            site.nest, target.with_body(drop_decided_guards(replace_at(target.body, site.path, new)) or [ast.Pass()])
        )

    return rewrite_each(program, loop_var, nest, rewrite)


class _Only:
    """A loop in the iteration ``which``.

    Attributes:
        which: the iteration.
        body: the loop's statements without the condition ``which == var``.
        others: the statements that have an effect in other iterations, too.
    """

    def __init__(self, var: str, which: ast.expr, node: ast.For):
        self.which = which
        self.others: list[ast.stmt] = []
        self._var, self._text = var, unparse(which)
        self._own = frozenset(name for statement in node.body for name in declared_in(statement))
        self._zero = self._zero_elsewhere(node)
        self.body = self._block(node.body)

    def _block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [self._statement(statement) for statement in body]

    def _statement(self, node: ast.stmt) -> ast.stmt:
        if isinstance(node, ast.For):
            return changed(node, body=self._block(node.body))
        if isinstance(node, ast.If):
            rest = self._rest(node.test)
            if rest is not None and not node.orelse:
                return ast.If(rest, node.body, [])
            return ast.If(node.test, self._block(node.body), self._block(node.orelse))
        if prefetch_of(node) is not None and self._var in names_in(node):
            return ast.Pass()  # an address is not one of data
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            return changed(node, value=self._simplified(node.value))  # no effect on anything outside of the iteration
        if not isinstance(node, (ast.Assign, ast.AugAssign)):
            return node
        value = self._value(node.value, node)
        if value is not None:
            return changed(node, value=value)
        adds = isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Add, ast.Sub))
        if name_of(target_of(node)) not in self._own and not (adds and self._is_zero(node.value)):
            self.others.append(node)
        return changed(node, value=self._simplified(node.value))

    def _zero_elsewhere(self, node: ast.For) -> set[str]:
        """The locals of the loop that nothing but 0.0 is stored in or added to in other iterations."""
        zero = set(self._own)
        given = [
            (name_of(target_of(part)), part)
            for part in nodes(node)
            if isinstance(part, (ast.AnnAssign, ast.Assign, ast.AugAssign)) and part.value is not None
        ]
        while True:
            wrong = {name for name, part in given if name in zero and not self._stays_zero(part, zero)}
            if not wrong:
                return zero & {name for name, _ in given}
            zero -= wrong

    def _stays_zero(self, node: ast.AnnAssign | ast.Assign | ast.AugAssign, zero: set[str]) -> bool:
        if isinstance(node, ast.AugAssign) and not isinstance(node.op, (ast.Add, ast.Sub)):
            assert node.value is not None
            divides = isinstance(node.op, ast.Div) and not self._is_zero(node.value, zero)
            return isinstance(node.op, ast.Mult) or divides
        assert node.value is not None
        return is_empty_array(node.value) or self._is_zero(node.value, zero)

    def _is_zero(self, value: ast.expr, zero: set[str] | None = None) -> bool:
        """Whether a value is 0.0 in other iterations, where the locals ``zero`` are."""
        zero = self._zero if zero is None else zero
        match value:
            case ast.Constant():
                return folded(value) == 0.0
            case ast.Name(name) | ast.Subscript(ast.Name(name)):
                return name in zero
            case ast.UnaryOp(ast.USub(), operand):
                return self._is_zero(operand, zero)
            case ast.BinOp(left, ast.Mult(), right):
                return self._is_zero(left, zero) or self._is_zero(right, zero)
            case ast.BinOp(left, ast.Div(), right):
                return self._is_zero(left, zero) and not self._is_zero(right, zero)
            case ast.BinOp(left, ast.Add() | ast.Sub(), right):
                return self._is_zero(left, zero) and self._is_zero(right, zero)
            case ast.IfExp(test, body, orelse):
                here = self._rest(test) is not None or self._is_zero(body, zero)
                return here and self._is_zero(orelse, zero)
        return False

    def _simplified(self, value: ast.expr) -> ast.expr:
        """A value in the one iteration: without the condition, where that is all of a select's."""
        if isinstance(value, ast.IfExp) and (rest := self._rest(value.test)) is not None:
            return ast.IfExp(rest, value.body, value.orelse)
        return value

    def _value(self, value: ast.expr, statement: ast.Assign | ast.AugAssign) -> ast.expr | None:
        """What the statement stores or adds; None if it changes something in other iterations."""
        if not isinstance(value, ast.IfExp) or not _changes_nothing(value.orelse, statement):
            return None
        rest = self._rest(value.test)
        if rest is not None:
            return ast.IfExp(rest, value.body, value.orelse)
        inner = self._value(value.body, statement)
        return None if inner is None else ast.IfExp(value.test, inner, value.orelse)

    def _rest(self, test: ast.expr) -> ast.expr | None:
        """The condition without ``which == var``; None if that is not a part of it."""
        parts = conjuncts(test)
        rest = [part for part in parts if (found := equal_to(self._var, part)) is None or unparse(found) != self._text]
        if len(rest) == len(parts):
            return None
        return conjunction(rest) if rest else ast.Constant(True)


def _changes_nothing(value: ast.expr, statement: ast.Assign | ast.AugAssign) -> bool:
    """Whether storing, adding, … the value leaves the target as it is, but for the sign of a zero."""
    if isinstance(statement, ast.AugAssign):
        wanted = UNCHANGED.get(type(statement.op))
        return wanted is not None and folded(value) == float(wanted)
    return unparse(value) == unparse(target_of(statement))


def _only(program: Program, site: Site, loop: Loop, node: ast.For) -> _Only:
    """The loop in the one iteration that has an effect.

    Raises:
        Refused: there is none; of the first condition that looks like one.
    """
    tests = (tree.test for tree in nodes(node) if isinstance(tree, (ast.If, ast.IfExp)))
    found = [which for test in tests for part in conjuncts(test) if (which := equal_to(loop.var, part)) is not None]
    refusals = []
    for which in {unparse(each): each for each in found}.values():
        only = _Only(loop.var, which, node)
        refusal = _refusal(program, site, loop, only)
        if refusal is None:
            return only
        refusals.append(refusal)
    if refusals:
        raise refusals[0]
    problem = f"nothing says in which one of its iterations {loop.var} does something"
    way_out = f"a condition … == {loop.var} on all that the loop changes"
    raise refuse(problem, program.nests[site.nest], site.path, _NOTE, way_out=way_out)


def _refusal(program: Program, site: Site, loop: Loop, only: _Only) -> Refused | None:
    """Why the iteration is not the only one with an effect, or not known before the loop; None if it is."""
    nest, node, text = program.nests[site.nest], loop_at(program, site), unparse(only.which)
    moving = sorted(names_in(only.which) & {loop.var, *changed_in(*node.body)})
    if moving:
        problem = f"{text} changes in the loop, with {moving[0]}"
        return refuse(problem, nest, site.path, _NOTE, way_out=_innermost(program, site, moving))
    if only.others:
        path = next(path for path, other in walk(nest.body) if other is only.others[0])
        problem = f"not only the iteration {loop.var} = {text} has an effect"
        return refuse(problem, nest, path, f"in every iteration of {loop.var}")
    inner = [loop_of(other) for _, other in loops(node.body)]
    depending = [each.var for each in inner if loop.var in names_in(each.start) | names_in(each.stop)]
    scope, ranges = scope_at(nest.body, site.path, program.buffers), ranges_at(nest.body, site.path)
    quasi_affine = affine(only.which) is not None
    if depending and not (quasi_affine and all(scope[n].kind == "loop" for n in names_in(only.which) - INDEX_CALLS)):
        problem = f"the bounds of loop {depending[0]} would not be quasi-affine in loop variables"
        return refuse(problem, nest, site.path, _NOTE)
    if not all(in_bounds(scope[name_of(element)].shape, element, ranges) for element in references(only.which)):
        problem = f"{text} is read whether the loop runs or not, and may not exist"
        return refuse(problem, nest, site.path, _NOTE)
    return None


def _innermost(program: Program, site: Site, moving: Sequence[str]) -> WayOut:
    """The loop goes inside of the one that the iteration moves with."""
    node, own = loop_at(program, site), nest_of(program, site)
    inner = dict.fromkeys(variable_of(other) for _, other in loops(node.body))
    ways = [
        (step("interchange", [variable_of(node), other], nest=own), step("locate", variable_of(node), nest=own))
        for other in inner
        if other in moving
    ]
    return tried(program, *ways)
