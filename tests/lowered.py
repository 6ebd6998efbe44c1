"""Nets without a schedule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def lowered(when: bool = True) -> Iterator[None]:
    """Nets that are compiled inside run as they are lowered, if ``when``: no recipe, chain or default schedule has
    changed what they compute, and they compile in a third of the time."""
    with pytest.MonkeyPatch.context() as environment:
        if when:
            environment.setenv("LATTE_SCHEDULE", "0")
        yield
