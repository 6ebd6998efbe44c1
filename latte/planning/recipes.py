"""Which recipe an ensemble gets: its own commands, a file that the user names, a folder, or the shipped one; and
which files are recipes for chains of layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from importlib import resources
from pathlib import Path

from latte.autodiff.differentiated import Differentiated
from latte.model.commands import by_phase
from latte.model.ensemble import Ensemble
from latte.model.graph import Graph
from latte.planning.defaults.schedule import FOR_RECIPES, with_defaults
from latte.planning.frozen_recipes import as_frozen
from swirl.config import settings
from swirl.errors import RecipeError
from swirl.ir.spelling import normalised
from swirl.recipe import DEFAULT_SCHEDULE, Recipe
from swirl.recipe_files import read_recipe, recorded_recipe

Reader = Callable[[Path], Recipe]
"""Reads a recipe's file."""


class Choice(IntEnum):
    """Who has chosen a recipe; a greater one takes precedence."""

    SHIPPED = 0
    FOLDER = 1
    """It is in the folder ``LATTE_RECIPES``."""
    NET = 2
    """``net.use_recipe``"""


def recipe_of(
    graph: Graph,
    ensemble: Ensemble,
    read: Reader = read_recipe,
    left: Collection[str] = (),
    frozen: Differentiated | None = None,
) -> Recipe | None:
    """The recipe of an ensemble; phases that it does not schedule, or has left, get the default schedule.

    In this order: ``net.use_recipe(ensemble, path)``, ``net.use_recipe(kind, path)``, ``<kind>.py`` in the folder
    ``LATTE_RECIPES``, the shipped one; ``None`` for the path is the default schedule. Commands recorded on the ensemble
    replace it phase by phase. None where ``LATTE_SCHEDULE=0``: the layer runs as it is lowered.

    Args:
        graph: of the net.
        ensemble: in it.
        read: reads a recipe's file.
        left: phases that the recipe has left.
        frozen: the programs of the net, where something is frozen.

    Raises:
        RecipeError: the file cannot be read or is not a recipe.
    """
    if not settings().schedule:
        return None
    path = recipe_path(graph, ensemble)
    recipe = _for_one(path, read) if path is not None else None
    if ensemble.commands:
        recipe = recorded_recipe(f"commands of {ensemble.name}", by_phase(ensemble.commands), recipe)
    return with_defaults(None if recipe is None else as_frozen(recipe, [ensemble], frozen), left)


def recipe_path(graph: Graph, ensemble: Ensemble) -> Path | None:
    """The file that holds the ensemble's recipe, if there is one."""
    for key in (ensemble.name, ensemble.kind):
        if key in graph.recipes:
            return graph.recipes[key]
    return _own_or_shipped(ensemble.kind)


def has_none(graph: Graph, ensemble: Ensemble) -> bool:
    """Whether an ensemble is to have no recipe."""
    keys = [key for key in (ensemble.name, ensemble.kind) if key in graph.recipes]
    return bool(keys) and graph.recipes[keys[0]] is None


def choice_for(graph: Graph, ensemble: Ensemble) -> Choice:
    """Who has chosen the recipe of an ensemble."""
    if ensemble.name in graph.recipes or ensemble.kind in graph.recipes:
        return Choice.NET
    return Choice.SHIPPED if _existing(settings().recipes, ensemble.kind) is None else Choice.FOLDER


def member_recipe(graph: Graph, members: Sequence[Ensemble], kind: str, read: Reader = read_recipe) -> Recipe | None:
    """The recipe for a kind of layer that a chain's recipe builds on: that of the first member of this kind, or the one
    that a layer of this kind would get. The default schedule, by its name, or where there is no other."""
    member = next((member for member in members if member.kind == kind), None)
    path = recipe_path(graph, member) if member is not None else graph.recipes.get(kind, _own_or_shipped(kind))
    if path is not None:
        return _for_one(path, read)
    return FOR_RECIPES if member is not None or kind in graph.recipes or kind == DEFAULT_SCHEDULE else None


