"""What a recipe's outcome depends on besides ``s`` and ``target``: its own text, those of the files that it imports,
and what it says that it reads.

A recipe is a function of ``s`` and ``target``. One that may look at something else (it imports other modules than those
here, opens files, prints, keeps counts in globals) has no identity, and its outcomes are not kept, unless it says what
else it reads:

    reads = ("tiles.json", "$TILE")     # files beside the recipe, and variables of the environment; () for nothing
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from swirl.build.cache import cache_key
from swirl.config import variable
from swirl.errors import RecipeError
from swirl.older_spellings import RENAMED

PURE = {
    "__future__",
    "abc",
    "bisect",
    "collections",
    "contextlib",
    "dataclasses",
    "enum",
    "fractions",
    "functools",
    "heapq",
    "itertools",
    "math",
    "numbers",
    "operator",
    "re",
    "string",
    "textwrap",
    "types",
    "typing",
}
"""Modules whose functions are functions of their arguments."""
COMPILER = (
    "swirl.analysis",
    "swirl.errors",
    "swirl.ir",
    "swirl.schedule.entries",
    "swirl.schedule.layer_recipes",
    "swirl.schedule.recipe",
    "swirl.target.TARGETS",
    "swirl.target.Target",
    "swirl.target.get_target",
    "swirl.target.targets",
    "swirl.transforms",
)
"""The compiler's own, packages with all that is in them: their sources are a part of every key. What the machine has
(:mod:`swirl.target.machine`) is not."""
EFFECTS = {
    "__import__",
    "breakpoint",
    "compile",
    "eval",
    "exec",
    "getattr",
    "globals",
    "id",
    "input",
    "open",
    "print",
    "vars",
}
"""Functions that look at other things, or are seen by others."""
REVEALING = {"layers", "nests", "outcomes", "programs", "state", "trace"}
"""Attributes of a schedule that tell the names of layers."""


def recipe_identity(sources: Sequence[Path], scope: Mapping[str, Any], name: str) -> str | None:
    """A text that changes with whatever a recipe's outcome may depend on; None where that is not known.

    Args:
        sources: the recipe's file, and those beside it that it imports.
        scope: the recipe's names, once it has run.
        name: of the file, for messages.

    Raises:
        RecipeError: what it says that it reads is not a list of names, or is not there.
    """
    try:
        texts = [(str(path), path.read_bytes()) for path in sources]
    except OSError:
        return None
    said = _declared_reads(scope, sources[0], name)
    beside = frozenset(path.stem for path in sources)
    if said is None and not all(_is_function(text, beside) for _, text in texts):
        return None
    return cache_key("recipe", *(part for path, text in texts for part in (path, text.hex())), *(said or ()))


def tells_no_names(sources: Sequence[Path]) -> bool:
    """Whether a recipe never looks at the names of layers: equal layers can share its outcome.

    Args:
        sources: the recipe's file, and those beside it that it imports.
    """
    try:
        return not any(_looks_at_names(path.read_bytes()) for path in sources)
    except OSError:
        return False


def _declared_reads(scope: Mapping[str, Any], recipe: Path, name: str) -> list[str] | None:
    """What a recipe says that it reads, with the contents; None where it says nothing."""
    if "reads" not in scope:
        return None
    reads = scope["reads"]
    if not isinstance(reads, (tuple, list)) or not all(isinstance(each, str) and each for each in reads):
        raise RecipeError(
            f"reads must be a list of file names and $VARIABLES, not {reads!r}",
            location=name,
            way_out='reads = ("tiles.json", "$TILE"), or () for nothing',
        )
    found = []
    for each in reads:
        if each.startswith("$"):
            found += [each, repr(variable(each[1:]))]
            continue
        try:
            found += [each, (recipe.parent / each).read_bytes().hex()]
        except OSError as error:
            raise RecipeError(
                f"reads {each}, which cannot be read: {error.strerror}",
                location=name,
                way_out="name files relative to the recipe's folder",
            ) from error
    return found


@lru_cache(maxsize=256)
def _is_function(text: bytes, beside: frozenset[str]) -> bool:
    """Whether what a module's functions return depends on their arguments alone, as far as its text tells."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Global) or (isinstance(node, ast.Name) and node.id in EFFECTS):
            return False
        if isinstance(node, (ast.Import, ast.ImportFrom)) and not all(
            _is_pure(module, beside) for module in _modules(node)
        ):
            return False
    return True


def _modules(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif node.module is None or node.module in ("swirl", "swirl.target", "latte.recipes"):
        yield from (f"{node.module or ''}.{alias.name}" for alias in node.names)
    else:
        yield node.module


def _is_pure(module: str, beside: frozenset[str]) -> bool:
    top = module.partition(".")[0]
    if top == "swirl":
        now = RENAMED.get(module, module)
        return any(f"{now}.".startswith(f"{name}.") for name in COMPILER)
    return top in PURE or module.rpartition(".")[2] in beside


@lru_cache(maxsize=256)
def _looks_at_names(text: bytes) -> bool:
    try:
        found = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return True
    attributes = {node.attr for node in found if isinstance(node, ast.Attribute)}
    nests = [node.value for node in found if isinstance(node, ast.keyword) and node.arg == "nest"]
    return bool(attributes & REVEALING) or not all(
        isinstance(value, ast.Constant) and isinstance(value.value, int) for value in nests
    )
