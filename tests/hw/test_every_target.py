"""What each target comes with, and where it is added."""

from __future__ import annotations

from pathlib import Path

import pytest

import swirl.codegen
from latte import config as older
from swirl.codegen.emit import _vector_loops
from swirl.config import TARGET_NAMES
from swirl.errors import LatteError
from swirl.target import machine
from swirl.target.targets import TARGETS, Target

TEMPLATES = Path(swirl.codegen.__file__).parent / "templates"


def missing(target: Target) -> list[str]:
    """What there is not for a target, and where to add it."""
    name = target.name
    try:
        width = _vector_loops(target)[1]
    except LatteError:
        width = -1
    kinds = {
        "no probe: a program in _PROBES of swirl/target/machine.py": name in machine._PROBES or not target.isa_flags,
        "no value of SWIRL_TARGET: its name in TARGET_NAMES of swirl/config.py": name in TARGET_NAMES,
        "no name for older layers: one in _VEC_CONFIGS of latte/config.py": name in older._VEC_CONFIGS,
        "no vector loops of its width: _vector_loops of swirl/codegen/emit.py": width in (0, target.simd_width),
        "no helpers: swirl/codegen/templates/helpers_<target>.cpp.j2": (TEMPLATES / f"helpers_{name}.cpp.j2").exists(),
    }
    return [text for text, there in kinds.items() if not there]


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_is_complete(name: str) -> None:
    found = missing(TARGETS[name])
    assert not found, "\n".join([f"{name} is not complete", *found])


def test_what_is_missing_is_told() -> None:
    assert len(missing(Target("nothing_that_there_is", 4, 16, ("-mnothing",)))) == 5
