"""The benchmark of threads, on cases that take no time."""

from __future__ import annotations

from pathlib import Path

import pytest
import threads
from click.testing import CliRunner


@pytest.mark.slow
def test_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(threads, "PAUSED", (("relu", "2,3,4"),))
    monkeypatch.setattr(threads, "PAUSES", (0.0, 0.001))
    monkeypatch.setattr(threads, "MOST_RUNS", 2)
    monkeypatch.setattr(threads, "ROUNDS", 1)
    told = CliRunner().invoke(threads.main, ["pauses"], catch_exceptions=False)
    assert told.exit_code == 0 and told.output.count("relu 2,3,4") == 4


def test_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "BUSY", {"small": (threads.small_net, 2, 1), "large": (threads.resnet18, 1, 1)})
    told = CliRunner().invoke(threads.main, ["busy", "--only", "small", "--busy", "1"], catch_exceptions=False)
    assert told.exit_code == 0 and "beside 1" in told.output and "large" not in told.output


@pytest.mark.slow
def test_revisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "COMPARED", (("relu", "2,3,4"),))
    options = ["revisions", "--before", str(Path(__file__).parents[1]), "--rounds", "1"]
    told = CliRunner().invoke(threads.main, options, catch_exceptions=False)
    assert told.exit_code == 0 and "geometric mean" in told.output
