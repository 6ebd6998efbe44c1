"""A program that times itself and prints one line for each kernel, stopped after each wanted line so that others can be
timed in between."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from swirl.config import child_environment

LINE = re.compile(r"(P )?(?P<name>.+?):? +min +(?P<least>[\d.]+) +med +(?P<middle>[\d.]+)")


@dataclass(frozen=True)
class Measured:
    """One line ``P NAME: min 1.23 med 1.31 …`` or ``NAME  min 1.23 med 1.31 ms …``.

    What was timed; the least and the median of its runs in milliseconds.
    """

    name: str
    least: float
    middle: float


def timed_lines(command: Sequence[str | Path], wanted: Collection[re.Pattern[str]]) -> Iterator[Measured]:
    """Run ``command`` and yield its lines of times that match one of ``wanted``; the program is stopped meanwhile.

    It ends when every pattern has been found (a whole name matches), or on its own.

    Raises:
        SystemExit: there is no such program.
    """
    missing = list(wanted)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment())
    except OSError as error:
        raise SystemExit(f"{command[0]} cannot be run: {error.strerror}; build it first") from error
    assert process.stdout is not None
    try:
        for line in process.stdout:
            found = LINE.match(line)
            hits = [pattern for pattern in missing if found and pattern.fullmatch(found["name"])]
            if found is None or not hits:
                continue
            process.send_signal(signal.SIGSTOP)
            yield Measured(found["name"], float(found["least"]), float(found["middle"]))
            missing = [pattern for pattern in missing if pattern not in hits]
            if not missing:
                return
            process.send_signal(signal.SIGCONT)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
