"""How phases are run: on which threads, on which cores, and what the user's settings change."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np
import pytest

from latte.tools.bench.digits import digits_net, random_batch
from swirl.build.jit import Kernel, build, load
from swirl.build.translation_unit import TranslationUnit
from swirl.config import PLACEMENT
from swirl.run.pauses import pause_seconds
from swirl.run.runner import REGION, Runner, Section, sections
from swirl.target.targets import get_target

COUNTS = """
#include <omp.h>
extern "C" void counts(void* const* buffers) {
    int* threads = (int*)buffers[0];
#pragma omp single
    ++threads[omp_get_num_threads()];
}
"""
# All threads of the team on the first core, from where they may go.
GATHERS = """
#include <sched.h>
extern "C" void gathers(void* const*) {
    cpu_set_t own, one;
    sched_getaffinity(0, sizeof own, &own);
    int core = 0;
    while (!CPU_ISSET(core, &own)) ++core;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
#pragma omp barrier
    sched_setaffinity(0, sizeof own, &own);
#pragma omp barrier
}
"""
ATTEMPTS = 300
"""The system may move a thread itself, before ours do."""

needs_two_cores = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="threads need a core each"
)


def kernel(name: str, source: str, work: int | None = None) -> Kernel:
    (built,) = build([TranslationUnit(name, source, work=work)], get_target("portable"))
    return load(built)


@pytest.fixture
def nobody_places(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PLACEMENT:
        monkeypatch.delenv(name, raising=False)


def masks() -> dict[str, set[int]]:
    """Where each thread of this process may run."""
    found = {}
    for thread in os.listdir("/proc/self/task"):
        try:
            found[thread] = os.sched_getaffinity(int(thread))
        except ProcessLookupError:  # it has ended
            continue
    return found


# --- sections -----------------------------------------------------------------------------------------------
MUCH = REGION * 100


@pytest.mark.parametrize(
    ("works", "expected"),
    [
        ([], []),
        ([5, 7, 99], [(3, False)]),
        ([MUCH, MUCH], [(2, True)]),
        ([None], [(1, True)]),
        ([5, MUCH, 5, 5], [(1, False), (1, True), (2, False)]),
        ([MUCH, 5, 5, MUCH], [(1, True), (2, False), (1, True)]),
        ([100, 100, 5], [(3, False)]),  # worth sharing, but not worth waking threads for
        ([5, 100, 5, MUCH], [(3, False), (1, True)]),
        ([100] * REGION, [(REGION, True)]),
        ([100, None], [(2, True)]),
    ],
)
def test_how_a_phase_is_cut(works: list[int | None], expected: list[tuple[int, bool]]) -> None:
    assert sections(works, 100) == [Section(count, shared) for count, shared in expected]
    assert sections(works, 0) == ([Section(len(works), True)] if works else [])


@pytest.mark.parametrize(("work", "threads"), [(10, 1), (10**9, 2), (None, 2)])
def test_little_work_runs_on_one_thread(monkeypatch: pytest.MonkeyPatch, work: int | None, threads: int) -> None:
    monkeypatch.delenv("SWIRL_SHARED_FROM")
    counted = np.zeros(4, np.int32)
    phase = Runner(2).phase([(kernel("counts", COUNTS, work), [counted])] * 3)
    phase.run()
    assert len(phase.run_timed()) == 3
    assert counted[threads] == 6 == counted.sum()


def test_parts_of_a_phase_run_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWIRL_SHARED_FROM")
    little, much = kernel("counts", COUNTS, 10), kernel("counts", COUNTS, 10**9)
    counted = np.zeros(4, np.int32)
    runner = Runner(2)
    phase = runner.phase([(each, [counted]) for each in (little, much, much, little, little, much)])
    phase.run()
    assert list(counted) == [0, 3, 3, 0]
    assert all(seconds > 0 for seconds in phase.run_timed())
    assert runner.seen.regions == 4


def test_bits_do_not_depend_on_who_runs_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    net = digits_net(16)
    net.compile()
    net.set_batch(*random_batch(16))
    arrays, results = net.executable.arrays, []
    before = {name: array.copy() for name, array in arrays.items()}
    for shared_from, threads in (("0", 3), ("20000", 3), ("1000000000000", 3), ("0", 1)):
        monkeypatch.setenv("SWIRL_SHARED_FROM", shared_from)
        runner = Runner(threads)
        phases = [
            runner.phase(
                [
                    (step.kernel, [arrays[step.program.buffers[name].name] for name in step.source.buffers])
                    for step in net.executable.order[phase]
                ]
            )
            for phase in ("forward", "backward")
        ]
        for name, array in arrays.items():
            array[...] = before[name]
        for phase in phases:
            phase.run()
        shared = {section.shared for phase in phases for section in phase.sections}
        results.append((shared, {name: array.tobytes() for name, array in arrays.items()}))
    assert [shared for shared, _ in results] == [{True}, {True, False}, {False}, {True}]
    assert all(found == results[0][1] for _, found in results)
    assert results[0][1] != {name: array.tobytes() for name, array in before.items()}


# --- cores --------------------------------------------------------------------------------------------------
@needs_two_cores
@pytest.mark.usefixtures("nobody_places")
def test_threads_on_one_core_move_apart() -> None:
    if os.getloadavg()[0] > 1:
        pytest.skip("other programs run here: there may be no idle core to move to")
    before = os.sched_getaffinity(0)
    runner, counted = Runner(2), np.zeros(4, np.int32)
    phase = runner.phase([(kernel("gathers", GATHERS), []), (kernel("counts", COUNTS), [counted])])
    attempts = 0
    while runner.seen.moves == 0 and attempts < ATTEMPTS:
        phase.run()
        attempts += 1
        time.sleep(0.002)
    assert 0 < runner.seen.moves <= runner.seen.shared <= runner.seen.regions == attempts
    assert counted[2] == attempts
    assert all(mask == before for mask in masks().values())  # nobody is bound


@needs_two_cores
@pytest.mark.parametrize("name", PLACEMENT)
def test_users_place_threads(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "false")
    runner, counted = Runner(2), np.zeros(4, np.int32)
    phase = runner.phase([(kernel("gathers", GATHERS), []), (kernel("counts", COUNTS), [counted])])
    for _ in range(10):
        phase.run()
    assert runner.seen.moves == 0


@pytest.fixture
def one_core() -> Iterator[None]:
    """All threads of the process are on one core."""
    before = masks()
    core = min(os.sched_getaffinity(0))
    try:
        for thread in before:
            os.sched_setaffinity(int(thread), {core})
        yield
    finally:
        everywhere = set().union(*before.values())
        for thread in masks():
            os.sched_setaffinity(int(thread), before.get(thread, everywhere))


@needs_two_cores
@pytest.mark.usefixtures("nobody_places", "one_core")
def test_threads_share_the_only_core() -> None:
    """More threads than cores: nothing is done about it."""
    runner, counted = Runner(2), np.zeros(4, np.int32)
    runner.phase([(kernel("counts", COUNTS), [counted])] * 3).run()
    assert counted[2] == 3
    assert (runner.seen.regions, runner.seen.shared, runner.seen.moves) == (1, 0, 0)


@needs_two_cores
@pytest.mark.usefixtures("nobody_places")
def test_threads_stay_where_the_user_has_put_them(request: pytest.FixtureRequest) -> None:
    """As ``taskset`` does with a process that runs."""
    counted = np.zeros(4, np.int32)
    runner = Runner(2)
    phase = runner.phase([(kernel("counts", COUNTS), [counted])] * 3)
    phase.run()
    request.getfixturevalue("one_core")
    shared = runner.seen.shared
    phase.run()
    assert (runner.seen.shared, runner.seen.moves) == (shared + 1, runner.seen.moves)
    assert set(map(len, masks().values())) == {1}


@pytest.mark.usefixtures("nobody_places")
def test_more_threads_than_cores() -> None:
    counted = np.zeros(70, np.int32)
    runner = Runner(len(os.sched_getaffinity(0)) + 3)
    runner.phase([(kernel("counts", COUNTS), [counted])] * 3).run()
    assert counted[runner.threads] == 3
    assert (runner.seen.shared, runner.seen.moves) == (0, 0)


# --- a busy machine -----------------------------------------------------------------------------------------
class Crowd:
    """Delays of a runner at times in seconds, of which none passes here."""

    def __init__(self, threads: int):
        self.runner = Runner(threads)

    def delayed(self, at: float, delay: float, after: float) -> None:
        """A phase is delayed, after others have run for some time."""
        self.runner._library.swirl_delayed(self.runner._team, after, delay, at)

    def holds(self, at: float) -> bool:
        return bool(self.runner._library.swirl_holds(self.runner._team, at))


def test_one_thread_runs_where_waiting_costs_more_than_sharing_gains() -> None:
    crowd = Crowd(2)
    crowd.delayed(1.0, delay=0.003, after=0.1)
    assert not crowd.holds(1.0)
    crowd.delayed(2.0, delay=0.003, after=0.002)
    assert crowd.holds(2.0) and crowd.holds(2.019) and not crowd.holds(2.021)
    crowd.delayed(3.0, delay=0.003, after=0.002)  # again, and for twice as long
    assert crowd.holds(3.039) and not crowd.holds(3.041)
    crowd.delayed(4.0, delay=0.001, after=0.1)  # not any more
    assert not crowd.holds(4.0)
    crowd.delayed(5.0, delay=0.001, after=0.0)
    assert crowd.holds(5.019) and not crowd.holds(5.021)
    crowd.delayed(6.0, delay=2.0, after=0.0)  # at least as long as the delay
    assert crowd.holds(7.9) and not crowd.holds(8.1)
    for number in range(5):
        crowd.delayed(20.0 + 10 * number, delay=2.0, after=0.0)
    assert crowd.holds(64.9) and not crowd.holds(65.1)


def test_many_threads_are_given_up_for_long_delays_only() -> None:
    crowd = Crowd(9)
    crowd.delayed(1.0, delay=0.003, after=0.001)  # one thread would take 8 ms more
    assert not crowd.holds(1.0)
    crowd.delayed(2.0, delay=0.005, after=0.001)
    assert crowd.holds(2.0)


def test_short_phases_run_on_one_thread_while_the_machine_is_busy() -> None:
    runner, counted = Runner(2), np.zeros(4, np.int32)
    phase = runner.phase([(kernel("counts", COUNTS), [counted])])
    phase.run()
    phase._phase.usual = 1e-4
    runner._library.swirl_delayed(runner._team, 0.0, 1.0, time.monotonic() + 3600)
    phase._phase.usual = 1e-4
    assert runner._library.swirl_holds(runner._team, time.monotonic())
    phase.run()
    assert runner.seen.alone == 1 and counted[1] == 1
    phase.run_timed()  # as it is planned
    assert runner.seen.alone == 1
    phase._phase.usual = 1.0  # a long one gets what it can
    phase.run()
    assert runner.seen.alone == 1 and counted[1] == 1 and counted[2] == 3


def test_a_pause_is_measured_once() -> None:
    found = pause_seconds()
    assert 1e-10 < found < 1e-6
    assert pause_seconds() == found