def _own_or_shipped(kind: str) -> Path | None:
    return _existing(settings().recipes, kind) or _existing(_shipped(), kind)


def _shipped() -> Path:
    return (Path(str(resources.files("latte"))) / "recipes").resolve()  # in a checkout, the folder at its top


def short_name(path: Path) -> str:
    """``recipes/conv.py`` for a recipe of ours, else the path."""
    return f"recipes/{path.name}" if path.resolve().parent == _shipped() else str(path)


def _existing(folder: Path | None, name: str) -> Path | None:
    if folder is None:
        return None
    path = folder / f"{name}.py"
    if not path.exists() and not name.isascii():  # some file systems keep an accent as a sign of its own
        path = next((each for each in sorted(folder.glob("*.py")) if normalised(each.stem) == name), path)
    return path if path.exists() else None


def _for_one(path: Path, read: Reader) -> Recipe:
    recipe = read(path)
    if recipe.chain:
        raise RecipeError(
            f"is a recipe for the chain {', '.join(recipe.chain)}, not for one layer",
            location=recipe.name,
            way_out=f"net.use_recipe({'_'.join(recipe.chain)!r}, path) uses it wherever these layers follow each other",
        )
    return recipe


# --- chains ---------------------------------------------------------------------------------------------
def chain_name(members: Sequence[Ensemble]) -> str:
    """``conv1_relu1``."""
    return "_".join(member.name for member in members)


def chain_keys(members: Sequence[Ensemble]) -> tuple[str, str]:
    """Under which names a recipe for a chain may be chosen: of the layers, and of their kinds."""
    return chain_name(members), "_".join(member.kind for member in members)


@dataclass(frozen=True)
class ChainRecipe:
    """A recipe for a chain, and who has chosen it."""

    recipe: Recipe
    choice: Choice


def chain_file(graph: Graph, members: Sequence[Ensemble], read: Reader = read_recipe) -> ChainRecipe | None:
    """The recipe for layers that follow each other, or None.

    In this order: ``net.use_recipe([conv1, relu1], path)``, ``net.use_recipe("conv_relu", path)``, ``conv_relu.py`` in
    the folder ``LATTE_RECIPES``, the shipped one: the kinds joined by ``_``. The file says ``chain = ("conv",
    "relu")``; one that declares no chain is a recipe for a single layer, whose kind happens to have this name.

    Raises:
        RecipeError: the file cannot be read, is not a recipe, or declares other kinds.
    """
    kinds = tuple(member.kind for member in members)
    for path, choice in _chain_paths(graph, members):
        recipe = read(path)
        if recipe.chain == kinds:
            return ChainRecipe(recipe, choice)
        if recipe.chain:
            raise RecipeError(
                f"declares the chain {', '.join(recipe.chain)}, but is used for {', '.join(kinds)}",
                location=recipe.name,
                way_out=f"a recipe for this chain is called {'_'.join(recipe.chain)}.py",
            )
        own = {graph.recipes.get(key) for ensemble in graph.ensembles for key in (ensemble.name, ensemble.kind)}
        if choice == Choice.NET and path not in own:
            raise RecipeError(
                f"declares no chain, but is used for {', '.join(kinds)}",
                location=recipe.name,
                way_out=f"chain = ({', '.join(repr(kind) for kind in kinds)})",
            )
    return None


def _chain_paths(graph: Graph, members: Sequence[Ensemble]) -> Iterator[tuple[Path, Choice]]:
    by_layers, name = chain_keys(members)
    for key in (by_layers, name):
        chosen = graph.recipes.get(key)
        if chosen is not None:
            yield chosen, Choice.NET
    for folder, choice in ((settings().recipes, Choice.FOLDER), (_shipped(), Choice.SHIPPED)):
        path = _existing(folder, name)
        if path is not None:
            yield path, choice
