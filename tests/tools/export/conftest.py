"""Exports that several tests use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.tools.export import nets
from tests.tools.export.building import built_once


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of a test run have in common."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def small(shared: Path) -> Path:
    """Of all targets, with a layer in between whose memory others would share."""
    return built_once(shared, "small", nets.SMALL, *nets.OF_SMALL, targets=("shared", "main"))


@pytest.fixture(scope="session")
def words(shared: Path) -> Path:
    """Of an LSTM and a layer in between, for one item and for three."""
    options = ("--batch", "3", "1", "--target", "portable", "--layer", "both", "--layer", "scores", "--name", "words")
    return built_once(shared, "words", nets.WORDS, *options, targets=("shared", "main"))


@pytest.fixture(scope="session")
def counting(shared: Path) -> Path:
    """Of one layer with a state that runs change."""
    options = ("--target", "avx2", "portable", "--name", "counting")
    return built_once(shared, "counting", nets.COUNTING, *options)
