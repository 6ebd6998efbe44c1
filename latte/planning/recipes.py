"""Which recipe an ensemble gets: its own commands, a file that the user names, a folder, or the shipped one; and
which files are recipes for chains of layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from importlib import resources
from pathlib import Path
from typing import Any

from latte.autodiff.differentiated import Differentiated
from latte.model.commands import by_phase
from latte.model.ensemble import Ensemble
from latte.model.graph import EVERY_RECIPE, Graph
from latte.planning.frozen_recipes import as_frozen
from swirl.config import Settings, settings
from swirl.errors import RecipeError
from swirl.ir.spelling import normalised
from swirl.schedule.by_entries import over
from swirl.schedule.files import has_entries, read_recipe, recorded_recipe
from swirl.schedule.recipe import DEFAULT_SCHEDULE, Recipe
from swirl.schedule.rules.schedule import FOR_RECIPES, with_defaults


class Choice(IntEnum):
    """Who has chosen a recipe; a greater one takes precedence."""

    SHIPPED = 0
    FOLDER = 1
    """It is in the folder of the net, or in ``LATTE_RECIPES``."""
    NET = 2
    """``net.use_recipe``"""


@dataclass(frozen=True)
class ChainRecipe:
    """A recipe for a chain, and who has chosen it."""

    recipe: Recipe
    choice: Choice


class Recipes:
    """The recipes of a net's layers, for one compilation: settings, folders and files are read once.

    Args:
        graph: of the net.
        frozen: the programs of the net, where something is frozen.
        read: reads a file.
    """

    def __init__(
        self, graph: Graph, frozen: Differentiated | None = None, read: Callable[[Path], Recipe] = read_recipe
    ):
        self._graph, self._frozen, self._read_file, chosen = graph, frozen, read, settings()
        self.scheduled = chosen.schedule
        """Whether nets are scheduled: not where ``LATTE_SCHEDULE=0``."""
        users = [(files_of(folder), Choice.FOLDER) for folder in folders(graph, chosen)]
        self._folders = [*users, (files_of(_shipped()), Choice.SHIPPED)]
        found = [{name: path for name, path in files.items() if has_entries(path)} for files, _ in users]
        self._entry_files = {path for files in found for path in files.values()}
        named = {key: path for key, path in graph.recipes.items() if path is not None and has_entries(path)}
        self._tables: list[dict[str, Path]] = [named, *found]
        """Name → recipe of entries: by ``net.use_recipe``, then by folder; the first ones take precedence."""
        self._named = {key: path for key, path in graph.recipes.items() if key not in named}
        self._read: dict[Path, Recipe] = {}
        self._of: dict[tuple[str, frozenset[str]], Recipe | None] = {}

    def of(self, ensemble: Ensemble, left: Collection[str] = ()) -> Recipe | None:
        """The recipe of an ensemble; phases that it does not schedule, or has left, get the default schedule.

        In this order: ``net.use_recipe(ensemble, path)``, ``net.use_recipe(kind, path)``, ``<kind>.py`` in the folder
        ``LATTE_RECIPES``, the shipped one; ``None`` for the path is the default schedule. The entries of a tuned recipe
        (:mod:`swirl.schedule.entries`) take precedence over that of a folder and the shipped one. Commands recorded on
        the ensemble replace it phase by phase. None where ``LATTE_SCHEDULE=0``: the layer runs as it is lowered.

        Raises:
            RecipeError: the file cannot be read or is not a recipe.
        """
        if not self.scheduled:
            return None
        key = ensemble.name, frozenset(left)
        if key not in self._of:
            path = self.path(ensemble)
            recipe = self._for_one(path, self._choices(ensemble.name, ensemble.kind)) if path is not None else None
            if self.choice_for(ensemble) < Choice.NET:
                recipe = self.with_entries([ensemble], recipe)
            if ensemble.commands:
                recorded = recorded_recipe(f"commands of {ensemble.name}", by_phase(ensemble.commands), recipe)
                recipe = replace(recorded, unquestioned=_shipped())
            known = None if recipe is None else as_frozen(recipe, [ensemble], self._frozen)
            self._of[key] = with_defaults(known, left)
        return self._of[key]

    def path(self, ensemble: Ensemble) -> Path | None:
        """The file that holds the ensemble's recipe, if there is one."""
        for key in (ensemble.name, ensemble.kind):
            if key in self._named:
                return self._named[key]
        return self._own_or_shipped(ensemble.kind)

    def has_none(self, ensemble: Ensemble) -> bool:
        """Whether an ensemble is to have no recipe."""
        keys = [key for key in (ensemble.name, ensemble.kind) if key in self._named]
        return bool(keys) and self._named[keys[0]] is None

    def choice_for(self, ensemble: Ensemble) -> Choice:
        """Who has chosen the recipe of an ensemble."""
        if ensemble.name in self._named or ensemble.kind in self._named:
            return Choice.NET
        found = (choice for files, choice in self._folders if self._is_in(files, ensemble.kind))
        return next(found, Choice.SHIPPED)

    def with_entries(self, members: Sequence[Ensemble], recipe: Recipe | None) -> Recipe | None:
        """A recipe under the entries for a layer, or for layers that follow each other; itself where there are none.

        Raises:
            RecipeError: a file cannot be read, is not a recipe, or declares other kinds.
        """
        for table in reversed(self.tables(members)):
            recipe = over(table, recipe)
        return recipe

    def tables(self, members: Sequence[Ensemble]) -> list[Recipe]:
        """The recipes of entries for a layer, or for layers that follow each other: that which the net names, then
        those of the folders.

        Raises:
            RecipeError: a file cannot be read, is not a recipe, or declares other kinds.
        """
        keys = (members[0].name, members[0].kind) if len(members) == 1 else chain_keys(members)
        paths = (next((files[key] for key in keys if key in files), None) for files in self._tables)
        found = (self._table(path, members) for path in dict.fromkeys(paths) if path is not None)
        return [table for table in found if table is not None]

    def _table(self, path: Path, members: Sequence[Ensemble]) -> Recipe | None:
        recipe, kinds = self._file(path), tuple(member.kind for member in members)
        if recipe.chain == (kinds if len(kinds) > 1 else ()):
            return recipe
        if path not in self._graph.recipes.values():
            return None  # of a kind, and of a chain, that happen to have one name
        declares = f"the chain {', '.join(recipe.chain)}" if recipe.chain else "no chain"
        raise RecipeError(f"declares {declares}, but is used for {', '.join(kinds)}", location=recipe.name)

    def of_member(self, members: Sequence[Ensemble], kind: str) -> Recipe | None:
        """The recipe for a kind of layer that a chain's recipe builds on: that of the first member of this kind, or the
        one that a layer of this kind would get. The default schedule, by its name, or where there is no other."""
        chosen = self._named
        member = next((member for member in members if member.kind == kind), None)
        path = self.path(member) if member is not None else chosen.get(kind, self._own_or_shipped(kind))
        if path is not None:
            return self._for_one(path, self._choices(*((member.name,) if member is not None else ()), kind))
        return FOR_RECIPES if member is not None or kind in chosen or kind == DEFAULT_SCHEDULE else None

    def of_chain(self, members: Sequence[Ensemble]) -> ChainRecipe | None:
        """The recipe for layers that follow each other, or None.

        In this order: ``net.use_recipe([conv1, relu1], path)``, ``net.use_recipe("conv_relu", path)``, ``conv_relu.py``
        in the folder ``LATTE_RECIPES``, the shipped one: the kinds joined by ``_``. The file says ``chain = ("conv",
        "relu")``; one that declares no chain is a recipe for a single layer, whose kind happens to have this name.

        Raises:
            RecipeError: the file cannot be read, is not a recipe, or declares other kinds.
        """
        kinds = tuple(member.kind for member in members)
        for path, choice in self._chain_paths(members):
            recipe = self._file(path)
            if recipe.chain == kinds:
                return ChainRecipe(recipe.choosing(self._choices(*chain_keys(members))), choice)
            if recipe.chain:
                raise RecipeError(
                    f"declares the chain {', '.join(recipe.chain)}, but is used for {', '.join(kinds)}",
                    location=recipe.name,
                    way_out=f"a recipe for this chain is called {'_'.join(recipe.chain)}.py",
                )
            chosen, ensembles = self._named, self._graph.ensembles
            own = {chosen.get(key) for ensemble in ensembles for key in (ensemble.name, ensemble.kind)}
            if choice == Choice.NET and path not in own:
                raise RecipeError(
                    f"declares no chain, but is used for {', '.join(kinds)}",
                    location=recipe.name,
                    way_out=f"chain = ({', '.join(repr(kind) for kind in kinds)})",
                )
        return None

    def _chain_paths(self, members: Sequence[Ensemble]) -> Iterator[tuple[Path, Choice]]:
        by_layers, name = chain_keys(members)
        for key in (by_layers, name):
            chosen = self._named.get(key)
            if chosen is not None:
                yield chosen, Choice.NET
        for files, choice in self._folders:
            if self._is_in(files, name):
                yield files[name], choice

    def ships(self, path: Path) -> bool:
        """Whether a recipe comes with Latte."""
        return path.parent == _shipped()

    def _own_or_shipped(self, kind: str) -> Path | None:
        return next((files[kind] for files, _ in self._folders if self._is_in(files, kind)), None)

    def _is_in(self, files: Mapping[str, Path], name: str) -> bool:
        return name in files and files[name] not in self._entry_files

    def _file(self, path: Path) -> Recipe:
        if path not in self._read:
            found = self._read_file(path)
            own = self.ships(path)  # those look at no names
            self._read[path] = replace(found, shares=found.shares or own, unquestioned=_shipped())
        return self._read[path]

    def _choices(self, *keys: str) -> dict[str, Any]:
        """What is chosen for recipes of one of these names, the first of which counts; and by the command line for all,
        which counts more."""
        known = self._graph.choices
        own = next((known[key] for key in keys if key in known), {})
        return {**own, **known.get(EVERY_RECIPE, {})}

    def _for_one(self, path: Path, choices: Mapping[str, Any]) -> Recipe:
        recipe = self._file(path).choosing(choices)
        if recipe.chain:
            raise RecipeError(
                f"is a recipe for the chain {', '.join(recipe.chain)}, not for one layer",
                location=recipe.name,
                way_out=f"net.use_recipe({'_'.join(recipe.chain)!r}, path) uses it wherever these layers follow each "
                "other",
            )
        return recipe


