"""Recipes that recipes import are read whenever the importing one is; the process keeps its own modules."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

import latte
from swirl.errors import RecipeError
from swirl.schedule.files import read_recipe
from swirl.schedule.imports import recipe_sources

IMPORTING = "from halves import forward\n"
FORWARD = "def forward(s, target):\n    return {}\n"


def recipe_path_of(kind: str) -> Path:
    return Path(latte.__file__).parent / "recipes" / f"{kind}.py"


def result(recipe: Path) -> object:
    return read_recipe(recipe).functions["forward"](None, None)  # type: ignore[arg-type, func-returns-value]


def test_an_import_is_read_anew_however_quickly_it_is_saved(tmp_path: Path) -> None:
    """The same length within the same second: Python's own cache of compiled modules would not notice."""
    recipe, helper = tmp_path / "mine.py", tmp_path / "halves.py"
    recipe.write_text(IMPORTING)
    for value in (1, 2, 3):
        helper.write_text(FORWARD.format(value))
        assert result(recipe) == value
    assert "halves" not in sys.modules and not (tmp_path / "__pycache__").exists()


def test_the_modules_of_the_process_stay_as_they_are(tmp_path: Path) -> None:
    own = import_module("latte.recipes.batch_norm")
    recipe = tmp_path / "mine.py"
    recipe.write_text(
        "from latte.recipes import batch_norm\nfrom latte.recipes.batch_norm import forward\nimport math\n"
    )
    assert read_recipe(recipe).functions["forward"] is own.forward
    found = read_recipe(recipe_path_of("batch_norm_relu")).functions["forward"].__globals__["passes"]
    assert found is not own.passes and found.__code__ == own.passes.__code__
    assert sys.modules["latte.recipes.batch_norm"] is own and import_module("latte.recipes.batch_norm") is own


def test_a_recipe_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that come from no file, as sys does, are those of the process there too."""
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "mine.py"
    recipe.write_text("import sys, fileinput\n\ndef forward(s, target):\n    return sys, fileinput.sys\n")
    before = sys.modules["sys"]
    assert result(recipe) == (sys, sys)
    assert sys.modules["sys"] is before and before is sys


def test_sources_are_known_of_a_recipe_that_fails(tmp_path: Path) -> None:
    recipe, helper, other = (tmp_path / f"{name}.py" for name in ("mine", "halves", "thirds"))
    recipe.write_text(IMPORTING + "import math, no_such_module\nraise ValueError\n")
    helper.write_text("import thirds, halves\n" + FORWARD.format(1))
    other.write_text("def broken(:\n")
    assert recipe_sources(recipe) == (recipe, helper, other)
    assert recipe_sources(tmp_path / "nowhere.py") == (tmp_path / "nowhere.py",)


def test_shipped_recipes_that_import_others() -> None:
    recipe = recipe_path_of("conv_batch_norm_relu")
    names = ["conv_batch_norm_relu.py", "conv_batch_norm.py", "_conv_tiles.py", "conv.py", "_conv_update.py"]
    assert [source.name for source in recipe_sources(recipe)] == names


def test_helpers_of_one_name_in_two_folders(tmp_path: Path) -> None:
    for value in (1, 2):
        folder = tmp_path / str(value)
        folder.mkdir()
        (folder / "mine.py").write_text(IMPORTING)
        (folder / "halves.py").write_text(FORWARD.format(value))
    assert [result(tmp_path / str(value) / "mine.py") for value in (1, 2, 1)] == [1, 2, 1]


def test_a_mistake_in_an_import_has_its_place(tmp_path: Path) -> None:
    recipe, helper = tmp_path / "mine.py", tmp_path / "halves.py"
    recipe.write_text("\n" + IMPORTING)
    helper.write_text("x = 1 // 0\n")
    with pytest.raises(RecipeError, match=rf"{helper}:1: raised ZeroDivisionError"):
        read_recipe(recipe)
    helper.write_text("def forward(:\n")
    with pytest.raises(RecipeError, match=rf"{helper}:1: raised SyntaxError"):
        read_recipe(recipe)
    recipe.write_text("import no_such_module\n")
    with pytest.raises(RecipeError, match=r"mine\.py:1: raised ModuleNotFoundError: No module named 'no_such_module'"):
        read_recipe(recipe)


def test_a_shipped_recipe_that_is_gone(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.py"
    recipe.write_text("from latte.recipes.relu import forward\n")
    with pytest.raises(RecipeError, match=r"No module named 'latte.recipes.relu'(.|\n)*s\.default\(phase\)") as caught:
        read_recipe(recipe)
    assert "mine.py:1" in str(caught.value)
