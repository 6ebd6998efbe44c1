"""Targets, as for the tests of code generation."""

from tests.codegen.conftest import target

__all__ = ["target"]
