"""Programs as values of JSON, and back: for what is kept on disk."""

from __future__ import annotations

import ast
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any

from swirl.ir.buffers import Buffer, Layout
from swirl.ir.nest import Nest, Program


def identity(program: Program) -> str:
    """A text that is the same for two programs exactly if they are equal: nests, buffers with their layouts, aliases,
    and commands so far."""
    rest = [getattr(program, field.name) for field in fields(program) if field.name != "nests"]
    return repr((rest, [nest.text for nest in program.nests]))


def to_json(program: Program) -> dict[str, Any] | None:
    """The program as a value of JSON, or None where :func:`from_json` would not give back this very program."""
    value: dict[str, Any] = {
        "nests": [nest.text for nest in program.nests],
        "buffers": {name: asdict(buffer) for name, buffer in program.buffers.items()},
    }
    for field in fields(program):
        if field.name not in value:
            value[field.name] = getattr(program, field.name)
    try:
        again = from_json(value)
    except (SyntaxError, KeyError, TypeError, ValueError):
        return None
    # A pass may see what the text does not show (Constant(-1) is printed as -1, which is read as -(1)).
    nests = zip(program.nests, again.nests, strict=True)
    same = identity(program) == identity(again) and all(_equal(a.function, b.function) for a, b in nests)
    return value if same else None


def from_json(value: dict[str, Any]) -> Program:
    """The program that :func:`to_json` was given.

    Raises:
        SyntaxError, KeyError, TypeError, ValueError, AttributeError: it was given something else.
    """
    given = dict(value)
    nests = tuple(_nest(text) for text in given.pop("nests"))
    buffers = {name: _buffer(entry) for name, entry in given.pop("buffers").items()}
    aliases = {name: tuple(targets) for name, targets in given.pop("aliases").items()}
    return Program(nests=nests, buffers=buffers, aliases=aliases, **{key: _tuples(v) for key, v in given.items()})


def _buffer(value: dict[str, Any]) -> Buffer:
    given = {key: _tuples(entry) for key, entry in value.items() if key != "layout"}
    layout = Layout(**{key: _tuples(entry) for key, entry in value["layout"].items()})
    return Buffer(**given, layout=layout)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, (list, tuple)) else value


@lru_cache(maxsize=4096)
def _nest(text: str) -> Nest:
    """The nest of a text; trees are values, so one nest may be in many programs."""
    (function,) = ast.parse(text).body
    if not isinstance(function, ast.FunctionDef):
        raise ValueError("a nest is a function")
    nest = Nest(function)
    nest.__dict__["text"] = text  # its printed form: the text was printed from it
    return nest


def _equal(a: Any, b: Any) -> bool:
    """Whether two trees are the same in every field."""
    if a is b:
        return True
    kind = a.__class__
    if kind is not b.__class__:
        return False
    if kind is ast.Name:
        return bool(a.id == b.id) and a.ctx.__class__ is b.ctx.__class__
    if kind is list:
        return len(a) == len(b) and all(map(_equal, a, b))
    if not isinstance(a, ast.AST):
        return bool(a == b)
    mine, theirs = a.__dict__, b.__dict__
    for name in a._fields:
        one, other = mine.get(name), theirs.get(name)
        if one is not other and not _equal(one, other):
            return False
    return True
