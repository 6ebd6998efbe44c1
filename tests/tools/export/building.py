"""Exports, built: each once for all processes of a test run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from click.testing import CliRunner, Result
from filelock import FileLock

from latte.tools.cli import main
from latte.tools.export.calling import Library

WARNINGS = "-Wall -Wextra -Werror"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["export", *(str(argument) for argument in arguments)])


def exported(folder: Path, text: str, *options: object) -> Path:
    """The folder of the export of a net's file."""
    file = folder / "net.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    result = call(file, "--out", folder / "out", *options)
    assert result.exit_code == 0, result.output
    return folder / "out"


def made(folder: Path, *arguments: str, warnings: str = WARNINGS) -> Path:
    """Build an export by its Makefile, without warnings."""
    flags = (f"CXXFLAGS=-O1 {warnings}", f"CFLAGS=-O1 {warnings}")
    run(["make", "-j2", *flags, *arguments], folder)
    return folder


def run(command: Sequence[object], folder: Path, status: int = 0) -> str:
    """Run a program; what it prints."""
    environment = {**os.environ, "LC_ALL": "C", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def built_once(shared: Path, name: str, text: str, *options: object, targets: Sequence[str] = ("shared",)) -> Path:
    """An export, built by whichever process of the test run needs it first."""
    with FileLock(shared / f"{name}.lock"):
        if not (shared / name / "done").exists():
            made(exported(shared / name, text, *options), *targets)
            (shared / name / "done").touch()
    return shared / name / "out"


def library(folder: Path, name: str = "latte") -> Library:
    return Library(folder / f"lib{name}.so", name)
