"""Targets whose caches are small, so that small nets are as large ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swirl.schedule.rules import packing, panels
from swirl.target.targets import TARGETS, Target


@pytest.fixture
def small_panels(monkeypatch: pytest.MonkeyPatch) -> Target:
    """A target with small caches, for which a few rows are enough for panels."""
    for name, value in {"MANY_ROWS": 4, "ROWS_TRANSPOSED": 4, "READ_MANY_TIMES": 4, "MOST": 0.8, "CHUNKS": 4}.items():
        monkeypatch.setattr(panels, name, value)
    monkeypatch.setattr(packing, "READ_MANY_TIMES", 32)
    return replace(TARGETS["avx2"], l1_bytes=2**12, l2_bytes=2**15)
