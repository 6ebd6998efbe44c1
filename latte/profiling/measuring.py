"""Measuring a profile: layers as they are compiled, their loop nests apart, and the limits of the machine, in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from latte.model.source_location import user_location
from latte.profiling.nests import LoopNest, loop_nests
from latte.profiling.profile import Profile
from latte.profiling.rows import COMPUTE, MEMORY, Row
from latte.runtime.kernels import CompiledPhase
from latte.runtime.locking import one_at_a_time
from latte.runtime.session import Session
from latte.runtime.timings import as_before, check_repeat
from swirl.analysis.work import Work, program_work
from swirl.cost.time import Demand, Rates, program_demand
from swirl.errors import DataError
from swirl.ir.nest import Program
from swirl.measure.rates import Limits, Times
from swirl.target.machine import cache_bytes, processor_name
from swirl.target.targets import Target

TRAINING = ("forward", "backward")
"""What a training step runs; ``backward`` with the update of parameters' gradients."""

Run = Callable[[str], list[float]]
"""Runs a phase of the net; the seconds of its parts."""


@dataclass(frozen=True)
class Measurements:
    """Seconds of each round.

    Args:
        compiled: of each layer and phase, as it is compiled.
        separate: of each loop nest of each of them.
        rates: of the machine, the best round of each.
        threads: that ran.
    """

    compiled: tuple[Times, ...]
    separate: tuple[tuple[Times, ...], ...]
    rates: Rates
    threads: int


@one_at_a_time
def profile(session: Session, repeat: int = 10) -> Profile:
    """Where the time of a training step goes on the current batch, and how far each part is from what the machine can
    do.

    A layer (or a chain of layers) is one kernel a phase. Its loop nests are compiled once more, each as a kernel of its
    own, and run in the same order on the same arrays. A nest with several loops one after the other is taken apart too,
    unless they share locals. What the nests take apart need not add up to the time of the layer: each has a timer and a
    barrier of its own.

    In each round the limits are measured first; then the step runs three times: not timed, so that the caches hold what
    they do in training; timed by layer; timed by nest. Afterwards all values, gradients and states are what they were;
    copies of them are kept meanwhile. The solver is not part of the step.

    Args:
        session: of a compiled net with data.
        repeat: number of rounds; times are medians.

    Raises:
        CommandError: nothing to repeat.  DataError: the data layers have not been set.
        TrainingError: a gradient was set for another batch size.
        CompilerMissing, CompilerFailed, LatteError: see :func:`swirl.build.jit.build`.
    """
    check_repeat("profile", repeat)
    unset = [layer.name for layer in session.graph.data() if layer.name not in session.given]
    if unset:
        raise DataError(
            f"profile needs a batch: not set: {', '.join(unset)}",
            location=user_location(),
            way_out="call net.set_batch(…) first",
        )
    session.settle()
    executable = session.executable
    phases = [compiled for name in TRAINING for compiled in executable.order[name]]
    nests = loop_nests(phases, executable.plan.target)
    counts = Counts(executable.plan.target)
    measured = _measure(session, nests, repeat)
    whole = sum(times.median for times in measured.compiled) or 1.0
    rows = [
        _row(counts, measured, whole, compiled, several, number)
        for number, (compiled, several) in enumerate(zip(phases, nests, strict=True))
    ]
    return Profile(
        processor_name(),
        executable.plan.target.name,
        session.runner.threads,
        executable.items,
        repeat,
        measured.rates.peak,
        measured.rates.memory,
        tuple(rows),
        measured.rates.level2,
        measured.rates.level3,
        executable.batch_size,
    )


