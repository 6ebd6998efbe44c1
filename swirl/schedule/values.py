"""Values of the compiler as values of JSON, and back: dataclasses of plain values, programs, tuples, mappings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from swirl.ir.buffers import Buffer, Layout
from swirl.ir.nest import Program
from swirl.ir.text import from_json, to_json
from swirl.schedule.choices import Knob
from swirl.schedule.command_log import EntryUse, Outcome, Recorded
from swirl.schedule.plan_state import Given, LayoutCommand, PhaseNests
from swirl.transforms.relayout import Copy

KINDS = {
    kind.__name__: kind
    for kind in (Buffer, Layout, Given, LayoutCommand, PhaseNests, Outcome, Recorded, Copy, Knob, EntryUse)
}


class NotAValue(Exception):
    """Something that JSON would not give back as it is."""


def to_value(value: Any) -> Any:
    """A value of JSON, from which :func:`from_value` makes an equal one.

    Raises:
        NotAValue: there is none.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Program):
        program = to_json(value)
        if program is None:
            raise NotAValue
        return {"Program": program}
    if type(value) is list:
        return [to_value(item) for item in value]
    if type(value) in (tuple, frozenset):
        items = sorted(value) if isinstance(value, frozenset) else value
        return {type(value).__name__: [to_value(item) for item in items]}
    if isinstance(value, Mapping):
        return {"dict": [[to_value(key), to_value(item)] for key, item in value.items()]}
    if isinstance(value, Path):
        return {"Path": str(value)}
    if type(value) in KINDS.values():
        return {type(value).__name__: [to_value(getattr(value, field.name)) for field in fields(value)]}
    raise NotAValue


def from_value(value: Any) -> Any:
    """What :func:`to_value` was given.

    Raises:
        KeyError, TypeError, ValueError, SyntaxError, AttributeError: it was given something else.
    """
    if isinstance(value, list):
        return [from_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, parts),) = value.items()
    if kind == "Program":
        return from_json(parts)
    if kind == "dict":
        return {from_value(key): from_value(item) for key, item in parts}
    if kind == "Path":
        return Path(parts)
    items = [from_value(item) for item in parts]
    if kind in ("tuple", "frozenset"):
        return tuple(items) if kind == "tuple" else frozenset(items)
    return KINDS[kind](*items)
