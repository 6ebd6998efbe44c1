"""For searches on machines that do other things beside."""

import pytest

from swirl.tune import evaluation


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is not waited for."""
    monkeypatch.setattr(evaluation, "PAUSE", 0.0)
