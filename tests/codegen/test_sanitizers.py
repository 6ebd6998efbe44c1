"""The sanitizers see what generated code may do wrong, masked lanes included, and report nothing in correct code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from swirl.target.machine import why_not
from swirl.target.targets import get_target
from tests.sanitize import environment
from tests.sanitize.kernels import KERNELS


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_report(name: str) -> None:
    target, _, report = KERNELS[name]
    if reason := why_not(get_target(target)):
        pytest.skip(f"{target}: {reason}")
    command = [sys.executable, "-m", "tests.sanitize.kernels", name]
    ran = subprocess.run(command, cwd=Path(__file__).parents[2], env=environment(), capture_output=True, text=True)
    assert (ran.returncode == 0) == (not report), ran.stderr
    assert ("no report" in ran.stdout) == (not report)
    assert report in ran.stderr
