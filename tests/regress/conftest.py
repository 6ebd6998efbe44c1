"""Targets, as for the tests of code generation."""

from tests.codegen.conftest import checks, target

__all__ = ["checks", "target"]
