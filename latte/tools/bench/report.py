"""What every benchmark prints: the machine, the versions, medians with their spread, and ratios."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from importlib import metadata
from statistics import median, quantiles

import archspec.cpu
import numpy as np
from rich.console import Console

from swirl.build.compiler import find_compiler
from swirl.config import available_cores

FILE_WIDTH = 240
"""Columns of a table in a file or pipe, which has no width of its own."""


def report_console() -> Console:
    """Where tables go: as wide as the terminal, or wide enough for one line a row."""
    made = Console()
    if not made.is_terminal:
        made.width = max(made.width, FILE_WIDTH)
    return made


def machine() -> str:
    """The machine and the versions that a figure belongs to, in one paragraph."""
    compiler = find_compiler().version.splitlines()[0]
    return (
        f"{archspec.cpu.host().name}, {available_cores()} cores, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, numpy {np.__version__}, {versions('torch')}, {compiler}"
    )


def versions(*packages: str) -> str:
    """Of packages that may be missing."""
    found = []
    for package in packages:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            found.append(f"no {package}")
    return ", ".join(found)


def spread(seconds: Sequence[float]) -> str:
    """``1.23 ms (1.20 … 1.31)``: median and quartiles."""
    low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else (seconds[0],) * 3
    return f"{median(seconds) * 1e3:.3f} ms ({low * 1e3:.3f} … {high * 1e3:.3f})"


def replaced(text: str, name: str, part: str) -> str:
    """The page with the part of that name replaced.

    Raises:
        ValueError: the page has no such part, or two.
    """
    marks = rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)"
    text, count = re.subn(marks, lambda found: f"{found[1]}{part}\n{found[2]}", text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"the page has {count} parts <!-- {name} --> … <!-- end -->, not one")
    return text
