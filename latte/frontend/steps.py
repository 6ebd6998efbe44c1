"""From a solver's ``update`` to loops over a parameter: what it writes for one element is done for all.

Expressions of settings alone (``1 - self.beta1 ** self.step_number``) are numbers: they are computed before each step,
in double precision, and the nest reads them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

from latte.frontend.constants import Constants, called
from latte.frontend.locals import Types, declare_locals
from latte.frontend.references import References, self_attribute
from latte.frontend.scope import BodyScope, Source
from latte.frontend.translate import Translator
from latte.model.body import MISSING, Body
from latte.model.checks import is_number
from latte.model.ensemble import Ensemble
from latte.model.mapping import Window
from latte.model.neuron import FieldSpec, Neuron
from latte.model.phases import PhaseMethods
from swirl.ir.hints import WORDS
from swirl.ir.nest import expr, fresh, reference
from swirl.ir.printing import unparse
from swirl.ir.trees import names_in, nodes

MEAN, LIMIT, SHRINK = "mean", "limit", "shrink"
"""What is done to a gradient before ``update`` reads it, in this order: divided by the number of batches, cut off,
shrunk."""


@dataclass(frozen=True)
class Rule:
    """A solver's ``update``, to be compiled.

    Args:
        body: its source.
        name: of the solver's class.
        kept: names of what the solver keeps for each element.
        settings: names of the numbers that may change from step to step.
        value: of ``self.<name>``; ``MISSING`` if there is none.
    """

    body: Body
    name: str
    kept: Collection[str]
    settings: Collection[str]
    value: Callable[[str], Any]


@dataclass(frozen=True)
class Number:
    """A number that a nest reads, computed before each step.

    Args:
        node: the expression.
        settings: in it.
        fixed: constants in it.
        rule: that it belongs to.
    """

    node: ast.expr
    settings: tuple[str, ...]
    fixed: Mapping[str, Any]
    rule: Rule

    def compute(self, values: Mapping[str, float]) -> float:
        """The number for these values of the settings.

        Raises:
            BodyError: it cannot be computed.
        """
        fixed = {**self.fixed, **{f"self.{name}": value for name, value in values.items()}}
        return float(Constants(self.rule.body, fixed, self.rule.value, set()).fold(self.node))


@dataclass(frozen=True)
class Step:
    """The statements for one element.

    Args:
        statements: in the intermediate representation; arrays have the subscripts that were asked for.
        arrays: ``parameter``, ``gradient`` and what is kept → the name in the statements; only those that occur.
        numbers: name in the statements → number.
        adjusted: ``mean``, ``limit``, ``shrink`` → name in the statements, those that were asked for.
    """

    statements: list[ast.stmt]
    arrays: Mapping[str, str]
    numbers: Mapping[str, Number]
    adjusted: Mapping[str, str]


def lower_step(rule: Rule, dtype: str, loops: Collection[str], adjustments: Collection[str]) -> Step:
    """The statements of ``update`` for the element at ``loops``.

    Args:
        rule: to be lowered.
        dtype: of parameter, gradient, what is kept, and numbers.
        loops: names of the loops; the body's locals get other ones.
        adjustments: of the gradient: ``mean``, ``limit``, ``shrink``.

    Raises:
        BodyError: for what the language does not have.
    """
    _check(rule)
    step = _StepReferences(rule, loops, adjustments)
    statements = Translator(step).block(rule.body.statements)
    dtypes = dict.fromkeys([*step.arrays.values(), *step.numbers, *step.adjusted.values()], dtype)
    types = Types(statements, dtypes, step.scope.fail)
    statements = declare_locals(statements, types.locals, types, step.scope.fail)
    used = set().union(*map(names_in, statements))
    return Step(
        [types.statement(statement) for statement in statements],
        {name: own for name, own in step.arrays.items() if own in used},
        step.numbers,
        {name: own for name, own in step.adjusted.items() if own in used},
    )


def adjusted(element: str, names: Mapping[str, str]) -> str:
    """A gradient's element with what is done to it first.

    Args:
        element: ``gradient[i]``.
        names: ``mean``, ``limit``, ``shrink`` → array of one number; only what is to be done.
    """
    if MEAN in names:
        element = f"{element} * {names[MEAN]}[0]"
    if LIMIT in names:
        element = f"max(-{names[LIMIT]}[0], min({names[LIMIT]}[0], {element}))"
    return f"{element} * {names[SHRINK]}[0]" if SHRINK in names else element


def _check(rule: Rule) -> None:
    """Refuse stores to what a solver does not own, and random numbers."""
    body = rule.body
    writable = ("parameter", *rule.kept)
    if body.parameters:
        body.fail(body.tree, f"update of {rule.name} has arguments", "def update(self): …")
    stores = False
    for node in nodes(body.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            stores = stores or node.attr == "parameter"
            if self_attribute(node) not in writable:
                body.fail(
                    node,
                    f"update of {rule.name} cannot write {unparse(node)}",
                    f"it writes {', '.join(f'self.{name}' for name in writable)}, and locals",
                )
        if isinstance(node, ast.Call) and called(node.func) == "rand":
            body.fail(node, "a solver cannot draw random numbers", "draw them in a layer: self.value = … rand()")
    if not stores:
        body.fail(body.tree, f"update of {rule.name} leaves the parameters as they are", "self.parameter -= …")


class _Owner:
    """What a body's translation asks of a layer, for a solver: it has arrays, and no sources."""

    shape, ndim, position = (), 0, 0
    connections: tuple[Any, ...] = ()
    neurons = None

    def __init__(self, rule: Rule, arrays: Collection[str]):
        self._rule, self._arrays = rule, arrays
        self.phase_methods = PhaseMethods(type(rule), Neuron)

    def __getattr__(self, name: str) -> Any:
        value = MISSING if name in self._rule.settings else self._rule.value(name)
        if value is MISSING:
            raise AttributeError(name)
        return value

    def fields(self, batch_size: int) -> dict[str, FieldSpec]:
        return {name: FieldSpec(name, name, (1,), role="state") for name in self._arrays}

    def declared_fields(self) -> dict[str, Any]:
        return {}


