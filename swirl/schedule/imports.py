"""What recipes import from files beside them: read again whenever the importing recipe is, and watched with it.

``recipes/conv_batch_norm_relu.py`` imports from ``latte.recipes.conv_batch_norm``. Python would read
``conv_batch_norm.py`` once in a process. All other imports are Python's.
"""

from __future__ import annotations

import ast
import importlib
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from swirl.schedule.command_log import shown
from swirl.source_text import parsed


def recipe_sources(recipe: Path) -> tuple[Path, ...]:
    """The recipe, the files beside it that it imports, and what these import. Imports are found in the texts, so the
    recipe need not run."""
    found = [recipe.absolute()]
    for file in found:
        beside = (file.parent / f"{name}.py" for name in _imported(file))
        found += [other for other in dict.fromkeys(beside) if other not in found and other.is_file()]
    return tuple(found)


def raised_at(error: BaseException, filename: str, path: Path | None) -> str:
    """``file:line`` of the innermost frame in a recipe, or in one that it imports."""
    sources = {str(source) for source in recipe_sources(path)} if path is not None else set()
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == filename or f.filename in sources]
    location = f"{shown(frames[-1].filename)}:{frames[-1].lineno}" if frames else filename
    if isinstance(error, SyntaxError) and error.filename in sources:
        location = f"{shown(error.filename)}:{error.lineno}"
    return location


@contextmanager
def fresh_imports(recipe: Path) -> Iterator[None]:
    """Inside, imports find the files beside the recipe, and read them again. Afterwards the process has its own modules
    of these files, as before."""
    files = recipe_sources(recipe)
    kept = _take(files)
    path, without_bytecode = list(sys.path), sys.dont_write_bytecode
    sys.path.insert(0, str(recipe.parent.absolute()))
    sys.dont_write_bytecode = True  # it would be taken for current where a file is saved twice in a second
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:], sys.dont_write_bytecode = path, without_bytecode
        _take(files)
        sys.modules.update(kept)


def _take(files: Sequence[Path]) -> dict[str, ModuleType]:
    """The modules made from these files, which the process has no longer."""
    stems, taken = {file.stem for file in files}, {file.resolve() for file in files}
    named = [(name, module) for name, module in list(sys.modules.items()) if name.rpartition(".")[2] in stems]
    own = [name for name, module in named if Path(getattr(module, "__file__", None) or "").resolve() in taken]
    return {name: sys.modules.pop(name) for name in own}


def _imported(file: Path) -> tuple[str, ...]:
    """The last parts of the names of modules that a file may import."""
    try:
        return _imported_in(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()


@lru_cache(maxsize=256)
def _imported_in(data: bytes) -> tuple[str, ...]:
    """The same of a module's source: files are read again for every net, and have seldom changed."""
    names = []
    for node in ast.walk(parsed(data, "")):
        if isinstance(node, ast.ImportFrom):
            names.append((node.module or "").rpartition(".")[2])
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names += [alias.name.rpartition(".")[2] for alias in node.names]
    return tuple(names)
