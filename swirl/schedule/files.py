"""Recipes from files, and from the commands that a layer has recorded."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any

from swirl.build.cache import cache_key
from swirl.build.process_lock import alone
from swirl.errors import RecipeError, misspelt
from swirl.ir.phases import INFERENCE, PHASES
from swirl.ir.spelling import as_in_sources
from swirl.schedule.command_log import Recorded, shown
from swirl.schedule.entries import NAME, checked_entries
from swirl.schedule.identity import recipe_identity, tells_no_names
from swirl.schedule.imports import fresh_imports, raised_at, recipe_sources
from swirl.schedule.memo import is_plain
from swirl.schedule.recipe import Recipe, Schedule
from swirl.source_text import SAVE_AS, EncodingError, parsed
from swirl.target.targets import Target
from swirl.transforms import LAYOUT_COMMANDS


@alone
def read_recipe(path: str | Path) -> Recipe:
    """A recipe from a file of functions named after phases; ``chain = ("conv", "relu")`` makes it one for
    neighbouring layers of these kinds, ``entries = (…)`` one of entries (:mod:`swirl.schedule.entries`). Other recipes
    that it imports are read again, too.

    Raises:
        RecipeError: the file cannot be read, is not Python, raises, has no function of a phase or one whose name is
            nearly a phase's, or declares an invalid chain.
    """
    path = Path(path)
    name = shown(str(path))
    try:
        code = compile(parsed(path.read_bytes(), name), name, "exec")
    except OSError as error:
        raise RecipeError(f"cannot be read: {error.strerror}", location=name) from error
    except EncodingError as error:
        raise RecipeError(f"is not text: {error.msg}", location=f"{name}:{error.lineno}", way_out=SAVE_AS) from error
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise RecipeError(f"is not Python: {error}", location=f"{name}:{line}" if line else name) from error
    scope: dict[str, Any] = {"__name__": f"recipe_{path.stem}", "__file__": str(path)}
    try:
        with fresh_imports(path):
            exec(code, scope)
    except Exception as error:
        gone = isinstance(error, ModuleNotFoundError) and str(error.name).startswith("latte.recipes.")
        raise RecipeError(
            f"raised {type(error).__name__}: {error}",
            location=raised_at(error, name, path),
            way_out="of a layer without a shipped recipe: s.default(phase)" if gone else None,
        ) from error
    phases = (*PHASES, INFERENCE)
    functions = {phase: scope[phase] for phase in phases if callable(scope.get(phase))}
    entries = checked_entries(scope[NAME], name) if NAME in scope else ()
    _check_spelling(scope, [*functions.values(), *(entry.function for entry in entries)], name)
    for phase, function in functions.items():
        _check_takes_two(function, phase, name)
    chain = scope.get("chain", ())
    kinds = isinstance(chain, (tuple, list)) and all(isinstance(kind, str) for kind in chain)
    if "chain" in scope and not (kinds and len(chain) > 1):
        raise RecipeError(
            f"chain must name at least two kinds of layers, not {chain!r}",
            location=name,
            way_out='chain = ("conv", "relu")',
        )
    if not functions and NAME not in scope:
        raise RecipeError(
            "defines no phase", location=name, way_out="def forward(s, target): …, or backward, or update"
        )
    sources = recipe_sources(path)
    identity = recipe_identity(sources, scope, name)
    shares = tells_no_names(sources)
    return Recipe(name, functions, as_in_sources(tuple(chain)), path.absolute(), identity, shares, entries=entries)


def has_entries(path: Path) -> bool:
    """Whether a file is a recipe of entries, by its text; False where it cannot be read."""
    try:
        return _assigns_entries(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False


@lru_cache(maxsize=256)
def _assigns_entries(data: bytes) -> bool:
    assigned = [node for node in parsed(data, "").body if isinstance(node, ast.Assign)]
    return any(isinstance(name, ast.Name) and name.id == NAME for node in assigned for name in node.targets)


def _check_spelling(scope: Mapping[str, Any], used: Collection[Any], name: str) -> None:
    """Refuse a function whose name is nearly that of a phase which has none: the phase would get the default schedule.

    Args:
        scope: the file's names.
        used: functions that are called.
        name: of the file.
    """
    missing = [phase for phase in (*PHASES, INFERENCE) if not callable(scope.get(phase))]
    for own, value in scope.items():
        meant = misspelt(own, missing)
        if meant is not None and isinstance(value, FunctionType) and value not in used:
            line = value.__code__.co_firstlineno
            raise RecipeError(f"nothing calls {own}", location=f"{name}:{line}", way_out=f"did you mean {meant!r}?")


def _check_takes_two(function: Callable[..., Any], phase: str, name: str) -> None:
    code = getattr(function, "__code__", None)
    location = f"{shown(code.co_filename)}:{code.co_firstlineno}" if code is not None else name
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise RecipeError(
            f"{phase} would not run when it is called: it yields or awaits",
            location=location,
            way_out=f"def {phase}(s, target): …",
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature: calling it will tell
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise RecipeError(
            f"{phase}{signature} is given a schedule and a target",
            location=location,
            way_out=f"def {phase}(s, target): …",
        ) from error


def recorded_recipe(name: str, commands: Mapping[str, Sequence[Recorded]], otherwise: Recipe | None) -> Recipe:
    """The commands that a layer recorded, phase by phase; they replace these phases of ``otherwise``.

    A command on a layout changes the loops of every phase, so then nothing of ``otherwise`` is left.
    """

    def replay(recorded: Sequence[Recorded]) -> Callable[[Schedule, Target], None]:
        def function(schedule: Schedule, target: Target) -> None:
            for command in recorded:
                schedule.apply(command)

        return function

    lays_out = any(command.name in LAYOUT_COMMANDS for recorded in commands.values() for command in recorded)
    functions = dict(otherwise.functions) if otherwise and not lays_out else {}
    functions |= {phase: replay(recorded) for phase, recorded in commands.items()}
    kept = otherwise.identity if otherwise and not lays_out else "commands"
    plain = all(
        is_plain((command.arguments, command.options)) for recorded in commands.values() for command in recorded
    )
    identity = cache_key("commands", kept, repr(commands)) if plain and kept is not None else None
    path, choices = (otherwise.path, otherwise.choices) if otherwise else (None, {})
    return Recipe(name, functions, path=path, identity=identity, choices=choices)
