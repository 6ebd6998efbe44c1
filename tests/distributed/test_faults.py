"""What goes wrong in one process ends all of them, with an error that names it."""

from __future__ import annotations

import pytest

from tests.distributed import processes

pytest.importorskip("torch")

pytestmark = pytest.mark.slow

DIFFERENT = {
    "fewer items": "the data of data1 is 94 items of float32 (1, 8, 8) in rank 2, and 97 items",
    "another type": "of float64 (1, 8, 8) in rank 2, and 97 items of float32",
    "another order": "the data of data1, as some items show",
    "another net": "layer 3 of the net is conv1 (Ensemble (16, 8, 8); weights (16, 1, 3, 3)",
    "another solver": "the solver is Adam in rank 2, and SGD in rank 0",
    "other epochs": "epochs is 2 in rank 2, and 10 in rank 0",
    "freezes": "epoch 0, step 4, adding up losses: the processes have gone apart",
}


def test_what_differs_is_said_in_all_processes() -> None:
    for rank, printed in enumerate(processes.run(3, "fail", ",".join([*DIFFERENT, "stops"]))):
        for how, text in DIFFERENT.items():
            (line,) = [line for line in printed.splitlines() if line.startswith(f"ERROR {how} TrainingError")]
            assert text in line
            assert f"workers.py:" in line
            assert f"rank {rank} of 3" in line
        assert "DONE stops enough" in printed


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("killed", "rank 2 does not answer"),
        ("hangs", "rank 2 does not answer"),
        ("raises", "rank 2 has ended: KeyError: 'of a callback'"),
    ],
)
def test_who_has_left_is_said_within_the_timeout(how: str, told: str) -> None:
    first, second, last = processes.start(3, "fail", how)
    printed = processes.outputs([first, second], others=[last])
    for rank, text in enumerate(printed):
        (line,) = [line for line in text.splitlines() if line.startswith(f"ERROR {how} ProcessLost")]
        assert f"rank {rank} of 3" in line
        # The store of the first process ends with it, where no torchrun holds it: the second one may come too late.
        assert told in line or (rank == 1 and "has ended: rank 0" in line), line


def test_another_version_of_latte() -> None:
    started = processes.start(2, "fail", "another version")
    for text in processes.outputs(started):
        assert "rank 0 has 0.1.0, rank 1 has 9.9.9" in text or "rank 1 has 9.9.9" in text


def test_the_first_process_cannot_compile() -> None:
    first, other = processes.run(2, "compile")
    assert "ERROR TargetError" in first
    assert "ERROR ProcessLost" in other
    assert "waiting for rank 0 to compile: rank 0 has ended: TargetError" in other