class _StepReferences(References):
    """``self.parameter``, ``self.gradient`` and what is kept are the elements at the loops."""

    def __init__(self, rule: Rule, loops: Collection[str], adjustments: Collection[str]):
        body = rule.body
        self.rule, self.loops = rule, loops
        self._taken = names_in(body.tree) | {*loops, *WORDS}
        self.arrays = {name: self._own(name) for name in ("parameter", "gradient", *rule.kept)}
        self.adjusted = {name: self._own(name) for name in adjustments}
        self.numbers: dict[str, Number] = {}
        self._known: dict[str, str] = {}
        owner = cast(Ensemble, _Owner(rule, self.arrays.values()))
        super().__init__(BodyScope(Source(owner, body, {}, 1, True, "update"), {}, {"self": "the solver"}))

    def _own(self, name: str) -> str:
        """A name in the statements that no other has."""
        found = fresh(name, self._taken)
        self._taken.add(found)
        return found

    def whole(self, node: ast.expr) -> ast.expr | None:
        own = {self_attribute(part) for part in nodes(node) if isinstance(part, ast.expr)}
        settings = tuple(name for name in self.rule.settings if name in own)
        if not settings:
            return None
        constants = self.scope.constants
        now = {f"self.{name}": self.rule.value(name) for name in settings}
        value = Constants(self.rule.body, {**constants.fixed, **now}, self.rule.value, constants.hidden).fold(node)
        if not is_number(value):
            return None
        text = unparse(node)
        if text not in self._known:
            self._known[text] = self._own(self_attribute(node) or "number")
            self.numbers[self._known[text]] = Number(node, settings, dict(constants.fixed), self.rule)
        return expr(f"{self._known[text]}[0]")

    def windows_of(self, node: ast.expr) -> list[Window]:
        self.scope.fail(
            node, f"{unparse(node)} is one number: update says what is done to one element of each parameter"
        )

    def reference(self, node: ast.expr, indices: list[ast.expr] | None) -> ast.expr:
        name = self_attribute(node)
        if name not in self.arrays:
            known = ", ".join(f"self.{known}" for known in (*self.arrays, *self.rule.settings))
            self.scope.fail(
                node, f"{unparse(node)} is not a number that update of {self.rule.name} knows", f"it knows {known}"
            )
        if indices is not None:
            self.windows_of(node)
        if name == "gradient" and self.adjusted:
            return expr(adjusted(f"{self.arrays[name]}[{', '.join(self.loops)}]", self.adjusted))
        return reference(self.arrays[name], [ast.Name(loop, ast.Load()) for loop in self.loops])
