"""What goes wrong in one process ends all of them, with an error that names it."""

from __future__ import annotations

import pytest

from tests.distributed import processes  # skips where PyTorch is missing

import latte.distributed  # isort: skip
from latte import MemoryDataLayer, Net  # isort: skip
from latte.runtime.group import share_of  # isort: skip
from swirl.errors import TrainingError  # isort: skip

DIFFERENT = {
    "fewer items": "the data of data1 is 94 items of float32 (1, 8, 8) in rank 2, and 97 items",
    "another type": "of float64 (1, 8, 8) in rank 2, and 97 items of float32",
    "another order": "the data of data1, as some items show",
    "another net": "layer 3 of the net is conv1 (Ensemble (16, 8, 8); weights (16, 1, 3, 3)",
    "another solver": "the solver is Adam in rank 2, and SGD in rank 0",
    "other epochs": "epochs is 2 in rank 2, and 10 in rank 0",
    "another version": "rank 2 has 9.9.9",
    "freezes": "epoch 0, step 4, adding up losses: the processes have gone apart",
    "diverges": "the loss is NaN in epoch",
}


LEFT = {
    "raises": "epoch 0, step 3, asking whether to go on: rank 2 has ended: KeyError: 'of a callback'",
    "hangs": "epoch 0, step 3, asking whether to go on: rank 2 does not answer",
    "killed": "epoch 0, step 3, asking whether to go on: rank 2 does not answer",
}


@pytest.mark.slow
@pytest.mark.usefixtures("as_lowered")
def test_what_goes_wrong_is_said_in_all_processes_within_the_timeout() -> None:
    hows = ",".join([*DIFFERENT, "stops", "cannot compile", *LEFT])
    started = processes.start(3, "fail", hows)
    for rank, printed in enumerate(processes.outputs(started, killed=started[2:])):
        for how, text in DIFFERENT.items():
            (line,) = [line for line in printed.splitlines() if line.startswith(f"ERROR {how} TrainingError")]
            assert text in line
            assert "workers.py:" in line
            assert f"rank {rank} of 3" in line or how == "diverges"  # what each has found by itself
            assert "None" not in line
        assert "DONE stops enough" in printed
        (line,) = [line for line in printed.splitlines() if line.startswith("ERROR cannot compile")]
        assert ("waiting for rank 0 to compile: rank 0 has ended: TargetError" if rank else " TargetError ") in line
        for how, text in LEFT.items() if rank < 2 else ():
            (line,) = [line for line in printed.splitlines() if line.startswith(f"ERROR {how} ProcessLost")]
            assert f"rank {rank} of 3, {text}" in line


@pytest.mark.parametrize(
    ("distributed", "message"),
    [
        (True, "this process has not been started by torchrun"),
        ("yes", "distributed must be True, False or a group of processes, not 'yes'"),
        (latte.distributed.TorchGroup, "distributed must be True, False or a group of processes"),
    ],
)
def test_what_is_not_a_group(distributed: object, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(variable, raising=False)
    net = Net(batch_size=2)
    MemoryDataLayer(net, (4,))
    with pytest.raises(TrainingError, match=message) as caught:
        net.compile(distributed=distributed)
    assert "test_faults.py" in str(caught.value.location)


def test_a_wrong_timeout() -> None:
    with pytest.raises(TrainingError, match="timeout must be a number of seconds, not 0"):
        latte.distributed.join(timeout=0)


@pytest.mark.parametrize(("items", "size"), [(0, 3), (1, 3), (7, 3), (9, 3), (2, 4), (5, 1)])
def test_shares_are_all_items_once(items: int, size: int) -> None:
    shares = [range(items)[share_of(items, rank, size)] for rank in range(size)]
    assert [item for share in shares for item in share] == [*range(items)]
    counts = [len(share) for share in shares]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] - counts[-1] <= 1
