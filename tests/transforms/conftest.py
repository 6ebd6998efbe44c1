"""Targets, as for the tests of code generation; kernels are compiled in less time."""

import pytest

import swirl.build.jit
from tests.codegen.conftest import target

__all__ = ["target"]


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What commands make is compared, whatever g++ makes of it; -O3 takes g++ half as long again, and is for the tests
    of code generation, nets and g++'s defects."""
    monkeypatch.setitem(swirl.build.jit.build.__kwdefaults__, "optimize", "-O2")  # type: ignore[arg-type]
