"""Which recipe an ensemble gets: its own commands, a file that the user names, a folder, or the shipped one."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from latte.ensemble import Ensemble
from swirl.config import settings
from swirl.recipe import Recipe, read_recipe, recorded_recipe

if TYPE_CHECKING:
    from latte.net import Net


def recipe_of(net: Net, ensemble: Ensemble) -> Recipe | None:
    """The recipe of an ensemble, or None where there is none: then the canonical code is compiled.

    In this order: ``net.use_recipe(ensemble, path)``, ``net.use_recipe(kind, path)``, ``<kind>.py`` in the folder
    ``LATTE_RECIPES``, the shipped one. Commands recorded on the ensemble replace it phase by phase.

    Raises:
        RecipeError: the file cannot be read or is no recipe.
    """
    path = recipe_path(net, ensemble)
    otherwise = read_recipe(path) if path is not None else None
    if ensemble.commands:
        return recorded_recipe(f"commands of {ensemble.name}", ensemble.commands_by_phase(), otherwise)
    return otherwise


def recipe_path(net: Net, ensemble: Ensemble) -> Path | None:
    """The file that holds the ensemble's recipe, if there is one."""
    for key in (ensemble.name, ensemble.kind):
        if key in net.recipes:
            return net.recipes[key]
    folder = settings().recipes
    if folder is not None and (folder / f"{ensemble.kind}.py").exists():
        return folder / f"{ensemble.kind}.py"
    shipped = Path(str(resources.files("latte"))) / "recipes" / f"{ensemble.kind}.py"
    return shipped if shipped.exists() else None
