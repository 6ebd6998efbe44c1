"""Modules can be imported by their older names, with a warning that says the name of today."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from swirl.older_spellings import RENAMED


@pytest.mark.parametrize("old", RENAMED)
def test_a_module_by_its_older_name(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, old, raising=False)
    now = importlib.import_module(RENAMED[old])
    with pytest.warns(DeprecationWarning, match=f"^{old} is called {RENAMED[old]}$"):
        found = importlib.import_module(old)
    for name in set(vars(now)) - {"__name__", "__loader__", "__spec__", "__builtins__", "__file__", "__cached__"}:
        if not (name.startswith("__") and name.endswith("__")):
            assert getattr(found, name) is getattr(now, name), name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = found.nothing
    assert now.__spec__.name == RENAMED[old]  # as it was


def test_targets_by_their_older_place() -> None:
    target = importlib.import_module("swirl.target")
    with pytest.warns(DeprecationWarning, match=r"swirl\.target\.resolve_target is in swirl\.target\.machine"):
        assert target.resolve_target is importlib.import_module("swirl.target.machine").resolve_target
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = target.nothing


def test_rates_by_their_older_place() -> None:
    measure = importlib.import_module("swirl.measure")
    for name in ("Limits", "Measured", "Times"):
        with pytest.warns(DeprecationWarning, match=rf"swirl\.measure\.{name} is in swirl\.measure\.rates"):
            assert getattr(measure, name) is getattr(importlib.import_module("swirl.measure.rates"), name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = measure.nothing


def test_nobody_here_uses_them() -> None:
    """Warnings of the project's own imports would be told to its users."""
    program = "import sys, latte.tools.cli; print([n for n in sys.modules if n in RENAMED])"
    command = [sys.executable, "-c", f"from swirl.older_spellings import RENAMED; {program}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout == "[]\n", ran.stderr
