"""Recipes that recipes import: read from their files whenever the importing one is, and listed, to be watched.

``recipes/tanh.py`` is ``from latte.recipes.relu import backward, forward``. Python would read ``relu.py`` once in a
process, and never see a later save.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import util
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

_shared: set[str] = set()


def share_recipes(folder: Path) -> None:
    """Recipes in this folder are imported by others, and read again each time."""
    _shared.add(str(folder.resolve()))


class _Reader(SourceFileLoader):
    """Reads a file as it is now, whatever has been compiled of it before."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


class _Finder(MetaPathFinder):
    """Finds recipes, to be read as they are now: shared ones, and those in the folder of the importing one."""

    def __init__(self, beside: Path):
        self.beside = beside.resolve()
        self.folders = {str(self.beside), *_shared}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        known = PathFinder.find_spec(fullname, path, target)
        place = known.origin if known is not None and known.has_location else None
        if known is None and "." not in fullname and (self.beside / f"{fullname}.py").is_file():
            place = str(self.beside / f"{fullname}.py")
        if place is None or not place.endswith(".py") or not self.holds(place):
            return None
        return util.spec_from_file_location(fullname, place, loader=_Reader(fullname, place))

    def holds(self, file: str) -> bool:
        return _resolved(os.path.dirname(file)) in self.folders

    def read(self, module: ModuleType) -> bool:
        """Whether a module comes from one of these files."""
        spec = getattr(module, "__spec__", None)
        return spec is not None and spec.has_location and spec.origin is not None and self.holds(spec.origin)


@lru_cache(maxsize=4096)
def _resolved(folder: str) -> str:
    return os.path.realpath(folder)


@contextmanager
def fresh_imports(recipe: Path) -> Iterator[None]:
    """Inside, recipes are imported again; the process's own modules of their files are left unchanged."""
    finder = _Finder(recipe.parent)
    kept = {name: module for name, module in list(sys.modules.items()) if finder.read(module)}
    for name in kept:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, module in list(sys.modules.items()) if finder.read(module)]:
            del sys.modules[name]
        sys.modules.update(kept)


def recipe_sources(recipe: Path) -> tuple[Path, ...]:
    """The recipe and its imports, direct and indirect: all files that its commands depend on. Found from the texts, so
    also for a recipe that fails."""
    finder = _Finder(recipe.parent)
    found: dict[Path, Path] = {}
    waiting = [recipe]
    while waiting:
        file = waiting.pop(0)
        if found.setdefault(file.resolve(), file) is file:
            waiting += _imported(file, finder)
    return tuple(found.values())


def _imported(file: Path, finder: _Finder) -> Iterator[Path]:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            package, _, _ = name.rpartition(".")
            path = getattr(sys.modules.get(package), "__path__", None)
            if package and path is None:
                continue  # found without importing anything
            spec = finder.find_spec(name, None if path is None else list(path))
            if spec is not None and spec.origin is not None:
                yield Path(spec.origin)
