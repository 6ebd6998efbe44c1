"""For tests of nets."""

import pytest


@pytest.fixture
def small_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine can do is found in a moment, and not exactly: times are not what these tests look at."""
    monkeypatch.setattr("swirl.measure.rates.STEPS", 10_000)
    monkeypatch.setattr("swirl.measure.rates.READ_BYTES", 1024 * 1024)
