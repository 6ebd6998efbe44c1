"""How programs for the original Latte spell commands, and their present spellings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from swirl.errors import CommandError

WITHOUT_EFFECT = ("set_filter_padding", "use_libxsmm")
"""Accepted without effect: weights of any extent fill vectors, and there is no other library to use."""

Call = tuple[str, tuple[Any, ...], dict[str, Any]]
"""A command's name, arguments and options."""


def spelled_anew(
    name: str, arguments: tuple[Any, ...], options: dict[str, Any], location: str | None
) -> Iterator[Call]:
    """A command in its present spelling.

    Raises:
        CommandError: an older ``prefetch`` that names no buffers.
    """
    if name == "privatize" and len(arguments) == 1 and "phase" not in options:
        yield name, (_writing_phase(str(arguments[0])), *arguments), options
    elif name == "prefetch" and ("prefetch_dict_list" in options or _is_older(arguments[1:])):
        for one in _prefetches(*arguments, **options, location=location):
            yield name, one, {"optional": True}
    else:
        yield name, arguments, options


def _writing_phase(buffer: str) -> str:
    """The phase that computes a field."""
    if not buffer.startswith("grad"):
        return "forward"
    return "backward" if buffer in ("grad", "grad_inputs") else "update"


def _prefetches(
    phase: Any, prefetch_dict_list: Any = None, *, location: str | None
) -> list[tuple[str, str, str, int, int]]:
    """``prefetch``'s arguments from an older program's dictionary, or list of dictionaries: buffer →
    ``[1, enclosing loop, dimension, count, loop, multiplier, iterations ahead, hint]``, or ``[2, …, hint]`` with the
    loop, multiplier and iterations in the same places from the end. They are hints: one that does not apply is skipped.
    """
    result = []
    given = prefetch_dict_list if isinstance(prefetch_dict_list, (list, tuple)) else [prefetch_dict_list or {}]
    if not all(isinstance(one, Mapping) for one in given):
        raise CommandError(
            f"prefetch: {prefetch_dict_list!r} is neither a dictionary of buffers nor a list of such",
            location=location,
            way_out="prefetch(phase, buffer, loop_var, distance=1, level=1)",
        )
    for buffer, entry in ((buffer, entry) for one in given for buffer, entry in one.items()):
        whole = isinstance(entry, (list, tuple)) and len(entry) == {1: 8, 2: 11}.get(entry[0] if entry else 0)
        if not whole or not all(type(entry[place]) is int for place in (-3, -2, -1)) or not isinstance(entry[-4], str):
            raise CommandError(
                f"prefetch of {buffer!r}: {entry!r} is not a list of an older program",
                location=location,
                way_out="prefetch(phase, buffer, loop_var, distance=1, level=1)",
            )
        loop, multiplier, ahead, hint = entry[-4:]
        result.append((str(phase), str(buffer), loop, max(1, ahead // max(1, multiplier)), min(3, hint + 1)))
    return result


def _is_older(arguments: tuple[Any, ...]) -> bool:
    """Whether ``prefetch`` was given a dictionary, or a list of some."""
    return len(arguments) == 1 and isinstance(arguments[0], (Mapping, list, tuple))
