"""Processes that train together compute what one does with whole batches."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.distributed import processes, workers

DOUBLE = dict.fromkeys(("gradient", "losses", "accuracies", "validation", "learned"), 1e-9)
"""Of the largest value: sums in another order differ by some roundings, 1e-16 each, which 50 steps enlarge: to
1e-14 where it was looked at."""
SINGLE = {"gradient": 1e-5, "losses": 1e-5, "accuracies": 1e-5, "validation": 1e-5, "learned": 2e-5}
"""The same of float32: roundings are 6e-8 each. Gradients of the first step were up to 6e-7 apart, losses of 50 steps
4e-7, parameters after them 1.2e-6."""
SHARED = {2: "momentum", 3: "single,rmsprop", 4: "adamw,adam"}
"""Number of processes → what they train; ``python tests/distributed/workers.py equal`` takes any other cases, too."""


@cache
def alone(name: str) -> dict[str, np.ndarray]:
    """What one process finds with whole batches."""
    return dict(workers.train(name, 1, False))


def check(folder: Path, size: int, names: str) -> None:
    """Compare what each process has found with what one alone does."""
    found = [dict(np.load(folder / f"{rank}.npz")) for rank in range(size)]
    wanted = {key: values for name in names.split(",") for key, values in alone(name).items()}
    assert set(found[0]) == set(wanted)
    for key, values in wanted.items():
        name, kind = key.split("/")[:2]
        for other in found[1:]:
            np.testing.assert_array_equal(other[key], found[0][key], err_msg=key)  # to the last bit
        scale = max(1e-3, float(np.abs(values).max()))
        close = 0 if kind == "items" else (DOUBLE if workers.CASES[name].double else SINGLE)[kind]
        assert float(np.abs(found[0][key] - values).max()) <= close * scale, key


def test_two_processes_compute_what_one_does(tmp_path: Path) -> None:
    processes.run(2, "equal", SHARED[2], tmp_path)
    check(tmp_path, 2, SHARED[2])


@pytest.mark.slow
def test_four_processes(tmp_path: Path) -> None:
    processes.run(4, "equal", SHARED[4], tmp_path)
    check(tmp_path, 4, SHARED[4])


def test_every_case_is_trained_by_several() -> None:
    assert {name for names in SHARED.values() for name in names.split(",")} == set(workers.CASES)


@pytest.mark.slow
def test_processors_and_caches_may_differ(tmp_path: Path) -> None:
    """Two processes are compiled for the best target, the first one for both; beside them one for another target, with
    a cache of its own."""
    shared, own = ({"SWIRL_CACHE_DIR": str(tmp_path / name)} for name in ("shared", "own"))
    each = shared, shared, own | {"SWIRL_TARGET": "portable"}
    printed = processes.run(3, "equal", SHARED[3], tmp_path, each=each)
    first, second, apart = (int(re.findall(r"^COMPILED (\d+)$", text, re.MULTILINE)[0]) for text in printed)
    assert first > 0 < apart
    assert second == 0
    check(tmp_path, 3, SHARED[3])


@pytest.mark.slow
@pytest.mark.usefixtures("as_lowered")
def test_what_is_local_and_what_is_not(tmp_path: Path) -> None:
    """Statistics of batch norm and transforms are each process's own; what is learned is the same, the running
    statistics, and the seed of rank 0, too."""
    processes.run(2, "local", tmp_path)
    first, other = (dict(np.load(tmp_path / f"{rank}.npz")) for rank in range(2))
    assert first["seed"] == 3
    for name, values in first.items():
        np.testing.assert_array_equal(values, other[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.usefixtures("as_lowered")
def test_the_page_trains(tmp_path: Path) -> None:
    """The script of docs/distributed.md."""
    page = (processes.ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    whole = tmp_path / "train.py"
    whole.write_text(f"{script}\nprint('STEPS', solver.step_number)\n", encoding="utf-8")
    for printed in processes.run(2, script=whole, folder=tmp_path):
        assert f"STEPS {10 * 16 + 1}" in printed
