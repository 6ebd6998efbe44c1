"""Starting several processes, as torchrun does, without its seconds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

WORKERS = Path(__file__).with_name("workers.py")
ROOT = WORKERS.parents[2]
LIMIT = 240
"""Seconds after which processes count as hanging: an error of the test."""


def environment(**more: str) -> dict[str, str]:
    """Of a process that runs a worker on one thread."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"} | more


def start(size: int, *arguments: object) -> list[subprocess.Popen[str]]:
    """Start so many processes that run the worker of a name."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, str(WORKERS), *map(str, arguments)]
    return [
        subprocess.Popen(
            command,
            env=environment(RANK=str(rank), **shared),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]


def outputs(processes: list[subprocess.Popen[str]], others: Sequence[subprocess.Popen[str]] = ()) -> list[str]:
    """What they have printed when all have ended; the others, which may hang, are ended then."""
    try:
        return [process.communicate(timeout=LIMIT)[0] for process in processes]
    finally:
        for process in (*processes, *others):
            process.kill()
            process.communicate()


def run(size: int, *arguments: object) -> list[str]:
    """Run a worker in so many processes, which must end well."""
    processes = start(size, *arguments)
    found = outputs(processes)
    assert not any(process.returncode for process in processes), "\n".join(found)
    return found