def _shipped() -> Path:
    return (Path(str(resources.files("latte"))) / "recipes").resolve()  # in a checkout, the folder at its top


def short_name(path: Path) -> str:
    """``recipes/conv.py`` for a recipe of ours, else the path."""
    return f"recipes/{path.name}" if path.resolve().parent == _shipped() else str(path)


def named_by_net(graph: Graph, members: Sequence[Ensemble]) -> bool:
    """Whether ``net.use_recipe`` has chosen the recipe of a layer or chain, or that it has none: entries of folders do
    not count there."""
    keys = (members[0].name, members[0].kind) if len(members) == 1 else chain_keys(members)
    chosen = [graph.recipes[key] for key in keys if key in graph.recipes]
    return any(path is None or not has_entries(path) for path in chosen)


def folders(graph: Graph, chosen: Settings) -> list[Path]:
    """The user's folders of recipes: those of the net, then ``LATTE_RECIPES``."""
    return list(dict.fromkeys(each for each in (*graph.settings.recipes, chosen.recipes) if each is not None))


def files_of(folder: Path) -> dict[str, Path]:
    """Name → file of a folder's Python files; some file systems keep an accent as a sign of its own."""
    return {normalised(path.stem): path for path in sorted(folder.iterdir()) if path.suffix == ".py"}


# --- chains ---------------------------------------------------------------------------------------------
def chain_name(members: Sequence[Ensemble]) -> str:
    """``conv1_relu1``."""
    return "_".join(member.name for member in members)


def chain_keys(members: Sequence[Ensemble]) -> tuple[str, str]:
    """Under which names a recipe for a chain may be chosen: of the layers, and of their kinds."""
    return chain_name(members), "_".join(member.kind for member in members)
