"""Kernels that crash, hang or compute something else take nothing with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from swirl.build.jit import build
from swirl.build.translation_unit import TranslationUnit
from swirl.errors import LatteError
from swirl.ir.nest import Program
from swirl.target.targets import TARGETS
from swirl.tune import worker as module
from swirl.tune.served import Job
from swirl.tune.worker import Lost, Worker, spec_of
from tests.support import program

BEFORE = program("for i in range(64):\n y[i] = 2.0 * x[i]", x=(64,), y=(64,))
BODIES = {
    "right": "for (int i = 0; i < 64; ++i) y[i] = x[i] + x[i];",
    "reference": "for (int i = 0; i < 64; ++i) y[i] = 2.0f * x[i];",
    "wrong": "for (int i = 0; i < 63; ++i) y[i] = 2.0f * x[i]; y[63] = 0;",
    "crashes": "*(volatile int *) 8 = 0;",
    "hangs": "for (volatile int i = 0; ; i = i) {}",
    "spoils": "for (int i = 0; i < 64; ++i) { y[i] = 2.0f * x[i]; ((float *) x)[i] = 0; }",
}


def job(name: str, before: Program = BEFORE) -> Job:
    text = f"""extern "C" void tune_{name}(void *const *buffers) {{
    const float *x = (const float *) buffers[0];
    float *y = (float *) buffers[1];
    #pragma omp single
    {{ {BODIES[name]} }}
}}
"""
    (built,) = build([TranslationUnit(f"tune_{name}", text)], TARGETS["portable"])
    return Job(built, (before.buffers["x"], before.buffers["y"]))


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    spec = spec_of(BEFORE, TARGETS["portable"], 2, 4)
    with Worker(spec, job("reference")) as made:
        yield made


def test_a_right_kernel_is_timed(worker: Worker) -> None:
    assert worker.check(job("right")).wrong == ""
    first, second = worker.race([job("reference"), job("right")])
    assert len(first) >= 3 and len(second) >= 3 and min(first) > 0


def test_a_kernel_that_spoils_its_source_does_not_change_what_is_right(worker: Worker) -> None:
    worker.check(job("spoils"))
    assert worker.check(job("right")).wrong == ""


def test_wrong_results_are_told_with_their_place(worker: Worker) -> None:
    assert worker.check(job("wrong")).wrong.startswith("net.y[63]: ")


def test_a_crash_ends_one_candidate(worker: Worker) -> None:
    with pytest.raises(Lost, match="the process ended by signal 11"):
        worker.check(job("crashes"))
    assert worker.check(job("right")).wrong == ""
    assert worker.check(job("wrong")).wrong


def test_an_endless_kernel_is_ended(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.2)
    with pytest.raises(Lost, match="no end after"):
        worker.check(job("hangs"))
    assert worker.check(job("right")).wrong == ""


def test_a_reference_that_crashes_is_an_error() -> None:
    spec = spec_of(BEFORE, TARGETS["portable"], 1, 4)
    with pytest.raises(LatteError, match="the schedule that the layer has cannot be run by itself"):
        Worker(spec, job("crashes"))


def test_only_what_the_program_writes_is_compared() -> None:
    assert spec_of(BEFORE, TARGETS["portable"], 1, 4).written == (BEFORE.buffers["y"].name,)
