"""What the names in a body mean at the place that is being translated."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from latte.frontend.batch_numbers import depends_on_batch, number_of_items, scalar_of
from latte.frontend.constants import Constants, attribute, literal
from latte.model.body import Body
from latte.model.ensemble import Ensemble
from latte.model.index import Index, variable
from latte.model.mapping import Window
from latte.model.ranges import ranges
from latte.model.variables import loop_names, read_where_assigned, store_counts
from swirl.ir.buffers import Buffer
from swirl.ir.hints import WORDS
from swirl.ir.item_numbers import ITEMS
from swirl.ir.nest import fresh
from swirl.ir.printing import unparse
from swirl.ir.trees import nodes

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


_WAYS_OUT = {
    ast.While: "for … in range(…), with an if inside for when to stop: how often a loop runs is known before",
    ast.Break: "an if around the rest of the body: how often a loop runs is known before",
    ast.Continue: "an if around the rest of the body",
    ast.Return: "assign to value; a helper function that the body calls may end with return",
    ast.Try: "nothing is raised where a body runs; test with if what would go wrong",
    ast.Assert: "nothing is raised where a body runs; check the data before they are set",
    ast.Raise: "nothing is raised where a body runs; check the data before they are set",
    ast.FunctionDef: "define the function outside of the body, and call it",
    ast.Lambda: "define a function outside of the body, and call it",
    ast.ListComp: "a for loop; a Field is an array that the body computes",
    ast.List: "a Field is an array that the body computes; a NumPy array outside of the body is a constant in it",
    ast.NamedExpr: "an assignment of its own, in a line before",
    ast.AnnAssign: "name = …: types are found from what is assigned",
}
"""How what the language does not have is written."""


@dataclass(frozen=True)
class Source:
    """A body to be translated.

    Args:
        ensemble: whose body it is.
        body: the source.
        buffers: by the name inside bodies.
        batch_size: number of items.
        training: what ``self.training`` is.
        phase: ``forward``, ``backward`` or ``update``.
    """

    ensemble: Ensemble
    body: Body
    buffers: Mapping[str, Buffer]
    batch_size: int
    training: bool
    phase: str


class BodyScope:
    """The loops, locals and constants that are known so far.

    Args:
        source: the body.
        shapes: ``self.inputs.shape`` and its kin, as constants.
        forbidden: names that no loop or local may have, and why.

    Raises:
        BodyError: a variable of the body has one of these names.
    """

    def __init__(self, source: Source, shapes: Mapping[str, Any], forbidden: Mapping[str, str]):
        self.ensemble, self.phase, self.buffers = source.ensemble, source.phase, dict(source.buffers)
        self.body = body = source.body
        self.batch_size, self.forbidden = source.batch_size, forbidden
        stores = store_counts(body.tree)
        self.loop_names = loop_names(body.tree)
        self.variables = {name for name, values in stores.items() if values != 1}
        fixed = {
            "self.training": source.training,
            "self.batch_size": number_of_items(source.batch_size),
            "self.shape": self.ensemble.shape,
            "self.ndim": self.ensemble.ndim,
            **shapes,
        }
        known = partial(attribute, self.ensemble)
        self.constants = Constants(body, fixed, known, set(stores) | set(body.parameters))
        self.variables -= self._given_alike(stores)
        self.loops: dict[str, Window] = {}
        self.over_items: set[str] = set()
        """Variables of loops over all items, as their bounds say."""
        self.ranges: dict[str, Index] = {}
        """Loop variables, and locals that are made of these: ``row = 2 * y + k``."""
        self.conditions: dict[str, ast.expr] = {}
        """Locals that are conditions on loop variables: ``inside = row >= 0``."""
        self.read_where_assigned = read_where_assigned(body.tree)
        """Locals that may be one or the other."""
        self.many: dict[str, list[str]] = {}
        """Variables of loops over several dimensions, each with the variables of these."""
        self.locals: dict[str, str] = {}
        """Locals that have been assigned, each with its name in the intermediate representation."""
        self.below = ranges(self.ensemble, source.batch_size)
        """Integers with a range, by the name inside bodies → the number that they are below."""
        self.elements: dict[str, ast.Subscript] = {}
        """Locals that are an element of these, up to the end of the block in which they are assigned."""
        self.conditional = 0
        """How many conditions on data are around: a local assigned under one is not a constant."""
        for node in nodes(body.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.check_name(node.id, node)

    def number(self, value: Any) -> ast.expr:
        """A number as a value: a literal, or a run-time scalar where it depends on the number of items."""
        if not depends_on_batch(value):
            return literal(value)
        scalar = scalar_of(value)
        return self.scalar(scalar, "items" if scalar == ITEMS else "of_items")

    def scalar(self, scalar: Buffer, wanted: str) -> ast.expr:
        """A run-time scalar that the body does not name, by a free name: the ``wanted`` one, or one like it."""
        name = next((own for own, buffer in self.buffers.items() if buffer.name == scalar.name), None)
        if name is None:
            taken = {*self.buffers, *WORDS, *self.loop_names, *self.variables, *self.locals.values(), *self.forbidden}
            taken |= {node.id for node in nodes(self.body.tree) if isinstance(node, ast.Name)}
            name = fresh(wanted, taken)
            self.buffers[name] = scalar
        return ast.Subscript(ast.Name(name, ast.Load()), ast.Constant(0), ast.Load())

    def enter(self, name: str, window: Window) -> None:
        """Begin a loop."""
        last = window.stop - 1
        self.loops[name] = window
        self.ranges[name] = variable(name, window.start.low, max(last.high, window.start.low))

    @contextmanager
    def inner(self) -> Iterator[None]:
        """Loops entered inside the context end with it."""
        outer = self.loops, self.ranges, self.many, self.elements
        self.loops, self.ranges, self.many, self.elements = (dict(known) for known in outer)  # type: ignore[assignment]
        try:
            yield
        finally:
            self.loops, self.ranges, self.many, self.elements = outer

    @contextmanager
    def under_condition(self) -> Iterator[None]:
        """What is translated inside the context depends on data; what is assigned in it may not be after it."""
        outer = self.elements
        self.elements = dict(outer)
        self.conditional += 1
        try:
            yield
        finally:
            self.conditional -= 1
            self.elements = outer

    def local(self, name: str) -> str:
        """The local's name in the intermediate representation, which no buffer and no loop of the body has."""
        if name not in self.locals:
            self.locals[name] = fresh(name, {*self.buffers, *WORDS, *self.loop_names, *self.locals.values()})
        return self.locals[name]

    # --- errors ---------------------------------------------------------------------------------------------
    def _given_alike(self, stores: Mapping[str, int]) -> set[str]:
        """Names that several shapes give the same number, as ``N, C = inputs.shape`` and ``N, K = value.shape``."""
        found: dict[str, list[Any]] = {}
        for statement in self.body.statements:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple):
                parts, values = statement.targets[0].elts, self.constants.fold(statement.value)
                if isinstance(values, tuple) and len(values) == len(parts):
                    for part, number in zip(parts, values, strict=True):
                        found.setdefault(unparse(part), []).append(number)
        return {name for name, given in found.items() if len(given) == stores[name] and len(set(given)) == 1}

    def fail(self, node: ast.AST, message: str, way_out: str | None = None) -> NoReturn:
        self.body.fail(node, message, way_out)

    def unknown(self, node: ast.AST) -> NoReturn:
        """Refuse what the language does not have."""
        name = _NAMES.get(type(node)) or f"{unparse(node)!r}"
        self.fail(
            node,
            f"a body cannot contain {name}",
            _WAYS_OUT.get(
                type(node), "bodies are made of for over ranges, if, assignments and arithmetic on single elements"
            ),
        )

    def check_name(self, name: str, node: ast.AST) -> None:
        """Refuse a variable with a name that means something else."""
        why = self.forbidden.get(name)
        if why:
            self.fail(node, f"the variable {name!r} has the name of {why}", "choose another name")