# --- measuring ----------------------------------------------------------------------------------------------
def _measure(session: Session, nests: Sequence[Sequence[LoopNest]], repeat: int) -> Measurements:
    executable, runner = session.executable, session.runner
    limits = Limits(executable.plan.target, runner)
    forward = len(executable.order["forward"])
    separate = {}
    for name, part in zip(TRAINING, (nests[:forward], nests[forward:]), strict=True):
        executable.memory.ready(name)
        separate[name] = runner.phase(
            [
                (nest.kernel, executable.memory.table(name, position, _storage(nest)))
                for position, several in enumerate(part)
                for nest in several
            ]
        )

    def by_nest(name: str) -> list[float]:
        with executable.views.in_storage():
            return separate[name].run_timed()

    def by_layer(name: str) -> list[float]:
        return [seconds for _, _, seconds in executable.run_timed(name)]

    with as_before(executable, values=True):
        rounds = []
        for _ in range(repeat):
            rates = (*limits.rates(), *limits.cache_rates())
            _step(session, by_layer)
            rounds.append((rates, _step(session, by_layer), _step(session, by_nest)))
    peak, memory, level2, level3 = (max(each) for each in zip(*(rates for rates, _, _ in rounds), strict=True))
    compiled = [Times(runs) for runs in zip(*(layers for _, layers, _ in rounds), strict=True)]
    parts = iter([Times(runs) for runs in zip(*(own for _, _, own in rounds), strict=True)])
    return Measurements(
        tuple(compiled),
        tuple(tuple(next(parts) for _ in several) for several in nests),
        Rates(peak, level2, level3, memory),
        runner.threads,
    )


def _storage(nest: LoopNest) -> list[str]:
    """Of the pointer table of its kernel."""
    return [nest.program.buffers[buffer].name for buffer in nest.buffers]


def _step(session: Session, run: Run) -> list[float]:
    """A training step, in which gradients of parameters begin anew."""
    executable = session.executable
    seconds = run("forward")
    session.seeds.before_backward(executable)
    if "net.accumulate" in executable.arrays:
        executable.arrays["net.accumulate"][0] = 0
    return [*seconds, *run("backward")]


# --- rows ---------------------------------------------------------------------------------------------------
class Counts:
    """What kernels do and ask for, counted once for each: layers of the same shape share one."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.level3_bytes = cache_bytes(level=3) or 0
        self._works: dict[str, Work] = {}
        self._demands: dict[str, Demand] = {}

    def work(self, kernel: str, program: Program) -> Work:
        if kernel not in self._works:
            self._works[kernel] = program_work(program)
        return self._works[kernel]

    def demand(self, nest: LoopNest) -> Demand:
        name = nest.kernel.name
        if name not in self._demands:
            self._demands[name] = program_demand(nest.program, self.target)
        return self._demands[name]


def _row(
    counts: Counts,
    measured: Measurements,
    whole: float,
    compiled: CompiledPhase,
    nests: Sequence[LoopNest],
    number: int,
) -> Row:
    """The row of the phase with that number, and those of its nests."""
    peak, bandwidth = measured.rates.peak, measured.rates.memory

    def row(kernel: str, program: Program, times: Times) -> Row:
        work = counts.work(kernel, program)
        exact = work.exact and all(touched.exact for touched in work.touched)
        compute, memory = work.operations / peak, work.bytes / bandwidth
        return Row(
            ensemble=compiled.unit.name,
            phase=compiled.phase,
            nest="",
            writes=(),
            seconds=times.median,
            spread=times.spread,
            share=times.median / whole,
            operations=work.operations,
            bytes=work.bytes,
            exact=exact,
            limit=max(compute, memory),
            bound=COMPUTE if compute > memory else MEMORY,
        )

    def below(nest: LoopNest, times: Times) -> Row:
        asked = counts.demand(nest)
        predicted, slowest = asked.seconds(measured.rates, counts.target, measured.threads, counts.level3_bytes)
        own = row(nest.kernel.name, nest.program, times)
        named = replace(own, nest=nest.label, writes=nest.writes)
        return replace(named, demand=asked, predicted=predicted, slowest=slowest)

    found = tuple(below(nest, times) for nest, times in zip(nests, measured.separate[number], strict=True))
    predicted = sum(nest.predicted or 0.0 for nest in found)
    own = row(compiled.kernel.name, compiled.program, measured.compiled[number])
    return replace(own, nests=found, predicted=predicted)
