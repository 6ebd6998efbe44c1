"""What this machine reaches."""

import warnings
from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """What was measured, by its older place."""
    if name not in ("Limits", "Measured", "Times"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} is in {__name__}.rates", DeprecationWarning, stacklevel=2)
    return getattr(import_module(f"{__name__}.rates"), name)
