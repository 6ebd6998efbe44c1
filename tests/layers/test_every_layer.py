"""What comes with each layer that the modules of ``latte.layers`` have: an entry in ``latte.tools.library``, which
benchmarks, random nets and tests draw from, and a row of the manual."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import latte.layers
import latte.tools.library
from latte.tools.library import FAMILIES, LIBRARY
from latte.tools.library.entries import Case, LibraryLayer, Need, one_source

ROOT = Path(__file__).parents[2]
MANUAL = ROOT / "docs" / "layers.md"
NEEDS: dict[Need, str] = {
    "definition": "no definition in PyTorch, a function of (torch, *sources, **parameters, **options)",
    "benchmark": 'no benchmark, measured={"name": Measured(…)}',
    "random nets": 'no kind of random nets, random={"kind": InRandomNets(…)}',
}
"""What an entry has, or why it does not."""


def found() -> dict[str, str]:
    """The constructors of layers in the modules of ``latte.layers`` → their docstrings."""
    constructors = {}
    for module in pkgutil.iter_modules(latte.layers.__path__):
        name = f"latte.layers.{module.name}"
        for own, each in vars(importlib.import_module(name)).items():
            if re.fullmatch(r"[A-Z]\w*Layer\w*", own) and inspect.isfunction(each) and each.__module__ == name:
                constructors[own] = each.__doc__ or ""
    return constructors


FOUND = found()


def missing(name: str) -> list[str]:
    """What a layer lacks, and where to add it."""
    rows = [line.split(" | ")[0] for line in MANUAL.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    checks = {
        "not exported: import it in layers/__init__.py, and name it in __all__ there": name in latte.__all__,
        "no docstring: what it computes, in its constructor": bool(FOUND.get(name, "").strip()),
        "no row in the table at the beginning of docs/layers.md": any(f"`{name}`" in row for row in rows),
        f"no entry: LibraryLayer({name!r}, …) in LAYERS of a module of latte/tools/library": name in LIBRARY,
    }
    return [text for text, there in checks.items() if not there] + (
        missing_of(LIBRARY[name]) if name in LIBRARY else []
    )


def missing_of(layer: LibraryLayer) -> list[str]:
    """What an entry lacks."""
    there = {
        "definition": layer.definition is not None,
        "benchmark": bool(layer.measured),
        "random nets": bool(layer.random),
    }
    compared = "comparison" not in layer.lacks
    shapes = [shape for case in layer.cases.values() for sizes in case.sizes for shape in sizes.sources]
    checks = {
        'no case, cases={"name": Case(one_source((3, 17, 5, 7), …), options)}': bool(layer.cases),
        "no case of an odd extent, Case(one_source((3, 17, 5, 7), …))": not compared
        or any(extent % 2 and extent > 1 for shape in shapes for extent in shape),
        'nothing to compare with: a definition, or the test that has another one, lacks={"comparison": "…"}': (
            there["definition"] or not compared
        ),
        'no reason, lacks={"comparison": "…"}': compared or bool(layer.lacks["comparison"].strip()),
    }
    for need, text in NEEDS.items():
        reason = layer.lacks.get(need, "").strip()
        checks[f'{text}; or the reason, lacks={{"{need}": "…"}}'] = there[need] or bool(reason)
        checks[f'lacks has a reason for "{need}", which is there: remove one'] = not (there[need] and reason)
    for reason in layer.lacks.values():
        for path, test in re.findall(r"(tests/[\w/]+\.py)::(\w+)", reason):
            there_is = (ROOT / path).exists() and f"def {test}(" in (ROOT / path).read_text(encoding="utf-8")
            checks[f"there is no {path}::{test}, which lacks names"] = there_is
    where = f"in the entry of {layer.name} in latte/tools/library"
    return [f"{text}; {where}" for text, holds in checks.items() if not holds]


@pytest.mark.parametrize("name", sorted({*FOUND, *LIBRARY}))
def test_a_layer_is_complete(name: str) -> None:
    assert name in FOUND, f"no layer {name} in latte.layers: remove its entry in latte/tools/library"
    lacks = missing(name)
    assert not lacks, "\n".join([f"{name} is not complete", *lacks])  # whole: pytest abbreviates a list


def test_layers_are_found() -> None:
    assert len(FOUND) >= 48 and set(FOUND) >= set(latte.layers.__all__)


def test_what_is_missing_is_told() -> None:
    assert len(missing("NoLayer")) == 4
    assert len(missing_of(LibraryLayer("NoLayer"))) == 6
    complete = LIBRARY["GELULayer"]
    assert not missing_of(complete)
    for less, words in (
        ({"definition": None}, "no definition"),
        ({"cases": {}}, "no case,"),
        ({"measured": {}}, "no benchmark"),
        ({"random": {}}, "no kind of random nets"),
        ({"lacks": {"benchmark": "as another one"}}, "remove one"),
        ({"lacks": {"comparison": " "}}, "no reason"),
        ({"lacks": {"comparison": "tests/layers/test_library.py::test_nothing"}}, "which lacks names"),
        ({"cases": {"even": Case(one_source((2, 4, 8)))}}, "odd extent"),
    ):
        entry = replace(complete, **less)
        assert any(words in lack and "in the entry of GELULayer" in lack for lack in missing_of(entry))


def test_no_name_stands_for_two_cases() -> None:
    """The views of the registry are tables by these names."""
    for part in ("cases", "measured", "random"):
        names = [name for layer in LIBRARY.values() for name in getattr(layer, part)]
        assert not [name for name, count in Counter(names).items() if count > 1], part
    assert sum(len(family.LAYERS) for family in FAMILIES) == len(LIBRARY)


def test_every_family_is_in_the_library() -> None:
    modules = {module.name for module in pkgutil.iter_modules(latte.tools.library.__path__)} - {"entries"}
    assert {family.__name__.rpartition(".")[2] for family in FAMILIES} == modules
