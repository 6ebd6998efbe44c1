"""Starting several processes, as torchrun does, without its seconds. Skips tests where PyTorch is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

distributed = pytest.importorskip("torch.distributed")

WORKERS = Path(__file__).with_name("workers.py")
ROOT = WORKERS.parents[2]
LIMIT = 240
"""Seconds after which processes count as hanging: an error of the test."""


def environment(**more: str) -> dict[str, str]:
    """Of a process that runs a worker on one thread."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"} | more


class Started(list[subprocess.Popen[str]]):
    """Processes, with what all of them write into: it is there as long as this is."""

    store: Any


def start(
    size: int,
    *arguments: object,
    script: Path = WORKERS,
    folder: Path | None = None,
    each: Sequence[Mapping[str, str]] | None = None,
) -> Started:
    """Start so many processes that run the worker of a name, or another script.

    Args:
        size: number of processes.
        arguments: of the script.
        script: that they run.
        folder: in which they run.
        each: what is in the environment of one process alone, by rank.
    """
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    shared["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    command = [sys.executable, str(script), *map(str, arguments)]
    started = Started(
        subprocess.Popen(
            command,
            env=environment(RANK=str(rank), **shared, **(each[rank] if each else {})),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
        )
        for rank in range(size)
    )
    started.store = store
    return started


def outputs(started: Started, killed: Sequence[subprocess.Popen[str]] = ()) -> list[str]:
    """What processes have printed when all have ended: well, but for those that are killed."""
    try:
        found = [process.communicate(timeout=LIMIT)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert not any(process.returncode for process in started if process not in killed), "\n".join(found)
    return found


def run(size: int, *arguments: object, **options: Any) -> list[str]:
    """What processes print that run a worker, or another script; arguments as of :func:`start`."""
    return outputs(start(size, *arguments, **options))
