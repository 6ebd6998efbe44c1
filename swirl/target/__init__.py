"""Targets: what code is made for, and which of them this machine can run."""

import warnings
from importlib import import_module
from typing import Any

from swirl.target.targets import TARGETS, Target, get_target

__all__ = ["TARGETS", "Target", "get_target"]


def __getattr__(name: str) -> Any:
    """What the machine has, by its older place."""
    if name not in ("cache_bytes", "processor_identity", "processor_name", "resolve_target", "why_hidden", "why_not"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} is in {__name__}.machine", DeprecationWarning, stacklevel=2)
    return getattr(import_module(f"{__name__}.machine"), name)
