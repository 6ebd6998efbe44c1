"""Programs as values of JSON, and back: for what is kept on disk."""

from __future__ import annotations

import ast
from dataclasses import asdict, fields
from functools import lru_cache
from math import copysign
from typing import Any

from swirl.ir.buffers import Buffer, Layout
from swirl.ir.nest import Nest, Program
from swirl.ir.trees import ASSIGNMENTS, children, nodes, statements_in, target_of


def identity(program: Program) -> str:
    """A text that is the same for two programs exactly if they are equal: nests, buffers with their layouts, aliases,
    and commands so far. It is kept with the program, which is a value."""
    found: str | None = program.__dict__.get("identity")
    if found is None:
        found = program.__dict__["identity"] = _identity(program)
    return found


def _identity(program: Program) -> str:
    rest = [getattr(program, field.name) for field in fields(program) if field.name != "nests"]
    return repr((rest, [nest.text for nest in program.nests]))


def to_json(program: Program) -> dict[str, Any] | None:
    """The program as a value of JSON, or None where :func:`from_json` would not give back this very program."""
    buffers = {name: _buffer_value(buffer) for name, buffer in program.buffers.items()}
    rest = {field.name: getattr(program, field.name) for field in fields(program)[3:]}
    again = {key: _tuples(v) for key, v in rest.items() if key != "aliases"}
    aliases = {name: tuple(targets) for name, targets in program.aliases.items()}
    same = None not in buffers.values() and repr({**again, "aliases": aliases}) == repr({**again, **rest})
    if not same or not all(map(_read_as_printed, program.nests)):
        return None
    return {"name": program.name, "nests": [nest.text for nest in program.nests], "buffers": buffers, **rest}


@lru_cache(maxsize=2**14)
def _buffer_value(buffer: Buffer) -> dict[str, Any] | None:
    """``asdict`` of a buffer, which nobody changes; None where :func:`buffer_from_json` would not give it back."""
    value = asdict(buffer)
    try:
        again = buffer_from_json(value)
    except (KeyError, TypeError, AttributeError):
        return None
    return value if repr(again) == repr(buffer) else None


def from_json(value: dict[str, Any]) -> Program:
    """The program that :func:`to_json` was given.

    Raises:
        SyntaxError, KeyError, TypeError, ValueError, AttributeError: it was given something else.
    """
    given = dict(value)
    nests = tuple(_nest(text) for text in given.pop("nests"))
    buffers = {name: buffer_from_json(entry) for name, entry in given.pop("buffers").items()}
    aliases = {name: tuple(targets) for name, targets in given.pop("aliases").items()}
    return Program(nests=nests, buffers=buffers, aliases=aliases, **{key: _tuples(v) for key, v in given.items()})


def buffer_from_json(value: dict[str, Any]) -> Buffer:
    """The buffer of which this is ``asdict``.

    Raises:
        KeyError, TypeError, AttributeError: it is something else.
    """
    given = {key: _tuples(entry) for key, entry in value.items() if key != "layout"}
    return Buffer(**given, layout=layout_from_json(value["layout"]))


def layout_from_json(value: dict[str, Any]) -> Layout:
    """The layout of which this is ``asdict``.

    Raises:
        TypeError, AttributeError: it is something else.
    """
    return Layout(**{key: _tuples(entry) for key, entry in value.items()})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, (list, tuple)) else value


class _Nests:
    """The nests last seen, by their texts: trees are values, so one nest may be in many programs."""

    def __init__(self, most: int):
        self.most = most
        self._known: dict[str, Nest] = {}

    def get(self, text: str) -> Nest | None:
        """The nest of that text, which counts as seen now."""
        nest = self._known.pop(text, None)
        if nest is not None:
            self._known[text] = nest
        return nest

    def add(self, nest: Nest) -> None:
        """Keep a nest, and let go of the one not seen for longest if there are too many."""
        self._known[nest.text] = nest
        if len(self._known) > self.most:
            self._known.pop(next(iter(self._known)))


_KNOWN = _Nests(4096)


def _nest(text: str) -> Nest:
    """The nest of a text."""
    known = _KNOWN.get(text)
    if known is not None:
        return known
    (function,) = ast.parse(text).body
    if not isinstance(function, ast.FunctionDef):
        raise ValueError("a nest is a function")
    nest = Nest(function)
    nest.__dict__["text"] = text  # its printed form: the text was printed from it
    _KNOWN.add(nest)
    return nest


def _read_as_printed(nest: Nest) -> bool:
    """Whether the nest's text is read as this very tree; it is then the nest of the text, unless another one is known.

    A pass may see what the text does not show: ``Constant(-1)`` is printed as -1, which is read as -(1); and an element
    that is stored to, but says that it is loaded, is read as stored to.
    """
    known = _KNOWN.get(nest.text)
    if known is nest:
        return True
    if not all(map(_plain, statements_in(nest.function))):
        return False
    if known is None:
        _KNOWN.add(nest)
    return True


def _plain(statement: ast.stmt) -> bool:
    """Whether a statement is read as it is printed, those inside of it left aside."""
    if isinstance(statement, ast.FunctionDef):
        return True
    around_others = isinstance(statement, (ast.For, ast.If))
    return (_has_plain_parts if around_others else _leaf_has_plain_parts)(statement)


def _has_plain_parts(statement: ast.stmt) -> bool:
    values = children(statement)
    if isinstance(statement, (ast.For, *ASSIGNMENTS)):
        target = statement.target if isinstance(statement, ast.For) else target_of(statement)
        if not (isinstance(target, (ast.Name, ast.Subscript)) and isinstance(target.ctx, ast.Store)):
            return False
        values = [value for value in values if value is not target] + children(target)
    return all(map(_is_plain, (node for value in values if isinstance(value, ast.expr) for node in nodes(value))))


# Most statements without others inside are in the nest before a rewrite, too.
_leaf_has_plain_parts = lru_cache(maxsize=2**14)(_has_plain_parts)


def _is_plain(node: ast.AST) -> bool:
    """Whether a part of a value is read as it is printed."""
    if isinstance(node, ast.Constant):
        value: Any = node.value
        return type(value) in (bool, str) or (type(value) in (int, float) and copysign(1, value) > 0 and value == value)
    return not isinstance(node, (ast.Name, ast.Subscript, ast.Tuple)) or isinstance(node.ctx, ast.Load)
