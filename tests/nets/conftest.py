"""For tests of nets."""

import pytest

from swirl.target.machine import why_not
from swirl.target.targets import TARGETS


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    """Each target in turn; for one that this machine cannot run, the test is skipped."""
    name = str(request.param)
    if (missing := why_not(TARGETS[name])) is not None:
        pytest.skip(missing)
    return name


@pytest.fixture
def small_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine can do is found in a moment, and not exactly: times are not what these tests look at."""
    monkeypatch.setattr("swirl.measure.rates.STEPS", 10_000)
    monkeypatch.setattr("swirl.measure.rates.READ_BYTES", 1024 * 1024)
