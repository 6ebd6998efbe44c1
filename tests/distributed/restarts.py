"""Training that torchrun starts again after one process was killed, to the last bit what it would have been.

python -m tests.distributed.restarts --kills 50 --seed 1
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from latte.runtime.checkpoint import read_file
from tests.distributed import processes


def check(folder: Path, kills: int, seed: int, size: int = 2) -> int:
    """Train without a stop, and with kills at moments that the seed says; how many there were.

    Raises:
        AssertionError: a run has failed, or what has been learned differs.
    """
    epochs = 2 * kills + 3
    whole, killed = folder / "whole.safetensors", folder / "killed.safetensors"
    processes.run(size, "resume", whole, epochs)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    command += [f"--max-restarts={kills}", "--monitor-interval=0.1", str(processes.WORKERS)]
    found = subprocess.run(
        [*command, *map(str, ("resume", killed, epochs, seed, kills))],
        env=processes.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    wanted, learned = read_file(whole), read_file(killed)
    assert learned.about == wanted.about
    assert learned.tensors.keys() == wanted.tensors.keys()
    for name, values in wanted.tensors.items():
        assert values.tobytes() == learned.tensors[name].tobytes(), name
    return len(Path(f"{killed}.kills").read_text().splitlines())


def main() -> None:
    """Check as many kills as asked for."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--kills", type=int, default=50)
    arguments.add_argument("--seed", type=int, default=0)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kills = check(Path(folder), given.kills, given.seed)
    print(f"{kills} processes killed; what was learned is the same to the last bit")


if __name__ == "__main__":
    main()
