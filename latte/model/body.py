"""Reading the source of a body: its tree with true line numbers, and what the names in it stand for."""

from __future__ import annotations

import ast
import builtins
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any, NoReturn

import numpy as np

from latte.model.sources import LAMBDA, SourceMissing, source_of
from latte.model.variables import names, store_counts
from swirl.errors import BodyError
from swirl.ir.printing import unparse

MISSING = object()

LINES = 1 << 17
"""A line number of ``origins[k]`` in a tree is greater by ``k + 1`` times this."""


Known = dict[tuple[FunctionType, str], Any]
"""What the names in functions stand for; see :class:`Body`."""


@dataclass(frozen=True)
class Origin:
    """Where the statements of a helper come from.

    Args:
        filename: of the helper.
        callers: the places of the call, the helper's own caller first.
    """

    filename: str
    callers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Body:
    """A method of a neuron or ensemble, as text that was parsed.

    Args:
        function: the method.
        tree: its definition; line numbers are those of the file.
        filename: the file.
        origins: of the helpers in it, see :data:`LINES`.
        bound: values of names that only helpers know.
        certain: variables that are assigned once, before all that reads them.
        known: what a function's names stood for when they were first asked for; those who share it know the same.
    """

    function: FunctionType
    tree: ast.FunctionDef
    filename: str
    origins: tuple[Origin, ...] = ()
    bound: Mapping[str, Any] = field(default_factory=dict)
    certain: frozenset[str] = frozenset()
    known: Known = field(default_factory=dict, compare=False, repr=False)

    @property
    def parameters(self) -> list[str]:
        """Names of the arguments, without ``self``."""
        return [arg.arg for arg in self.tree.args.args[1:]]

    @property
    def statements(self) -> list[ast.stmt]:
        """The statements, without a docstring."""
        body = self.tree.body
        return body[1:] if _is_docstring(body[0]) else body

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """NumPy arrays of the surrounding Python that it names."""
        variables = store_counts(self.tree)
        free = names(self.tree) - variables.keys() - {*self.parameters, "self"}
        found = {name: self.lookup(name) for name in sorted(free)}
        return {name: value for name, value in found.items() if isinstance(value, np.ndarray) and value.ndim}

    def location(self, node: ast.AST | None = None) -> str:
        """``file:line`` of a node."""
        return self.place(getattr(node, "lineno", self.tree.lineno))

    def place(self, number: int) -> str:
        """``file:line`` of a line number in the tree."""
        helper, line = divmod(number, LINES)
        return f"{self.origins[helper - 1].filename if helper else self.filename}:{line}"

    def fail(self, node: ast.AST, message: str, way_out: str | None = None) -> NoReturn:
        """Raise :class:`BodyError` for ``node``."""
        helper = getattr(node, "lineno", 0) // LINES
        called = f" (called in {', '.join(self.origins[helper - 1].callers)})" if helper else ""
        raise BodyError(f"{message}{called}", location=self.location(node), way_out=way_out)

    def lookup(self, name: str) -> Any:
        """What a free name stands for: closure, then globals, then builtins; ``MISSING`` if nothing."""
        return self.bound[name] if name in self.bound else self._once(name, lambda: self._found(name))

    def _found(self, name: str) -> Any:
        closure = self.function.__closure__ or ()
        for free, cell in zip(self.function.__code__.co_freevars, closure, strict=True):
            if free == name:
                try:
                    return cell.cell_contents
                except ValueError:  # assigned later, or never
                    return MISSING
        return self.function.__globals__.get(name, getattr(builtins, name, MISSING))

    def evaluate(self, node: ast.expr) -> Any:
        """What a free name, or an attribute of a free name that is a module, stands for; else ``MISSING``."""
        if isinstance(node, ast.Name):
            return self.lookup(node.id)
        if isinstance(node, ast.Attribute):
            base = self.evaluate(node.value)
            if isinstance(base, (ModuleType, type)):
                return self._once(unparse(node), lambda: getattr(base, node.attr, MISSING))
        return MISSING

    def _once(self, text: str, find: Callable[[], Any]) -> Any:
        """What a name stands for, as it was when it was first asked for."""
        key = self.function, text
        if key not in self.known and (value := find()) is not MISSING:
            self.known[key] = value
        return self.known.get(key, MISSING)


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and (isinstance(statement.value.value, str))
    )


def read_body(function: Callable[..., Any], known: Known | None = None) -> Body:
    """The body of a phase.

    Args:
        function: the method.
        known: see :class:`Body`.

    Raises:
        BodyError: if there is no source, or it is not a plain method.
    """
    body = read_function(function, known)
    arguments, name = body.tree.args, body.function.__qualname__
    if body.tree.decorator_list:
        body.fail(body.tree, f"{name} has a decorator, which would not be compiled", "remove it")
    if not arguments.args:
        body.fail(body.tree, f"{name} has no argument self")
    if arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs or arguments.defaults:
        body.fail(body.tree, f"{name} may have plain arguments and *sources only, no defaults and no **")
    return body


_PLAIN = "write def forward(self): …; def f(x): … for a helper, in place of a lambda"


def read_function(function: Callable[..., Any], known: Known | None = None) -> Body:
    """The body of a function; ``known`` as in :class:`Body`.

    Raises:
        BodyError: if there is no source, or it is not a plain function.
    """
    name = getattr(function, "__qualname__", repr(function))
    if not isinstance(function, FunctionType):
        raise BodyError(f"{name} is not a plain function", way_out=_PLAIN)
    code, inner = function.__code__, inspect.unwrap(function)
    location = f"{code.co_filename}:{code.co_firstlineno}"
    if code.co_name == LAMBDA:
        raise BodyError(f"{name} is not a plain function", location=location, way_out=_PLAIN)
    try:
        definition = source_of(inner.__code__, inner.__qualname__).definition
    except SourceMissing:
        raise BodyError(
            f"the source of {name} is not available, and a body's source is what gets compiled",
            location=location,
            way_out=f"{code.co_filename} cannot be read: is it gone, or saved in another encoding?"
            if os.path.isabs(code.co_filename)
            else "write the layer in a file: interactive sessions and python -c keep no source",
        ) from None
    body = Body(function, definition, code.co_filename, known={} if known is None else known)  # type: ignore[arg-type]
    if not isinstance(definition, ast.FunctionDef):
        raise BodyError(f"{name} is not a plain function", location=body.location(definition), way_out=_PLAIN)
    return body
