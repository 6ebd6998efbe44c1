"""What goes wrong in one process ends all of them, with an error that names it."""

from __future__ import annotations

import pytest

from tests.distributed import processes

pytestmark = pytest.mark.slow

DIFFERENT = {
    "fewer items": "the data of data1 is 94 items of float32 (1, 8, 8) in rank 2, and 97 items",
    "another type": "of float64 (1, 8, 8) in rank 2, and 97 items of float32",
    "another order": "the data of data1, as some items show",
    "another net": "layer 3 of the net is conv1 (Ensemble (16, 8, 8); weights (16, 1, 3, 3)",
    "another solver": "the solver is Adam in rank 2, and SGD in rank 0",
    "other epochs": "epochs is 2 in rank 2, and 10 in rank 0",
    "another version": "rank 2 has 9.9.9",
    "freezes": "epoch 0, step 4, adding up losses: the processes have gone apart",
}


def test_what_differs_is_said_in_all_processes() -> None:
    hows = ",".join([*DIFFERENT, "stops", "cannot compile"])
    for rank, printed in enumerate(processes.run(3, "fail", hows)):
        for how, text in DIFFERENT.items():
            (line,) = [line for line in printed.splitlines() if line.startswith(f"ERROR {how} TrainingError")]
            assert text in line
            assert "workers.py:" in line
            assert f"rank {rank} of 3" in line
        assert "DONE stops enough" in printed
        (line,) = [line for line in printed.splitlines() if line.startswith("ERROR cannot compile")]
        assert ("waiting for rank 0 to compile: rank 0 has ended: TargetError" if rank else " TargetError ") in line


@pytest.mark.parametrize(
    ("how", "size", "told"),
    [
        ("killed", 2, "rank 1 does not answer"),
        ("hangs", 3, "rank 2 does not answer"),
        ("raises", 2, "rank 1 has ended: KeyError: 'of a callback'"),
    ],
)
def test_who_has_left_is_said_within_the_timeout(how: str, size: int, told: str) -> None:
    started = processes.start(size, "fail", how)
    for rank, text in enumerate(processes.outputs(started[:-1], others=started[-1:])):
        (line,) = [line for line in text.splitlines() if line.startswith(f"ERROR {how} ProcessLost")]
        assert f"rank {rank} of {size}, " in line
        assert told in line
