"""Knobs of recipes: numbers and words that a recipe asks for, with the values that they may have."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from swirl.errors import ChoiceError, RecipeError, nearest

KINDS = (bool, int, float, str)


@dataclass(frozen=True)
class Knob:
    """A choice that a recipe leaves to whoever uses it.

    Args:
        name: of the choice.
        value: that it has.
        values: that it may have.
        default: that it has where nobody sets it.
    """

    name: str
    value: Any
    values: tuple[Any, ...]
    default: Any

    def __str__(self) -> str:
        instead = "" if self.value == self.default else f"; by default {self.default!r}"
        return f"choice {self.name} = {self.value!r}, of {', '.join(map(repr, self.values))}{instead}"


def knob(name: Any, values: Any, default: Any, given: Mapping[str, Any], known: Knob | None) -> Knob:
    """What a recipe gets that asks for a choice.

    Args:
        name: an identifier.
        values: the choice is one of them: numbers, words, switches, or tuples of these.
        default: one of them.
        given: the choices that are set, by name.
        known: the choice of that name, if it was asked for before.

    Raises:
        RecipeError: one of these is something else, or the value that is set is none of them.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise RecipeError(f"a choice has a name, not {name!r}", way_out='s.choose("tile_n", [8, 16], default=16)')
    if isinstance(values, str) or not isinstance(values, Sequence) or not values or not all(map(_is_plain, values)):
        raise RecipeError(f"the values of {name} are a list of numbers or words, not {values!r}")
    if not _has(values, default):
        raise RecipeError(f"the default of {name} is {default!r}, which is none of {', '.join(map(repr, values))}")
    value = given.get(name, default)
    if not _has(values, value):
        raise ChoiceError(
            f"{name} is set to {value!r}",
            way_out=f"it is one of {', '.join(map(repr, values))}; by default {default!r}",
        )
    found = Knob(name, value, tuple(values), default)
    if known is not None and known != found:
        if replace(known, value=value) == found:
            raise RecipeError(
                f"{name} is {known.value!r} in one recipe for these layers, and {value!r} in another",
                way_out="the same choices for both, or another name in one of them",
            )
        raise RecipeError(f"{name} is chosen twice, from other values", way_out="another name for one of them")
    return found


def check_choices(choices: Any) -> dict[str, Any]:
    """Choices as they are given to ``net.use_recipe``: names with values.

    Raises:
        RecipeError: they are something else.
    """
    if not isinstance(choices, Mapping) or not all(
        isinstance(name, str) and _is_plain(value) for name, value in choices.items()
    ):
        raise RecipeError(f"choices are names with numbers or words, not {choices!r}", way_out='choices={"tile_n": 16}')
    return dict(choices)


def check_asked(given: Collection[str], asked: Iterable[str], recipe: str | None = None) -> None:
    """Refuse choices that no recipe asks for.

    Args:
        given: names of the choices that are set.
        asked: names of those that recipes ask for.
        recipe: the one that the choices are for; None for all of a net.

    Raises:
        RecipeError: with the names of those that there are.
    """
    known = list(dict.fromkeys(asked))
    for name in given:
        if name not in known:
            none = "no recipe of this net asks for choices" if recipe is None else "it asks for none"
            there = f"the choices are {', '.join(known)}" if known else none
            raise RecipeError(
                f"{recipe or 'no recipe'} {'asks for' if recipe is None else 'does not ask for'} the choice {name!r}",
                way_out=f"{nearest(name, known)}{there}",
            )


def named_in(sources: Iterable[Path]) -> Iterator[str]:
    """The names of the choices that recipes ask for by their text, also in phases that a net does not compute."""
    for path in sources:
        with suppress(OSError, SyntaxError, ValueError):  # who reads it as a recipe tells
            for node in ast.walk(ast.parse(path.read_bytes())):
                match node:
                    case ast.Call(ast.Attribute(attr="choose"), [ast.Constant(str(name)), *_]):
                        yield name


def _has(values: Sequence[Any], value: Any) -> bool:
    return any(type(each) is type(value) and each == value for each in values)


def _is_plain(value: Any) -> bool:
    return type(value) in KINDS or (type(value) is tuple and all(map(_is_plain, value)))
